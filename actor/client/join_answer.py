"""A learner's answers to ``Join`` and ``Check``: first checked against bounds, then read.

Learners set their own limits, and these bounds are wider than any of them. They keep a broken or hostile learner from
making an actor fail in odd ways or allocate without end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from common.config.actor_config import ActorConfig
from common.config.nested import flatten
from common.config.server_config import LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES
from common.data import ENVELOPE_BYTES, ModelVersion, Schema
from common.errors import ProtocolMismatchError
from common.wire.codec import schema_from_pb
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import version_from_pb

DTYPES: Final = frozenset({"|b1", "|i1", "|u1"} | {f"<{kind}{size}" for kind in "iu" for size in (2, 4, 8)}) | {
    "<f2",
    "<f4",
    "<f8",
}
MAX_COLUMNS: Final = 256
MAX_DIMENSIONS: Final = 16
MAX_ROW_BYTES: Final = MOST_MESSAGE_BYTES
"""A row must fit a message."""
MAX_NAME: Final = 256
"""Characters of a column's name, and of a run's id."""
MAX_SEED: Final = 1 << 62
"""The seeds of an actor's later environments are this seed plus 1, 2, 3, …, and must fit 64 bits too."""


@dataclass(frozen=True)
class JoinAnswer:
    """The contents of a learner's answer to ``Join``."""

    actor_id: int
    run_id: str
    seed: int
    epsilon: float
    schema: Schema
    config: ActorConfig
    last_seq: int
    """The number of the last message of this incarnation that the learner has stored; 0 for none."""
    newest: ModelVersion
    max_rows: int
    """Rows in one message."""
    max_message_bytes: int
    """Bytes of one message."""
    takes_zstd: bool
    """Whether the learner takes compressed payloads."""
    epoch: int
    """Grows with each learner that goes on with the run from its mirror; 0: the run has no mirror."""
    is_own_host: bool
    """Whether the learner is on this host, in a process of this user or of root."""

    @property
    def max_batch_rows(self) -> int:
        """The most rows that one message can hold, by both limits."""
        room = self.max_message_bytes - ENVELOPE_BYTES
        return max(1, min(self.max_rows, room // self.schema.row_bytes))

    def for_acting(self) -> JoinAnswer:
        """The answer for an actor that acts: without the wrappers of other actors' environments."""
        env = self.config.env.for_actor(self.actor_id)
        return replace(self, config=self.config.model_copy(update={"env": env}))

    def changes(self, later: JoinAnswer) -> list[str]:
        """The settings of this actor's parts that are different in a later answer, as ``key: before → now``."""
        before, now = self._settings(), later._settings()
        keys = sorted(before.keys() | now.keys())
        return [f"{key}: {before.get(key)} → {now.get(key)}" for key in keys if before.get(key) != now.get(key)]

    def _settings(self) -> Mapping[str, Any]:
        return {**flatten(self.config.model_dump(mode="json")), "exploration epsilon": self.epsilon}


def read_join(response: pb.JoinResponse, *, is_own_host: bool = False) -> JoinAnswer:
    """Check and read an answer to ``Join``.

    Args:
        response: the answer.
        is_own_host: whether whoever gave it is on this host, and this user's or root's; a relay may have passed it on
            from another host.

    Raises:
        ProtocolMismatchError: a number or a column is out of bounds.
        ConfigError: the configuration or the schema contradicts itself.
    """
    limits, bounds = response.limits, f"{LEAST_MESSAGE_BYTES} to {MOST_MESSAGE_BYTES}"
    is_possible = LEAST_MESSAGE_BYTES <= limits.max_message_bytes <= MOST_MESSAGE_BYTES
    _require(is_possible, "limits.max_message_bytes", bounds, limits.max_message_bytes)
    _require(limits.max_rows >= 1, "limits.max_rows", "1 or more", limits.max_rows)
    _require(0 <= response.seed <= MAX_SEED, "seed", f"0 to {MAX_SEED}", response.seed)
    _require(0 <= response.epsilon <= 1, "epsilon", "0 to 1", response.epsilon)
    _require(len(response.run_id) <= MAX_NAME, "run_id", f"up to {MAX_NAME} characters", len(response.run_id))
    return JoinAnswer(
        actor_id=response.actor_id,
        run_id=response.run_id,
        seed=response.seed,
        epsilon=response.epsilon,
        schema=read_schema(response.schema),
        config=read_config(response.config_json),
        last_seq=response.last_seq,
        newest=version_from_pb(response.newest),
        max_rows=limits.max_rows,
        max_message_bytes=limits.max_message_bytes,
        takes_zstd=pb.COMPRESSION_ZSTD in limits.compressions,
        epoch=response.epoch,
        is_own_host=is_own_host and not response.relayed,
    )


def read_config(text: str) -> ActorConfig:
    """Read the actor's part of the learner's configuration.

    Raises:
        ConfigError: the text is no JSON, or no such configuration.
    """
    return ActorConfig.from_json(text, "the learner's configuration")


def read_schema(message: pb.Schema) -> Schema:
    """Check and read the columns of a row.

    Raises:
        ProtocolMismatchError: there are no columns or too many, or no row can have one of them.
        ConfigError: the columns contradict each other.
    """
    _require(1 <= len(message.columns) <= MAX_COLUMNS, "columns", f"1 to {MAX_COLUMNS}", len(message.columns))
    for column in message.columns:
        place = f"column {column.name[:MAX_NAME]!r}"
        _require(len(column.name) <= MAX_NAME, place, f"a name of up to {MAX_NAME} characters", len(column.name))
        _require(
            column.dtype in DTYPES, place, "a little-endian number or bool as dtype", repr(column.dtype[:MAX_NAME])
        )
        _require(len(column.shape) <= MAX_DIMENSIONS, place, f"up to {MAX_DIMENSIONS} dimensions", len(column.shape))
        n_bytes = math.prod(column.shape) * int(column.dtype[2:])
        _require(n_bytes <= MAX_ROW_BYTES, place, f"up to {MAX_ROW_BYTES} bytes", f"{n_bytes}: {list(column.shape)}")
    schema = schema_from_pb(message)
    is_possible = 1 <= schema.row_bytes <= MAX_ROW_BYTES
    _require(is_possible, "columns", f"a row of 1 to {MAX_ROW_BYTES} bytes", schema.row_bytes)
    return schema


def _require(condition: bool, place: str, expected: str, found: object) -> None:
    if not condition:
        raise ProtocolMismatchError(f"the learner's answer: {place}: expected {expected}, found {found}")
