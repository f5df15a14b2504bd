"""The steps of lanes, read from a client's message and checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from common.action_masks import MASK
from common.bad_values import LARGEST_VALUE
from common.data import Array, Leaves
from common.leaves import empty_leaves, pick_leaves
from common.spaces import AnySpace
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError


class LaneSteps(Protocol):
    """A client's step, as ``LaneSteps`` of ``acting.proto`` says it, through whichever door it came."""

    @property
    def seq(self) -> int: ...
    @property
    def lanes(self) -> Sequence[int]: ...
    @property
    def observation(self) -> bytes: ...
    @property
    def reward(self) -> Sequence[float]: ...
    @property
    def terminated(self) -> Sequence[bool]: ...
    @property
    def truncated(self) -> Sequence[bool]: ...
    @property
    def restarted(self) -> Sequence[bool]: ...
    @property
    def executed(self) -> bytes: ...
    @property
    def intervened(self) -> Sequence[bool]: ...


Request = LaneSteps | pb.ClientReport | pb.CloseSession | pb.OpenSession | pb.ResumeSession | None
"""What a client asks for; None: nothing. The first request of a connection opens or resumes a session."""


@dataclass(slots=True)  # Not frozen: that would take three times as long to construct.
class ClientSteps:
    """Where k lanes are, and how the steps before went; all arrays ``[k]``, leaves ``[k, *shape]``.

    Args:
        lanes: int64, their numbers among all lanes of the service, all different.
        begins: bool, the observation begins an episode; the step before does not count.
        obs: the present observations.
        reward: float64, of the steps before.
        terminated: bool, the episode ended by its own rules.
        truncated: bool, the episode was cut off from outside.
        executed: the actions that were executed, where somebody else acted; None: those of the policy everywhere.
        intervened: bool, somebody else acted.
        ends: bool, the episode has ended in one of the two ways.
    """

    lanes: Array
    begins: Array
    obs: Leaves
    reward: Array
    terminated: Array
    truncated: Array
    executed: Leaves | None
    intervened: Array
    ends: Array


def read_lanes(found: Sequence[int], n: int) -> Array:
    """The lanes that a step of a session with n lanes names, by the client's own count, ``[k]`` int64.

    Raises:
        BadMessageError: there is no such lane, or one is named twice.
    """
    if len(found) > n or max(found) >= n:
        raise BadMessageError(f"lanes: expected numbers below {n}, the session's lanes, found {list(found)[:16]}")
    if len(set(found)) < len(found):
        raise BadMessageError(f"lanes: expected numbers that are all different, found {list(found)[:16]}")
    return np.array(found, np.int64)


def read_steps(step: LaneSteps, own: Array, lanes: Array, begins: Array, description: Description) -> ClientSteps:
    """Read the step of these lanes.

    Args:
        step: the message.
        own: their numbers by the client's own count, ``[k]`` int64.
        lanes: see ``ClientSteps``.
        begins: where an episode must begin, since the lane is new or its last episode has ended, ``[k]`` bool.
        description: of observations and actions.

    Raises:
        BadMessageError: it breaks a rule of ``acting.proto``.
    """
    k = len(lanes)
    if step.intervened and not step.executed:
        raise BadMessageError("intervened: expected executed beside it, found none")
    if step.executed and not description.takes_executed:
        raise BadMessageError("executed: expected none: without env.intervention, rows cannot say that others acted")
    reward, no = _read_reward(step.reward, k), np.zeros(k, bool)  # Most messages have no flags: they share an array.
    terminated = _read_flags("terminated", step.terminated, k) if step.terminated else no
    truncated = _read_flags("truncated", step.truncated, k) if step.truncated else no
    intervened = _read_flags("intervened", step.intervened, k) if step.intervened else no
    steps = ClientSteps(
        lanes=lanes,
        begins=begins | _read_flags("restarted", step.restarted, k) if step.restarted else begins,
        obs=description.read_observation(step.observation, k),
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        executed=description.read_action(step.executed, k) if step.executed else None,
        intervened=intervened,
        ends=no if terminated is truncated else terminated | truncated,
    )
    if np.count_nonzero(steps.begins):
        _require_clean_begin(steps, own)
    _require_allowed(steps, own, description)
    return steps


def _require_clean_begin(steps: ClientSteps, own: Array) -> None:
    """Check that nothing is told of a step before where an episode begins."""
    odd = steps.begins & (steps.ends | (steps.reward != 0) | steps.intervened)
    if odd.any():
        raise BadMessageError(
            f"step: expected neither a reward, an end nor an intervention where the episode of lane {own[odd][0]} "
            "begins, found one: they belong to the step before"
        )


def _require_allowed(steps: ClientSteps, own: Array, description: Description) -> None:
    """Look at the action masks in observations."""
    if description.masks is None:
        return
    goes_on = np.flatnonzero(~steps.terminated)
    found = description.masks.find_dead_ends(pick_leaves(steps.obs, goes_on))
    if len(found):
        raise BadMessageError(
            f"observation: leaf '{MASK}': expected at least one allowed action in lane {own[goes_on[found[0]]]}, found "
            "none; only the last observation of a terminated episode may allow none"
        )


def _read_reward(found: Sequence[float], k: int) -> Array:
    """The reward of each of k lanes; zeros if none is given."""
    if not found:
        return np.zeros(k)
    _require_count("reward", found, k)
    if not (math.isfinite(sum(found)) and min(found) >= -LARGEST_VALUE and max(found) <= LARGEST_VALUE):
        bad = next(value for value in found if not abs(value) <= LARGEST_VALUE)  # No comparison with NaN is true.
        raise BadMessageError(f"reward: expected numbers from {-LARGEST_VALUE:g} to {LARGEST_VALUE:g}, found {bad}")
    return np.fromiter(found, np.float64, k)  # A third of the time of np.array, which asks for each number twice.


def _read_flags(name: str, found: Sequence[bool], k: int) -> Array:
    _require_count(name, found, k)
    return np.fromiter(found, bool, k)


def _require_count(name: str, found: Sequence[Any], k: int) -> None:
    if len(found) != k:
        raise BadMessageError(f"{name}: expected {k}, one for each lane, or none, found {len(found)}")


def join_steps(parts: Sequence[ClientSteps], action_space: AnySpace) -> ClientSteps:
    """The steps of different lanes as one object."""
    if len(parts) == 1:
        return parts[0]
    executed = None
    if any(steps.executed is not None for steps in parts):
        executed = _join(
            [
                empty_leaves(action_space, len(steps.lanes)) if steps.executed is None else steps.executed
                for steps in parts
            ]
        )
    return ClientSteps(
        lanes=np.concatenate([steps.lanes for steps in parts]),
        begins=np.concatenate([steps.begins for steps in parts]),
        obs=_join([steps.obs for steps in parts]),
        reward=np.concatenate([steps.reward for steps in parts]),
        terminated=np.concatenate([steps.terminated for steps in parts]),
        truncated=np.concatenate([steps.truncated for steps in parts]),
        executed=executed,
        intervened=np.concatenate([steps.intervened for steps in parts]),
        ends=np.concatenate([steps.ends for steps in parts]),
    )


def _join(parts: Sequence[Leaves]) -> Leaves:
    first = parts[0]
    if isinstance(first, dict):
        return {path: np.concatenate([part[path] for part in parts]) for path in first}
    return np.concatenate(parts)  # type: ignore[arg-type] # no part is a dict
