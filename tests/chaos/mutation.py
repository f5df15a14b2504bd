"""Messages as no actor of ours would send them: whole ones, mutilated byte by byte or field by field."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from common.wire.compression import compress
from common.wire.pb import crossborder_pb2 as pb

ABSURD: Final = (0, 1, 2, 127, 128, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
ODD: Final = (0.0, -0.0, -1.0, 5e-324, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))
BOMB: Final = compress(bytes(16 << 20))
"""Sixteen MiB in a thousandth of it."""
_COUNTS: Final = {
    pb.PushItemsRequest: ("seq", "rows"),
    pb.JoinRequest: ("protocol_version", "pid", "wanted_id", "epoch"),
}
_REPORTED_32: Final = ("reconnects", "env_rebuilds", "env_hangs", "safe_stops")
_REPORTED_64: Final = (
    "env_steps",
    "spool_bytes",
    "dropped_items",
    "ticks",
    "late_ticks",
    "missed_ticks",
    "intervened_steps",
)
_SECONDS: Final = ("seconds", "env_seconds", "inference_seconds", "wait_seconds", "lateness_p99_seconds")


def flip(rng: random.Random, data: bytearray) -> None:
    """A few bits."""
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(rng: random.Random, data: bytearray) -> None:
    """A few neighbouring bytes, often with what a length or a float's exponent must not be."""
    at, size = rng.randrange(len(data)), rng.randint(1, 9)
    data[at : at + size] = rng.choice([b"\xff" * size, bytes(size), rng.randbytes(size)])


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def cut(rng: random.Random, data: bytearray) -> None:
    """Bytes out of its middle."""
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 40)]


def repeat(rng: random.Random, data: bytearray) -> None:
    """A part of it once more, somewhere."""
    at, to = rng.randrange(len(data)), rng.randrange(len(data))
    data[to:to] = data[at : at + rng.randint(1, 200)]


def extend(rng: random.Random, data: bytearray) -> None:
    data += rng.randbytes(rng.randint(1, 100))


MUTILATIONS: Final[tuple[Callable[[random.Random, bytearray], None], ...]] = (
    flip,
    overwrite,
    truncate,
    cut,
    repeat,
    extend,
)


def mutilated(rng: random.Random, data: bytes) -> bytes:
    """The bytes after one to three mutilations."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        if changed:
            rng.choice(MUTILATIONS)(rng, changed)
    return bytes(changed)


def contradict(rng: random.Random, message: Any) -> None:
    """Say something absurd in one field, in place; the message stays well-formed."""
    field = rng.choice(message.DESCRIPTOR.fields)
    name = field.name
    if name in _COUNTS.get(type(message), ()):
        limit = 2**64 if name in {"seq", "epoch"} else 2**32
        setattr(message, name, rng.choice(ABSURD) % limit)
    elif name in ("incarnation", "former_incarnation", "schema_hash"):
        setattr(message, name, rng.choice([0, getattr(message, name) ^ 1, rng.getrandbits(64)]))
    elif name == "payload":
        bombed = message.compression and rng.random() < 0.2
        message.payload = BOMB if bombed else mutilated(rng, message.payload)
    elif name == "compression":
        message.compression = rng.choice(ABSURD[:6])
    elif name in ("takes_delta", "takes_elsewhere", "after_drop", "evaluates", "candidate"):
        setattr(message, name, not getattr(message, name))
    elif field.type == field.TYPE_STRING:
        setattr(message, name, "ö" * rng.choice([0, 32, 255, 256, 100_000]))
    elif name == "report":
        _contradict_report(rng, message.report)
    else:  # A model's version.
        version = getattr(message, name)
        version.incarnation, version.opt_steps = rng.choice(ABSURD), rng.choice(ABSURD)


def _contradict_report(rng: random.Random, report: pb.Report) -> None:
    for name in rng.sample((*_REPORTED_32, *_REPORTED_64), 2):
        limit = 2**32 if name in _REPORTED_32 else 2**64
        setattr(report, name, rng.choice(ABSURD) % limit)
    setattr(report, rng.choice(_SECONDS), rng.choice(ODD))
    report.episode_returns.extend([rng.choice(ODD)] * rng.choice([0, 1, 5000]))
    if rng.random() < 0.1:
        report.score.CopyFrom(pb.Score(score=rng.choice(ODD), record={"n" * rng.choice([0, 64, 65]): rng.choice(ODD)}))
    report.episode_lengths.extend([rng.choice(ABSURD) % 2**32] * rng.choice([0, 1, 5000]))
