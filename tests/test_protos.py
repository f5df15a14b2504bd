"""The wire stays compatible with ``protos/crossborder.binpb``: what is out there goes on to be understood."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from common.data import MAX_EPISODES
from common.process.clocks import Backoff
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import CHUNK_BYTES, PROTOCOL_VERSION, UNARY_BYTES
from tests.conftest import ROOT


def released() -> FileDescriptorProto:
    (file,) = FileDescriptorSet.FromString((ROOT / "protos" / "crossborder.binpb").read_bytes()).file
    return file


def present() -> FileDescriptorProto:
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    return file


def fields(message: DescriptorProto) -> set[tuple[object, ...]]:
    """What must stay of each field (buf: WIRE_JSON)."""
    return {(f.number, f.name, f.type, f.label, f.type_name, f.proto3_optional) for f in message.field}


def promises(file: FileDescriptorProto) -> set[tuple[object, ...]]:
    """All that somebody else may rely on."""
    kept: set[tuple[object, ...]] = {("package", file.package)}
    for message in file.message_type:
        kept |= {(message.name, *field) for field in fields(message)}
    for service in file.service:
        for m in service.method:
            called = (m.name, m.input_type, m.output_type, m.client_streaming, m.server_streaming)
            kept.add((service.name, *called))
    return kept


def test_nothing_of_the_released_wire_is_removed_renumbered_or_changed() -> None:
    assert promises(released()) - promises(present()) == set()


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("proto", f"by version {PROTOCOL_VERSION} of this protocol"),
        ("proto", f"The version of this protocol the actor speaks: {PROTOCOL_VERSION}."),
        ("proto", f"a random time of up to {1000 * Backoff().first:g} ms"),
        ("proto", f"of up to {Backoff().highest:g} s at most"),
        ("proto", f"in one message up to {UNARY_BYTES >> 20} MiB, in {CHUNK_BYTES >> 20} MiB chunks"),
        ("proto", f"the newest {MAX_EPISODES} at most"),
        ("docs", f"`JoinRequest.protocol_version` is {PROTOCOL_VERSION}."),
    ],
)
def test_the_figures_in_the_specification_are_those_of_the_code(file: str, sentence: str) -> None:
    place = {"proto": "protos/crossborder/v1/crossborder.proto", "docs": "docs/protocol.md"}[file]
    lines = (line.strip().removeprefix("//").strip() for line in (ROOT / place).read_text().splitlines())
    assert sentence in " ".join(lines)


def drop_field(file: FileDescriptorProto) -> None:
    del file.message_type[0].field[0]


def renumber(file: FileDescriptorProto) -> None:
    file.message_type[1].field[0].number = 99


def retype(file: FileDescriptorProto) -> None:
    file.message_type[1].field[0].type = 9  # type: ignore[assignment]


def drop_call(file: FileDescriptorProto) -> None:
    del file.service[0].method[0]


def stop_streaming(file: FileDescriptorProto) -> None:
    file.service[0].method[1].client_streaming = False


@pytest.mark.parametrize("change", [drop_field, renumber, retype, drop_call, stop_streaming])
def test_a_change_that_breaks_is_seen(change: Callable[[FileDescriptorProto], None]) -> None:
    file = released()
    change(file)
    assert promises(released()) - promises(file)


def test_a_new_field_breaks_nothing() -> None:
    file = released()
    file.message_type[0].field.add(name="another", number=99, type=13)
    assert promises(released()) <= promises(file)
