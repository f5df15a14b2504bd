"""Batches that no actor of ours sends, and how ingest refuses them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common.data import Items
from common.wire.codec import encode
from common.wire.pb import crossborder_pb2 as pb
from tests.learner.ingest.by_hand import Client


def flags(row: int, *names: str) -> Items:
    """Columns of five rows, true in one of them."""
    return {name: np.arange(5) == row for name in names}


BAD_BATCHES: dict[str, tuple[Callable[[Client], pb.PushItemsRequest], str, str]] = {
    "a gap": (lambda c: c.batch(2), "bad_items", "actor 0: seq: expected 1, found 2"),
    "another schema": (lambda c: c.batch(1, schema_hash=1), "schema_mismatch", "schema: expected"),
    "a batch without a seq": (
        lambda c: c.batch(0),
        "bad_items",
        "seq: expected 1 or more for a batch of 5 rows, found 0",
    ),
    "no boolean": (
        lambda c: c.batch(1, payload=encode(c.schema, c.items(0, 5), 5)[:-11] + b"\x02" + bytes(10)),
        "bad_items",
        "column 'final': expected booleans of 0 or 1",
    ),
    "no rows": (lambda c: c.batch(1, rows=0), "bad_items", "rows: expected 1 to 62500, found 0"),
    "too many rows": (lambda c: c.batch(1, rows=62_501), "bad_items", "found 62501"),
    "truncated bytes": (lambda c: c.batch(1, payload=b"123"), "bad_items", "payload: expected 170 bytes"),
    "another count": (lambda c: c.batch(1, rows=4), "bad_items", "payload: expected 136 bytes for 4 rows, found 170"),
    "not a number": (
        lambda c: c.batch(1, payload=encode(c.schema, {**c.items(0, 5), "reward": np.full(5, np.nan, "<f4")}, 5)),
        "bad_items",
        "column 'reward': expected finite values, found nan in row 0",
    ),
    "an action that the environment does not have": (
        lambda c: c.batch(1, payload=encode(c.schema, {**c.items(0, 5), "action": np.array([0, 2, 3, 0, 7])}, 5)),
        "bad_items",
        "actor 0: column 'action': expected 0 to 2, found 3 in row 2",
    ),
    "an episode that begins with its end": (
        lambda c: c.batch(1, payload=encode(c.schema, {**c.items(0, 5), **flags(3, "first", "final")}, 5)),
        "bad_items",
        "actor 0: column 'first': expected False in a final row, found True in row 3",
    ),
    "a final row that is a step": (
        lambda c: c.batch(1, payload=encode(c.schema, {**c.items(0, 5), **flags(0, "truncated", "final")}, 5)),
        "bad_items",
        "actor 0: column 'truncated': expected False in a final row, found True in row 0",
    ),
    "an episode that goes on after its final row": (
        lambda c: c.batch(1, payload=encode(c.schema, {**c.items(0, 5), **flags(1, "final")}, 5)),
        "bad_items",
        "actor 0: column 'first': expected True after a final row of its lane, found False in row 2",
    ),
    "an episode that goes on after it was truncated": (
        lambda c: c.batch(1, payload=encode(c.schema, {**c.items(0, 5), **flags(2, "truncated")}, 5)),
        "bad_items",
        "actor 0: column 'final': expected True after a truncated row of its lane, found False in row 3",
    ),
    "a score of an actor that does not evaluate": (
        lambda c: c.batch(1, report=pb.Report(score=pb.Score(score=1.0))),
        "bad_items",
        "actor 0: score: expected none of an actor that did not join to evaluate",
    ),
    "lengths without returns": (
        lambda c: c.batch(1, report=pb.Report(episode_lengths=[3])),
        "bad_items",
        "as many episode lengths as returns",
    ),
    "more successes than episodes": (
        lambda c: c.batch(1, report=pb.Report(episode_successes=[True])),
        "bad_items",
        "report: expected at most 0 episode successes",
    ),
    "a return that is not finite": (
        lambda c: c.batch(1, report=pb.Report(episode_returns=[float("inf")], episode_lengths=[3])),
        "bad_items",
        "report: expected finite episode returns",
    ),
    "a return that no sum of rewards can be": (
        lambda c: c.batch(1, report=pb.Report(episode_returns=[1e308, -1e308], episode_lengths=[3, 3])),
        "bad_items",
        "report: expected finite episode returns with a sum up to 3.40282e+38, found 1e+308",
    ),
    "seconds that cannot be": (
        lambda c: c.batch(1, report=pb.Report(env_seconds=float("nan"))),
        "bad_items",
        "'env_seconds': nan",
    ),
    "seconds before the first": (
        lambda c: c.batch(1, report=pb.Report(wait_seconds=-1.0)),
        "bad_items",
        "'wait_seconds': -1.0",
    ),
    "more steps than can be": (
        lambda c: c.batch(1, report=pb.Report(env_steps=2**64 - 1)),
        "bad_items",
        "report: expected figures from 0 with a sum up to 9007199254740992, found {'env_steps': 18446744073709551615",
    ),
    "a version that cannot be": (
        lambda c: c.batch(1, behaviour=pb.ModelVersion(opt_steps=2**64 - 1)),
        "bad_items",
        "behaviour: expected opt steps up to 9007199254740992, found 18446744073709551615",
    ),
    "somebody who has not joined": (
        lambda c: c.batch(1, incarnation=5),
        "not_joined",
        "0000000000000005 has not joined",
    ),
}
