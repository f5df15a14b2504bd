from __future__ import annotations

import numpy as np
import pytest

from common.codec import decode, encode
from common.data import Column, Items, Schema
from common.errors import RefusedError
from learner.ingest.nonfinite import NonFinite

SCHEMA = Schema((Column("obs", "<f4", (2,)), Column("reward", "<f2"), Column("n", "<i8")))
STACKED = Schema((Column("x", "<f4", (2, 2), frames=True), Column("reward", "<f4")))
NAN, INF = np.nan, np.inf


def items(reward: list[float], obs: float = 0.0) -> Items:
    made = SCHEMA.empty(len(reward))
    made["obs"][:], made["reward"][:], made["n"][:] = obs, reward, 7
    return made


def test_nan_becomes_0_infinity_the_bound_and_what_is_finite_stays() -> None:
    nonfinite = NonFinite(SCHEMA, {"reward": 10.0})
    payload = encode(SCHEMA, items([NAN, INF, -INF, 500.0]), 4)
    assert decode(SCHEMA, 4, payload, nonfinite).columns["reward"].tolist() == [0.0, 10.0, -10.0, 500.0]
    assert nonfinite.found == {"obs": 0, "reward": 3}


def test_a_column_without_a_bound_is_refused_and_counted() -> None:
    nonfinite = NonFinite(SCHEMA, {"reward": 10.0})
    with pytest.raises(RefusedError, match="column 'obs': expected finite values, found inf in row 0"):
        decode(SCHEMA, 2, encode(SCHEMA, items([0.0, 1.0], obs=INF), 2), nonfinite)
    assert nonfinite.found == {"obs": 4, "reward": 0}


def test_frames_are_one_column() -> None:
    nonfinite = NonFinite(STACKED, {"frames": 1.0})
    stacks: Items = {"x": np.array([[[0, 1], [2, NAN]]], np.float32), "reward": np.zeros(1, np.float32)}
    assert decode(STACKED, 1, encode(STACKED, stacks, 1), nonfinite).frames.tolist() == [[0, 1], [2, 0]]
    assert nonfinite.found == {"frames": 1, "reward": 0}
