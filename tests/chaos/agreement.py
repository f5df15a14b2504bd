"""Our readers beside those of protobuf and safetensors: whatever ours take, the others take with the same meaning."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError, Message
from safetensors import SafetensorError
from safetensors.numpy import load, save

from common.wire.large_field import Request, parse_chunk
from common.wire.pb import crossborder_pb2 as pb
from common.wire.tensor_file import read_tensors
from tests.chaos.mutation import mutilated

NUMBERS: Final = (*range(1, 12), 100, 18_999, 2**29 - 1)
NO_NUMBERS: Final = (0, 2**29, 2**31)
"""Numbers that no field has."""
SIZES: Final = (0, 1, 2, 5, 130)
WRONG_SIZES: Final = (2**31, 2**32, 2**63, 2**64 - 1, 2**69)
VALUES: Final = (0, 1, 2**31, 2**32, 2**63, 2**64 - 1)
SELDOM: Final = 0.05
"""How often each part of a field is made wrong. Most messages can then be read as far as the next field."""
_PUSH: Final = pb.PushItemsRequest(
    incarnation=7,
    seq=3,
    schema_hash=9,
    rows=2,
    behaviour=pb.ModelVersion(incarnation=1, opt_steps=5),
    report=pb.Report(env_steps=3, episode_returns=[1.5], episode_lengths=[2]),
    payload=b"payload",
    trace_parent="x",
).SerializeToString()
_CHUNK: Final = pb.GetModelResponse(
    version=pb.ModelVersion(incarnation=2, opt_steps=30), total_bytes=4, checksum=1 << 63, data=b"data", offset=300
).SerializeToString()
_TENSORS: Final = save(
    {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((0, 3)), "c": np.ones(10, "i8")}
)
_OF_JSON: Final = b'0123456789[]{},":-.eE \\u\x00\xff'


def varint(number: int, padding: int = 0) -> bytes:
    """A number as protobuf writes it, and then ``padding`` bytes more that add nothing to it."""
    groups = [number >> 7 * place & 0x7F for place in range(max(1, -(-number.bit_length() // 7)) + padding)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def field(rng: random.Random) -> bytes:
    """A field of a message, or what looks like one."""
    number = rng.choice(NO_NUMBERS if rng.random() < SELDOM else NUMBERS)
    kind = rng.choice((3, 4, 6, 7) if rng.random() < SELDOM else (0, 1, 2, 2, 2, 5))
    begin = varint(number << 3 | kind, rng.choice((1, 4, 9)) if rng.random() < SELDOM else 0)
    padding = rng.choice((1, 4, 9)) if rng.random() < SELDOM else 0
    size = {0: 0, 1: 8, 5: 4}.get(kind, rng.choice(SIZES)) - (rng.random() < SELDOM)
    value = rng.choice((bytes(max(0, size)), rng.randbytes(max(0, size))))
    if kind == 0:
        return begin + varint(2**70 if rng.random() < SELDOM else rng.choice(VALUES), padding)
    if kind == 2:
        return begin + varint(rng.choice(WRONG_SIZES) if rng.random() < SELDOM else len(value), padding) + value
    return begin + value


def message(rng: random.Random, whole: bytes) -> bytes:
    """A message of strange fields, or a whole message that was mutilated or got one more field."""
    at = rng.randrange(len(whole) + 1)
    match rng.randrange(4):
        case 0:
            return mutilated(rng, whole)
        case 1:
            return whole[:at] + field(rng) + rng.choice((whole, whole[at:]))
    return b"".join(field(rng) for _ in range(rng.randint(1, 6)))


def tensor_file(rng: random.Random) -> bytes:
    """A safetensors file in which some bytes were exchanged, most of them in its header."""
    changed, end = bytearray(_TENSORS), 8 + struct.unpack_from("<Q", _TENSORS)[0]
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.1:
            return mutilated(rng, bytes(changed))
        if rng.random() < 0.3:  # A name, a number or a bracket comes where another was.
            begins = [at for at in range(8, end) if changed[at] in b'":,']
            to, source, size = rng.choice(begins), rng.choice(begins), rng.randint(1, 8)
            changed[to : to + size] = changed[source : source + size]
        else:
            changed[rng.randrange(8, end)] = rng.choice(_OF_JSON)
    return bytes(changed)


def _read_push(data: bytes) -> bytes:
    request = Request.parse(data)
    request.head.payload = b"".join(request.payload)
    return _known(request.head)


def _read_chunk(data: bytes) -> bytes:
    head, value = parse_chunk(data)
    head.data = value.tobytes()
    return _known(head)


def _parser_of(message: type[Message]) -> Callable[[bytes], bytes]:
    """Protobuf's parser."""
    return lambda data: _known(message.FromString(data))


def _known(message: Message) -> bytes:
    """The fields of a message that our protocol knows. Messages themselves would differ where they hold NaN."""
    message.DiscardUnknownFields()
    return message.SerializeToString(deterministic=True)


def _describe(tensors: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in tensors.items()}


_CASES: Final[dict[str, tuple[Callable[[random.Random], bytes], Callable[[bytes], Any], Callable[[bytes], Any]]]] = {
    "PushItemsRequest": (
        lambda rng: message(rng, _PUSH),
        _read_push,
        _parser_of(pb.PushItemsRequest),
    ),
    "GetModelResponse": (
        lambda rng: message(rng, _CHUNK),
        _read_chunk,
        _parser_of(pb.GetModelResponse),
    ),
    "safetensors": (
        tensor_file,
        lambda data: _describe(read_tensors(np.frombuffer(data, np.uint8))),
        lambda data: _describe(load(data)),
    ),
}
"""By format: how messages are made, our reader, and the reader of the library."""


def _read(reader: Callable[[bytes], Any], data: bytes) -> Any:
    """What a reader makes of a message; None if it refuses the message."""
    try:
        return reader(data)
    except (DecodeError, SafetensorError, ValueError):
        return None


def compare_readers(messages: int, seed: int) -> dict[str, Any]:
    """Let both readers of each format read mutilated messages; how many of each format ours took and refused.

    Raises:
        AssertionError: ours took a message that the other refuses, or that means something else to it.
    """
    outcomes = {}
    for name, (make, ours, theirs) in _CASES.items():
        rng, counts = random.Random(f"{name} {seed}"), Counter(taken=0, refused=0)
        for _ in range(messages):
            data = make(rng)
            found = _read(ours, data)
            counts["refused" if found is None else "taken"] += 1
            if found is not None:
                assert found == _read(theirs, data), f"{name}: expected that both readers agree about {data.hex()}"
        outcomes[name] = dict(counts)
    return {"messages": messages, "seed": seed, "outcomes": outcomes}
