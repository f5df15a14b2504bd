"""The messages of ``acting.proto`` as JSON and MessagePack, for clients that speak WebSocket."""

from __future__ import annotations

import base64
import math
import re
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from google.protobuf.json_format import MessageToDict
from msgspec import Meta, Struct

from common.data import Column
from common.hints import nearest
from common.spaces import convert
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError
from crossborder.serving.client_steps import Request

_UInt32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
_UInt64 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # No larger bound can be given.
FirstRequest = pb.DescribeRequest | pb.OpenSession | pb.ResumeSession
_PARTS: Final = reprlib.Repr()
_PARTS.maxlevel = 3  # A thousand lists within each other are more than repr can show.
_MOST_TOLD: Final = 300
"""Characters of an error that may have names and values of a client."""
_FAULT: Final = re.compile(
    r"(?P<what>Object contains unknown field `(?P<unknown>[^`]*)`|.*?)(?: - at `\$\.?(?P<where>.*)`)?", re.DOTALL
)
"""What msgspec says about a value, and where that is in the message."""
_NO_NUMBER: Final = re.compile(
    r'"(?P<field>[^"]*)"\s*:[^"]*?(?<![\w"])(?P<found>-?(?:nan|inf(?:inity)?))\b', re.IGNORECASE
)
"""What some writers of JSON write in the place of a number, outside of all texts, and the field that has it."""
MOST_BYTES, MOST_NUMBER_BYTES = 1 << 16, 64
"""Bytes of a message, and as many more for each number that a step of all lanes has: a number in JSON has up to 25."""


class _Struct(Struct, forbid_unknown_fields=True):
    """A mapping whose keys are all known."""


class Describe(_Struct):
    """``DescribeRequest``."""

    policy: str = ""


class Open(_Struct):
    """``OpenSession``."""

    lanes: _UInt32 = 0
    policy: str = ""


class Resume(_Struct):
    """``ResumeSession``."""

    secret: str = ""


class FirstMessage(_Struct):
    """A message before a session: one of its three requests, and a token in the very first one."""

    token: Any = ""
    describe: Describe | None = None
    open: Open | None = None
    resume: Resume | None = None


class Step(_Struct):
    """``LaneSteps``; observations and actions come as values by leaf, and are packed to payloads."""

    seq: _UInt64
    observation: Any
    lanes: list[_UInt32] = []
    reward: list[float] = []
    terminated: list[bool] = []
    truncated: list[bool] = []
    restarted: list[bool] = []
    executed: Any = None
    intervened: list[bool] = []


class Report(_Struct):
    """``ClientReport``."""

    env_seconds: float = 0.0
    env_rebuilds: _UInt32 = 0
    env_hangs: _UInt32 = 0
    safe_stops: _UInt32 = 0
    env_error: str = ""


class Close(_Struct):
    """``CloseSession``."""


class Message(_Struct):
    """A message in a session: one of its requests."""

    step: Step | None = None
    report: Report | None = None
    close: Close | None = None


_REQUESTS: Final[Mapping[Any, Any]] = {
    Describe: pb.DescribeRequest,
    Open: pb.OpenSession,
    Resume: pb.ResumeSession,
    Report: pb.ClientReport,
    Close: pb.CloseSession,
}
"""As gRPC carries them. A step stays as it is."""
_FIRST_READERS: Final = msgspec.msgpack.Decoder(FirstMessage), msgspec.json.Decoder(FirstMessage)
_READERS: Final = msgspec.msgpack.Decoder(Message), msgspec.json.Decoder(Message)
_WRITERS: Final = msgspec.msgpack.Encoder(), msgspec.json.Encoder()
"""For MessagePack and for JSON."""


def most_bytes(description: Description, lanes: int) -> int:
    """The most bytes of a message of a session. To parse millions of brackets would hold all clients up for seconds."""
    columns = (*description.observation_columns.values(), *description.action_columns.values())
    return MOST_BYTES + MOST_NUMBER_BYTES * lanes * sum(math.prod(column.shape) for column in columns)


def read_first(message: str | bytes) -> tuple[object, FirstRequest]:
    """The token and the request of a message before a session: JSON in a text frame, MessagePack in a binary frame.

    Raises:
        BadMessageError: it is neither, or breaks a rule.
    """
    first = _decode(_FIRST_READERS[isinstance(message, str)], message)
    return first.token, _to_protobuf(_only_of(first.describe, first.open, first.resume))


def write(values: Mapping[str, Any], *, as_text: bool) -> str | bytes:
    """The message with these values, in the form in which the client writes."""
    written = _WRITERS[as_text].encode(values)
    return written.decode() if as_text else written


