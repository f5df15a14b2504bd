"""The steps of a client, read from a message and checked: everything that needs no knowledge of its episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.data import Array, Leaves
from common.wire.pb import acting_pb2 as pb
from crossborder.serving.description import Description
from learner.ingest.refusals import BadMessageError


@dataclass(frozen=True)
class Moment:
    """Where k lanes of a session are, and how their last steps went; all arrays ``[k]``, leaves ``[k, *shape]``.

    Args:
        seq: of the step.
        lanes: int64, by the client's own count, all different.
        obs: the present observations.
        reward: float64, of the steps before.
        terminated: bool, the episode ended by its own rules.
        truncated: bool, the episode was cut off from outside.
        restarted: bool, the episode before broke off without an end.
        executed: the actions that were executed, where somebody else acted; None: those of the policy.
        intervened: bool, somebody else acted.
    """

    seq: int
    lanes: Array
    obs: Leaves
    reward: Array
    terminated: Array
    truncated: Array
    restarted: Array
    executed: Leaves | None
    intervened: Array

    @property
    def ends(self) -> Array:
        """Where the episode has ended, ``[k]`` bool."""
        ends: Array = self.terminated | self.truncated
        return ends


def read_step(step: pb.LaneSteps, n: int, description: Description) -> Moment:
    """Read a step of a session with n lanes.

    Raises:
        BadMessageError: it breaks a rule of ``acting.proto``.
    """
    lanes = _read_lanes(step.lanes, n)
    k = len(lanes)
    reward = _read_each("reward", step.reward, k, np.float64)
    if not np.isfinite(reward).all():
        raise BadMessageError(f"reward: expected finite numbers, found {reward[~np.isfinite(reward)][0]}")
    if step.intervened and not step.executed:
        raise BadMessageError("intervened: expected executed beside it, found none")
    return Moment(
        seq=step.seq,
        lanes=lanes,
        obs=description.read_observation(step.observation, k),
        reward=reward,
        terminated=_read_each("terminated", step.terminated, k, np.bool_),
        truncated=_read_each("truncated", step.truncated, k, np.bool_),
        restarted=_read_each("restarted", step.restarted, k, np.bool_),
        executed=description.read_action(step.executed, k) if step.executed else None,
        intervened=_read_each("intervened", step.intervened, k, np.bool_),
    )


def _read_lanes(found: Sequence[int], n: int) -> Array:
    if not found:
        return np.arange(n)
    if len(found) > n or max(found) >= n:
        raise BadMessageError(f"lanes: expected numbers below {n}, the session's lanes, found {list(found)[:16]}")
    if len(set(found)) < len(found):
        raise BadMessageError(f"lanes: expected numbers that are all different, found {list(found)[:16]}")
    return np.array(found, np.int64)


def _read_each(name: str, found: Sequence[Any], k: int, dtype: type) -> Array:
    """The value of each of k lanes; zeros if none is given."""
    if not found:
        return np.zeros(k, dtype)
    if len(found) != k:
        raise BadMessageError(f"{name}: expected {k}, one for each lane, or none, found {len(found)}")
    return np.array(found, dtype)
