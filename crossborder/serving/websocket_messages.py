"""The messages of ``acting.proto`` as JSON and MessagePack, for clients that speak WebSocket."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np
from google.protobuf.json_format import MessageToDict

from common.data import Column
from common.spaces import convert
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError

Values = Mapping[str, Any]
_REQUESTS = ("open", "resume", "step", "report", "close")
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
    with _refusing("describe"):
        return pb.DescribeRequest(**_fields_of("describe", values))


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
    with _refusing(kind):
        match kind:
            case "open":
                return pb.ActRequest(open=pb.OpenSession(**fields))
            case "resume":
                return pb.ActRequest(resume=pb.ResumeSession(**fields))
            case "step" if description is not None:
                return pb.ActRequest(step=_read_step(fields, description))
            case "step":
                raise BadMessageError("expected open or resume as the first request, found step")
            case "report":
                return pb.ActRequest(report=pb.ClientReport(**fields))
            case _:
                return pb.ActRequest(close=pb.CloseSession(**fields))


def _fields_of(kind: str, values: Values) -> dict[str, Any]:
    fields = values[kind]
    if not isinstance(fields, dict):
        raise BadMessageError(f"{kind}: expected a mapping, found a {type(fields).__name__}")
    return fields


@contextmanager
def _refusing(kind: str) -> Iterator[None]:
    """Refuse fields that protobuf or numpy does not take."""
    try:
        yield
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        raise BadMessageError(f"{kind}: {error}") from error


def _read_step(fields: Mapping[str, Any], description: Description) -> pb.LaneSteps:
    given = dict(fields)
    observation = _pack(description.observation_columns, given.pop("observation", None), "observation")
    executed = given.pop("executed", None)
    packed = b"" if executed is None else _pack(description.action_columns, executed, "executed")
    return pb.LaneSteps(**given, observation=observation, executed=packed)


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
        return base64.b64decode(value, validate=True)
    array = np.asarray(value)
    if array.shape[1:] != column.shape or not array.ndim:
        raise BadMessageError(f"{name}: expected the shape {['k', *column.shape]}, found {list(array.shape)}")
    packed: bytes = convert(array, column.numpy_dtype).tobytes()
    return packed


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