class SessionMessages:
    """The messages of one session.

    Args:
        description: of its observations and actions.
        as_text: whether the client reads JSON; otherwise MessagePack.
    """

    def __init__(self, description: Description, *, as_text: bool) -> None:
        self._observation, self._action = description.observation_columns, description.action_columns
        self._action_bytes = sum(column.row_bytes for column in self._action.values())
        self._as_text = as_text

    def read(self, message: str | bytes) -> Request:
        """The request of a message. Its observations and actions are packed, as by gRPC; their values are not checked.

        Raises:
            BadMessageError: it is neither JSON nor MessagePack, a field is unknown, or a value is of another kind.
        """
        found: Message = _decode(_READERS[isinstance(message, str)], message)
        step = _only_of(found.step, found.report, found.close)
        if not isinstance(step, Step):
            request: Request = _to_protobuf(step)
            return request
        step.observation = _pack(self._observation, step.observation, "observation")
        step.executed = b"" if step.executed is None else _pack(self._action, step.executed, "executed")
        return step

    def write(self, answer: pb.ActResponse) -> str | bytes:
        """The message of a response. The values of an action are lists of numbers, by leaf."""
        if answer.HasField("opened"):
            opened = answer.opened
            names = ("secret", "lanes", "seed", "last_seq", "policy")
            return write({"opened": {name: getattr(opened, name) for name in names}}, as_text=self._as_text)
        action = answer.action
        told = {
            "seq": action.seq,
            "action": self._unpack(action.action),
            "version": action.version,
            "seconds": round(action.seconds, 6),
        }
        return write({"action": told}, as_text=self._as_text)

    def _unpack(self, payload: bytes) -> Any:
        """The values of a payload of actions, by leaf, as lists."""
        k, offset, found = len(payload) // self._action_bytes, 0, dict[str, Any]()
        for path, column in self._action.items():
            flat = np.frombuffer(payload, column.numpy_dtype, k * math.prod(column.shape), offset)
            found[path] = flat.reshape(k, *column.shape).tolist() if column.shape else flat.tolist()
            offset += k * column.row_bytes
        return found.get("", found)


def tell_description(described: pb.DescribeResponse) -> Mapping[str, Any]:
    """The values of ``DescribeResponse``, all fields by the names in the .proto file; infinite bounds are text."""
    values = MessageToDict(described, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    values["version"] = described.version
    values["limits"]["max_message_bytes"] = described.limits.max_message_bytes
    return {"description": values}


def _decode(reader: Any, message: str | bytes) -> Any:
    try:
        return reader.decode(message)
    except msgspec.ValidationError as error:
        found = _FAULT.fullmatch(str(error))
        assert found is not None, "it matches every text"
        what = found["what"][:1].lower() + found["what"][1:] + _hint(found["unknown"], found["where"], reader.type)
        if what == "expected `float`, got `null`":
            what += "; JavaScript writes null in JSON for NaN and for infinity"
        raise BadMessageError(": ".join(filter(None, [found["where"], what]))[:_MOST_TOLD]) from error
    except (RecursionError, UnicodeError, msgspec.DecodeError) as error:
        if isinstance(message, str) and (bad := _NO_NUMBER.search(message)):
            told = f"{bad['field']}: expected finite numbers, found {bad['found']}: JSON has no NaN and no infinity"
            raise BadMessageError(told[:_MOST_TOLD]) from error
        told = f"expected JSON in a text frame or MessagePack in a binary frame: {error}"
        raise BadMessageError(told[:_MOST_TOLD]) from error


def _hint(unknown: str | None, where: str | None, kind: type[Struct]) -> str:
    """The known name next to an unknown one, which a message of this kind has at its top or in a request."""
    requests = {each.__name__.lower(): each for each in (*_REQUESTS, Step)}
    part = requests.get(where) if where else kind
    return nearest(unknown[:_MOST_TOLD], part.__struct_encode_fields__) if unknown is not None and part else ""


def _to_protobuf(request: Struct) -> Any:
    return _REQUESTS[type(request)](**msgspec.structs.asdict(request))


def _only_of(*requests: Struct | None) -> Struct:
    """The one request that a message has."""
    given = [request for request in requests if request is not None]
    if len(given) != 1:
        found = ", ".join(type(request).__name__.lower() for request in given)
        raise BadMessageError(f"expected one request in each message, found {found or 'none'}")
    return given[0]


def _pack(columns: Mapping[str, Column], value: Any, name: str) -> bytes:
    """The payload of values by leaf: lists of numbers, or the bytes of a leaf, which are text in JSON (base64)."""
    if "" in columns:
        return _pack_leaf(columns[""], value, name)
    if not isinstance(value, dict) or value.keys() != columns.keys():
        found = ", ".join(map(str, value)) if isinstance(value, dict) else f"a {type(value).__name__}"
        raise BadMessageError(f"{name}: expected the leaves {', '.join(columns)}, found {found:.80}")
    packed = {path: _pack_leaf(column, value[path], path) for path, column in columns.items()}
    rows = {path: len(leaf) / columns[path].row_bytes for path, leaf in packed.items()}
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{path}: {k:g}" for path, k in rows.items())
        raise BadMessageError(f"{name}: expected the same number of lanes in each leaf, found {found}")
    return b"".join(packed.values())


def _pack_leaf(column: Column, value: Any, name: str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
        if isinstance(value, list) and _has_text(value):
            raise TypeError("numpy would make room for the longest text in each place of its array")
        packed = convert(np.asarray(value), column.numpy_dtype)
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        expected = "bytes as base64" if isinstance(value, str) else _expect(column)
        raise BadMessageError(f"{name}: expected {expected}, found {_PARTS.repr(value):.80}") from error
    if packed.shape[1:] != column.shape or not packed.ndim:
        found = f"the shape {list(packed.shape)}" if packed.ndim else str(value)
        raise BadMessageError(f"{name}: expected {_expect(column)}, found {found:.80}")
    return packed.tobytes()


def _has_text(values: list[Any]) -> bool:
    kinds = {*map(type, values)}
    return not kinds.isdisjoint((str, bytes)) or (
        list in kinds and any(_has_text(p) for p in values if type(p) is list)
    )


def _expect(column: Column) -> str:
    return f"{column.numpy_dtype} [{', '.join(('k', *map(str, column.shape)))}], with a row for each of k lanes"
