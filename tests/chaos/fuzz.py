"""Mutilated messages against codec and ingest: each is taken or refused by name, and nobody else is harmed."""

from __future__ import annotations

import random
import signal
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError, Message

from common.data import Schema
from common.errors import ProtocolMismatchError, RefusedError, SchemaMismatchError
from common.wire.codec import encode
from common.wire.compression import compress
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import PROTOCOL_VERSION, NotJoinedError, SharedIncarnationError, version_from_pb
from learner.ingest.batch_limits import BATCHES_PER_REPLAY
from learner.ingest.joining import join
from learner.ingest.pushing import push
from learner.ingest.registry import TooManyActorsError
from learner.shared.actor_table import ActorState
from tests import frames
from tests.chaos.mutation import contradict, mutilated
from tests.chaos.report import scratch, tell
from tests.conftest import counting_config
from tests.learner.ingest.cores import LoneCore
from tests.parts import counting_schema, expected_rows

REFUSALS: Final = (
    RefusedError,
    SchemaMismatchError,
    SharedIncarnationError,
    ProtocolMismatchError,
    NotJoinedError,
    TooManyActorsError,
)
"""All that ``IngestCore`` may answer with; anything else that is raised ends the exercise."""
CAPACITY: Final = 800
MAX_ROWS: Final = CAPACITY // BATCHES_PER_REPLAY
MAX_ACTORS: Final = 4
ACTORS: Final = (1, 2, 3)
"""Incarnations that may take part."""
HANGS_SECONDS: Final = 300
"""A thousand messages take far less."""


class Target:
    """An ``IngestCore`` over files of its own, and well-formed messages for it.

    Args:
        directory: where the files are made.
        schema: what it takes.
    """

    def __init__(self, directory: Path, schema: Schema) -> None:
        self.schema = schema
        config = counting_config(
            directory,
            replay={"capacity": CAPACITY},
            server={"max_actors": MAX_ACTORS, "lost_seconds": 1e6},
        )
        self._lone = LoneCore(directory, config, schema)
        self.core = self._lone.core
        items = frames.picture_rows(np.arange(MAX_ROWS)) if schema.has_pictures else expected_rows(0, MAX_ROWS)
        self._payloads = [encode(schema, items, rows) for rows in range(MAX_ROWS + 1)]

    def close(self) -> None:
        self._lone.close()

    def whole(self, rng: random.Random, incarnation: int) -> Message:
        """A message that an actor of ours might send now."""
        kind = rng.random()
        if kind < 0.1:
            return self.join(incarnation)
        if kind < 0.15:
            return pb.GetModelRequest(have=pb.ModelVersion(incarnation=1, opt_steps=rng.randrange(2)))
        batch = self.batch(rng.randint(1, MAX_ROWS), incarnation)
        if rng.random() < 0.5:
            batch.compression, batch.payload = pb.COMPRESSION_ZSTD, compress(batch.payload)
        return batch

    def batch(self, rows: int, incarnation: int) -> pb.PushItemsRequest:
        return pb.PushItemsRequest(
            incarnation=incarnation,
            seq=self.core.writer.last_seq(incarnation) + 1,
            schema_hash=self.schema.hash,
            rows=rows,
            payload=self._payloads[rows],
            behaviour=pb.ModelVersion(incarnation=1, opt_steps=0),
            report=pb.Report(env_steps=10, seconds=1.0, episode_returns=[1.5], episode_lengths=[7]),
        )

    def join(self, incarnation: int) -> pb.JoinRequest:
        return pb.JoinRequest(protocol_version=PROTOCOL_VERSION, incarnation=incarnation, host="somewhere", pid=7)

    def take(self, message: Message) -> str:
        """Hand over one message as the service does; what became of it. A stranger leaves at once."""
        try:
            if isinstance(message, pb.JoinRequest):
                join(self.core, message)
                if message.incarnation not in ACTORS:
                    self.core.registry.set_state(self.core.row_of(message.incarnation), ActorState.LEFT)
            elif isinstance(message, pb.GetModelRequest) and message.HasField("version"):
                self.core.opponent(version_from_pb(message.version))
            elif isinstance(message, pb.GetModelRequest):
                self.core.model(version_from_pb(message.have), takes_delta=message.takes_delta)
            elif isinstance(message, pb.PushItemsRequest):
                push(self.core, self.core.row_of(message.incarnation), Request.parse(message.SerializeToString()))
        except (*REFUSALS, DecodeError) as error:  # DecodeError: too long beside its payload, as gRPC is told.
            return type(error).__name__
        return "taken"

    def check(self) -> None:
        """See that all that is stored is whole and linked, and that a well-formed batch is still taken."""
        join(self.core, self.join(ACTORS[0]))
        assert self.take(self.batch(3, ACTORS[0])) == "taken"
        memory = self.core.memory
        assert len(memory) <= CAPACITY
        for column in memory.columns.values():
            assert column.dtype.kind != "f" or np.isfinite(column).all()
        assert memory.find_problem() is None
        assert memory.links is not None
        slots = np.arange(memory.first(), memory.committed) % memory.n_slots
        back = memory.links.previous[slots].astype(int)
        linked = back > 0
        linked[: int(back.max())] = False  # Their earlier rows may have been overwritten.
        before = (slots[linked] - back[linked]) % memory.n_slots
        np.testing.assert_array_equal(memory.links.next[before], back[linked])
        final, first = (memory.columns[name] for name in ("final", "first"))
        np.testing.assert_array_equal(final[before], first[slots[linked]])


