"""The wire stays compatible with ``protos/crossborder.binpb``: what is out there goes on to be understood."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from common.pb import crossborder_pb2 as pb
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
