"""The messages of ``acting.proto`` as JSON and MessagePack, for clients that speak WebSocket."""

from __future__ import annotations

import base64
import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgpack
import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from common.data import Column
from common.hints import nearest
from common.spaces import convert
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError

Values = Mapping[str, Any]
MessageT = TypeVar("MessageT", bound=Message)
_REFUSALS: Final = (OverflowError, RecursionError, TypeError, ValueError)
"""What protobuf and numpy raise for a value that they do not take."""
_KINDS: Final = {
    **dict.fromkeys((FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64), "a whole number of 0 or more"),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64), "a whole number"),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE), "a number"),
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "a text",
}
_REQUESTS = ("open", "resume", "step", "report", "close")
_PARTS: Final = reprlib.Repr()
_PARTS.maxlevel = 3  # A thousand lists within each other are more than repr can show.
MOST_BYTES, MOST_NUMBER_BYTES = 1 << 16, 64
"""Bytes of a message, and as many more for each number that a step of all lanes has: a number in JSON has up to 25."""


def most_bytes(description: Description, lanes: int) -> int:
    """The most bytes of a message of a session. To parse millions of brackets would hold all clients up for seconds."""
    columns = (*description.observation_columns.values(), *description.action_columns.values())
    return MOST_BYTES + MOST_NUMBER_BYTES * lanes * sum(math.prod(column.shape) for column in columns)


def parse(message: str | bytes) -> Values:
    """The values of a message: JSON in a text frame, MessagePack in a binary frame.

    Raises:
        BadMessageError: the message is no mapping, or neither JSON nor MessagePack.
    """
    try:
        values = json.loads(message) if isinstance(message, str) else msgpack.unpackb(message)
    except (RecursionError, ValueError, msgpack.UnpackException) as error:
        raise BadMessageError(f"expected JSON in a text frame or MessagePack in a binary frame: {error}") from error
    if not isinstance(values, dict):
        raise BadMessageError(f"expected a mapping, found a {type(values).__name__}")
    return values


def write(values: Values, *, as_text: bool) -> str | bytes:
    """The message with these values, in the form in which the client writes."""
    if as_text:
        return json.dumps(values, separators=(",", ":"))
    packed: bytes = msgpack.packb(values)
    return packed


def read_describe(values: Values) -> pb.DescribeRequest:
    """The request to describe a policy.

    Raises:
        BadMessageError: a field is unknown, or a value is of another kind.
    """
    return _build(pb.DescribeRequest, "describe", _fields_of("describe", values))


def read_request(values: Values, description: Description | None = None) -> pb.ActRequest:
    """The request that a mapping says, as gRPC would carry it. The same rules are checked later for both.

    Args:
        values: of the message.
        description: of the session's observations and actions; None: a step is not expected yet.

    Raises:
        BadMessageError: a field is unknown, or a value is of another kind.
    """
    kinds = values.keys() & {*_REQUESTS}
    if len(kinds) != 1 or len(values) != 1:
        raise BadMessageError(
            f"expected one of {', '.join(_REQUESTS)}, found {', '.join(map(str, values)) or 'nothing'}"
        )
    (kind,) = kinds
    fields = _fields_of(kind, values)
    match kind:
        case "open":
            return pb.ActRequest(open=_build(pb.OpenSession, kind, fields))
        case "resume":
            return pb.ActRequest(resume=_build(pb.ResumeSession, kind, fields))
        case "step" if description is not None:
            return pb.ActRequest(step=_read_step(fields, description))
        case "step":
            raise BadMessageError("expected open or resume as the first request, found step")
        case "report":
            return pb.ActRequest(report=_build(pb.ClientReport, kind, fields))
        case _:
            return pb.ActRequest(close=_build(pb.CloseSession, kind, fields))


def _fields_of(kind: str, values: Values) -> dict[str, Any]:
    fields = values[kind]
    if not isinstance(fields, dict):
        raise BadMessageError(f"{kind}: expected a mapping, found a {type(fields).__name__}")
    return fields