def _hung(*_: object) -> None:
    raise AssertionError(f"no 1000 messages in {HANGS_SECONDS} s")


def _mutant(rng: random.Random, target: Target, incarnation: int) -> tuple[Message | None, int]:
    """A message that somebody has tampered with, as it is read from the wire; None if it cannot be. And its size."""
    message = target.whole(rng, incarnation)
    intact = rng.random() < 0.25
    if not intact:
        contradict(rng, message)
    data = message.SerializeToString()
    if intact or rng.random() < 0.1:
        data = mutilated(rng, data)
    try:
        return type(message).FromString(data), len(data)
    except DecodeError:
        return None, len(data)


def fuzz(messages: int, seed: int) -> dict[str, Any]:
    """So many mutilated messages, half of them with pictures; what became of them.

    Raises:
        AssertionError: what is stored is not whole, or something hangs.
        Exception: whatever ingest should not have raised.
    """
    rng, outcomes = random.Random(seed), Counter[str]()
    before, excess, largest = signal.signal(signal.SIGALRM, _hung), 0, 0
    tracemalloc.start()
    try:
        with scratch() as directory:
            targets = [Target(directory / name, schema) for name, schema in _SCHEMAS.items()]
            for number in range(messages):
                if number % 1000 == 0:
                    signal.alarm(HANGS_SECONDS)
                    for target in targets:
                        target.core.tick()
                if number % 100_000 == 0:
                    tell(f"message {number} of {messages}, seed {seed}")
                outcome, size, allocated = _one(rng, targets[number % len(targets)])
                outcomes[outcome] += 1
                excess, largest = max(excess, allocated), max(largest, size)
            refused = sum((target.core.counts.batches_refused for target in targets), Counter())
            for target in targets:
                target.check()
                target.close()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        tracemalloc.stop()
    return {
        "messages": messages,
        "seed": seed,
        "outcomes": dict(outcomes.most_common()),
        "batches_refused_for": dict(refused.most_common()),
        "largest_message_bytes": largest,
        "most_allocated_bytes": excess,
    }


_SCHEMAS: Final = {"counting": counting_schema(), "pictures": frames.SCHEMA}


def _one(rng: random.Random, target: Target) -> tuple[str, int, int]:
    """One message's outcome, its size, and the bytes that were allocated at most while it was dealt with."""
    incarnation = rng.choice(ACTORS)
    if target.core.registry.row_of(incarnation) is None:  # It has said that it leaves.
        target.take(target.join(incarnation))
    message, size = _mutant(rng, target, incarnation)
    if message is None:
        return "no message", size, 0
    tracemalloc.reset_peak()
    held, _ = tracemalloc.get_traced_memory()
    outcome = target.take(message)
    _, peak = tracemalloc.get_traced_memory()
    return outcome, size, peak - held
