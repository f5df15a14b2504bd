"""The wire stays parsable beside ``protos/crossborder.binpb``: what is out there is understood, or refused by name."""

from __future__ import annotations

import re
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


Promise = tuple[object, ...]


def fields(message: DescriptorProto) -> set[Promise]:
    """What must stay of each field (buf: WIRE_JSON)."""
    return {(f.number, f.name, f.type, f.label, f.type_name, f.proto3_optional) for f in message.field}


def reserved(file: FileDescriptorProto) -> set[tuple[str, int, str]]:
    """Message, number and name of the fields that have gone for good: their number and name can never mean another."""
    return {
        (message.name, number, name)
        for message in file.message_type
        for span in message.reserved_range
        for number in range(span.start, span.end)
        for name in message.reserved_name
    }


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


def broken(before: FileDescriptorProto, after: FileDescriptorProto) -> set[Promise]:
    """The promises of ``before`` that ``after`` breaks."""
    return {promise for promise in promises(before) - promises(after) if promise[:3] not in reserved(after)}


def test_nothing_of_the_released_wire_is_removed_renumbered_or_changed() -> None:
    assert broken(released(), present()) == set()


def test_the_protocol_version_is_stated_in_one_place_of_the_code() -> None:
    stated = re.compile(r"protocol_version(=| *: *)\d|PROTOCOL_VERSION(: \w+)? = \d")
    tops = ("actor", "common", "learner", "crossborder", "examples", "benchmarks", "deploy", "docker")
    found = {
        str(path.relative_to(ROOT))
        for top in tops
        for path in (ROOT / top).rglob("*.*")
        if path.suffix in (".py", ".mjs") and "node_modules" not in path.parts and stated.search(path.read_text())
    }
    assert found == {"common/wire/rpc.py", "examples/node/learner.mjs"}, "the actor in JavaScript has no rpc.py"


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("node", f"const PROTOCOL_VERSION = {PROTOCOL_VERSION};"),
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
    place = {
        "proto": "protos/crossborder/v1/crossborder.proto",
        "docs": "docs/protocol.md",
        "node": "examples/node/learner.mjs",
    }[file]
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
    assert broken(released(), file)


def test_a_new_field_breaks_nothing() -> None:
    file = released()
    file.message_type[0].field.add(name="another", number=99, type=13)
    assert not broken(released(), file)


def test_a_field_whose_number_and_name_are_reserved_may_go() -> None:
    file = released()
    message = file.message_type[0]
    message.reserved_range.add(start=message.field[0].number, end=message.field[0].number + 1)
    message.reserved_name.append(message.field[0].name)
    drop_field(file)
    assert not broken(released(), file)
