"""The conformance of an environment."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from common.envs import Env, box_observations, column_of
from common.testing.play import Policy, explaining, play


def check_env(env: Env, *, steps: int = 300, policy: Policy | None = None) -> None:
    """See that an environment is one that can be acted in, evaluated on, and sent over the wire.

    Args:
        env: not vectorised; it is reset and stepped.
        steps: how far it is played.
        policy: how to act where random actions are not allowed.

    Raises:
        AssertionError: naming what does not fit and what to do.
    """
    assert isinstance(env, gymnasium.Env), f"expected a gymnasium.Env, found {type(env).__name__}: derive from it"
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        assert isinstance(space, gymnasium.Space), f"{name} is {space!r}: set it to a gymnasium.Space in __init__"
    env = box_observations(env)
    for name, space in (("observation_space", env.observation_space), ("action_space", env.action_space)):
        with explaining(f"{name} must have one dtype and one shape: flatten it, for example with gymnasium.wrappers"):
            column_of(name, space)
    _check_reset(env)
    _check_step(env, policy)
    episodes = play(env, steps, policy=policy)
    for step in (step for episode in episodes for step in episode):
        _check_observation(env, step.next_obs, "step()")
        assert math.isfinite(step.reward), f"step() gave a reward of {step.reward}: items must be finite"
    _check_seeding(env, steps, policy)


def _check_reset(env: Env) -> None:
    with explaining("reset(seed=…) failed: define reset(self, *, seed=None, options=None)"):
        found = env.reset(seed=7)
    is_pair = isinstance(found, tuple) and len(found) == 2
    assert is_pair, f"reset() gave {found!r}: return observation, info"
    _check_observation(env, found[0], "reset()")
    assert isinstance(found[1], dict), (
        f"reset() gave an info of {type(found[1]).__name__}: return a dict, also if empty"
    )


def _check_step(env: Env, policy: Policy | None) -> None:
    obs, _ = env.reset(seed=7)
    found = env.step(policy(obs) if policy else env.action_space.sample())
    is_five = isinstance(found, tuple) and len(found) == 5
    assert is_five, f"step() gave {found!r}: return observation, reward, terminated, truncated, info"
    obs, reward, terminated, truncated, _ = found
    _check_observation(env, obs, "step()")
    with explaining(f"step() gave a reward of {reward!r}: return a number"):
        float(reward)
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        assert isinstance(value, (bool, np.bool_)), f"step() gave {name} = {value!r}: return a bool"


def _check_observation(env: Env, obs: Any, where: str) -> None:
    space, found = env.observation_space, np.asarray(obs)
    assert found.dtype == space.dtype, (
        f"{where} gave observations of {found.dtype}, the observation space wants {space.dtype}: "
        f"return np.array(…, np.{space.dtype})"
    )
    assert found.shape == space.shape, (
        f"{where} gave an observation of shape {list(found.shape)}, the observation space wants "
        f"{list(space.shape or ())}"
    )
    finite = found.dtype.kind != "f" or np.isfinite(found).all()
    assert finite, f"{where} gave an observation that is not finite: {found}"
    assert space.contains(found[()] if space.shape == () else found), (
        f"{where} gave an observation outside the observation space: {found} is not in {space}; widen the space or clip"
    )


def _check_seeding(env: Env, steps: int, policy: Policy | None) -> None:
    first, second = env.reset(seed=11)[0], env.reset(seed=11)[0]
    advice = "is the seed passed to super().reset(seed=seed) and self.np_random used, and nothing else kept?"
    assert np.array_equal(first, second), f"reset(seed=…) twice gave different observations: {advice}"
    lives = [play(env, steps, seed=11, policy=policy) for _ in range(2)]
    for number, (one, other) in enumerate(zip(*([step for e in life for step in e] for life in lives), strict=True)):
        assert _same_outcome(one, other), (
            f"the same actions after the same reset(seed=…) gave something else at step {number + 1}: {advice}"
        )


def _same_outcome(one: Any, other: Any) -> bool:
    ends = [(step.reward, step.terminated, step.truncated) for step in (one, other)]
    return ends[0] == ends[1] and np.array_equal(one.next_obs, other.next_obs)