def _build(message: type[MessageT], kind: str, fields: Mapping[str, Any]) -> MessageT:
    """The message with these fields.

    Raises:
        BadMessageError: a field is unknown, or its value is of another kind.
    """
    try:
        return message(**fields)
    except _REFUSALS as error:
        raise BadMessageError(f"{kind}: {_find_fault(message, fields) or error}") from error


def _find_fault(message: type[Message], fields: Mapping[str, Any]) -> str:
    """The first field that protobuf does not take, in words: its own errors name neither field nor value."""
    known = message.DESCRIPTOR.fields_by_name
    for name, value in fields.items():
        if name not in known:
            return f"{name}: unknown field{nearest(str(name), known)}"
        try:
            message(**{name: value})
        except _REFUSALS:
            kind = _KINDS.get(known[name].cpp_type, "a mapping")
            expected = f"a list (each: {kind})" if hasattr(getattr(message(), name), "append") else kind
            return f"{name}: expected {expected}, found {_show(value)}"
    return ""


def _show(value: Any) -> str:
    """The first parts of a client's value, for an error."""
    return f"{_PARTS.repr(value):.80}"


def _read_step(fields: Mapping[str, Any], description: Description) -> pb.LaneSteps:
    given = dict(fields)
    observation = _pack(description.observation_columns, given.pop("observation", None), "observation")
    executed = given.pop("executed", None)
    packed = b"" if executed is None else _pack(description.action_columns, executed, "executed")
    return _build(pb.LaneSteps, "step", {**given, "observation": observation, "executed": packed})


def _pack(columns: Mapping[str, Column], value: Any, name: str) -> bytes:
    """The payload of values by leaf: lists of numbers, or the bytes of a leaf, which are text in JSON (base64)."""
    by_path = {"": value} if columns.keys() == {""} else value
    if not isinstance(by_path, dict) or by_path.keys() != columns.keys():
        found = ", ".join(map(str, by_path)) if isinstance(by_path, dict) else f"a {type(value).__name__}"
        raise BadMessageError(f"{name}: expected the leaves {', '.join(columns)}, found {found}")
    packed = {path: _pack_leaf(column, by_path[path], path or name) for path, column in columns.items()}
    rows = {path: len(leaf) / columns[path].row_bytes for path, leaf in packed.items()}
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{path}: {k:g}" for path, k in rows.items())
        raise BadMessageError(f"{name}: expected the same number of lanes in each leaf, found {found}")
    return b"".join(packed.values())


def _pack_leaf(column: Column, value: Any, name: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError as error:
            raise BadMessageError(f"{name}: expected bytes as base64, found {_show(value)}: {error}") from error
    expected = f"{column.numpy_dtype} [{', '.join(('k', *map(str, column.shape)))}], with a row for each of k lanes"
    try:
        packed = convert(np.asarray(value), column.numpy_dtype)
    except _REFUSALS as error:
        raise BadMessageError(f"{name}: expected {expected}, found {_show(value)}") from error
    if packed.shape[1:] != column.shape or not packed.ndim:
        found = f"the shape {list(packed.shape)}" if packed.ndim else _show(value)
        raise BadMessageError(f"{name}: expected {expected}, found {found}")
    return packed.tobytes()


def tell_answer(answer: pb.ActResponse, description: Description) -> Values:
    """The values of a response: those of an action by leaf, as lists of numbers."""
    if answer.WhichOneof("response") == "opened":
        opened = answer.opened
        return {"opened": {name: getattr(opened, name) for name in ("secret", "lanes", "seed", "last_seq", "policy")}}
    action = answer.action
    columns = description.action_columns
    k = len(action.action) // sum(column.row_bytes for column in columns.values())
    leaves = description.read_action(action.action, k, checked=False)
    told = {path: leaf.tolist() for path, leaf in leaves.items()} if isinstance(leaves, dict) else leaves.tolist()
    seconds = round(action.seconds, 6)
    return {"action": {"seq": action.seq, "action": told, "version": action.version, "seconds": seconds}}


def tell_description(described: pb.DescribeResponse) -> Values:
    """The values of ``DescribeResponse``, all fields by the names in the .proto file; infinite bounds are text."""
    values = MessageToDict(described, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    values["version"] = described.version
    values["limits"]["max_message_bytes"] = described.limits.max_message_bytes
    return {"description": values}
