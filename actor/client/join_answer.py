"""A learner's answers to ``Join`` and ``Check``: read, and held against bounds before anything is made by them.

Learners set their own limits; these bounds are wider than any of them. They keep a broken or hostile learner from
having an actor fail in odd ways or allocate without end.
"""

from __future__ import annotations

import json
import math
from typing import Final

from common.config.run_config import ActorConfig
from common.config.server_config import LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES
from common.data import Schema
from common.errors import ConfigError, ProtocolMismatchError
from common.settings import validate
from common.wire.codec import schema_from_pb
from common.wire.pb import crossborder_pb2 as pb

DTYPES: Final = frozenset({"|b1", "|i1", "|u1"} | {f"<{kind}{size}" for kind in "iu" for size in (2, 4, 8)}) | {
    "<f2",
    "<f4",
    "<f8",
}
MAX_COLUMNS: Final = 256
MAX_DIMENSIONS: Final = 16
MAX_ITEM_BYTES: Final = MOST_MESSAGE_BYTES
"""An item must fit a message."""
MAX_NAME: Final = 256
"""Characters of a column's name, and of a run's."""
MAX_SEED: Final = 1 << 62
"""Seeds of later environments and episodes are counted up from there."""


def config_from_json(text: str) -> ActorConfig:
    """The actor's part of the learner's configuration.

    Raises:
        ConfigError: it is no JSON, or no such configuration.
    """
    where = "the learner's configuration"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: broken JSON, or an integer of too many digits.
        raise ConfigError(f"{where}: expected JSON, found {len(text)} characters that are none: {error}") from error
    return validate(ActorConfig, values, where)


def checked_schema(message: pb.Schema) -> Schema:
    """The columns of an item.

    Raises:
        ProtocolMismatchError: a column cannot be what items have.
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
        _require(n_bytes <= MAX_ITEM_BYTES, place, f"up to {MAX_ITEM_BYTES} bytes", f"{n_bytes}: {list(column.shape)}")
    return schema_from_pb(message)


def check_join(response: pb.JoinResponse) -> None:
    """See that the numbers in an answer to ``Join`` are possible.

    Raises:
        ProtocolMismatchError: one is not.
    """
    limits, bounds = response.limits, f"{LEAST_MESSAGE_BYTES} to {MOST_MESSAGE_BYTES}"
    is_possible = LEAST_MESSAGE_BYTES <= limits.max_message_bytes <= MOST_MESSAGE_BYTES
    _require(is_possible, "limits.max_message_bytes", bounds, limits.max_message_bytes)
    _require(limits.max_rows >= 1, "limits.max_rows", "1 or more", limits.max_rows)
    _require(0 <= response.seed <= MAX_SEED, "seed", f"0 to {MAX_SEED}", response.seed)
    _require(0 <= response.epsilon <= 1, "epsilon", "0 to 1", response.epsilon)
    _require(len(response.run_id) <= MAX_NAME, "run_id", f"up to {MAX_NAME} characters", len(response.run_id))


def _require(condition: bool, place: str, expected: str, found: object) -> None:
    if not condition:
        raise ProtocolMismatchError(f"the learner's answer: {place}: expected {expected}, found {found}")
