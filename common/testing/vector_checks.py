"""Checks a vector environment, and spaces."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from common.action_masks import RandomActions
from common.data import Array
from common.lanes.building import lanes_of
from common.lanes.lanes import Lanes
from common.lanes.vector_lanes import autoreset_mode, declares_autoreset
from common.spaces import columns_of, to_columns
from common.testing.play import explaining


def check_space(name: str, space: Any) -> None:
    """Check that the elements of a space can be recorded."""
    assert isinstance(space, gymnasium.Space), f"{name} is {space!r}: set it to a gymnasium.Space in __init__"
    with explaining(f"the parts of {name} must each have one dtype and one shape, and keys without '/'"):
        columns_of("obs", space)


def check_vector_env(env: Any, steps: int) -> None:
    """Check that a vector environment steps all its lanes, and begins episodes as its autoreset mode says.

    Args:
        env: with the interface of ``gymnasium.vector.VectorEnv``.
        steps: the number of steps to play, with random actions.

    Raises:
        AssertionError: naming what does not fit and what to do.
    """
    for name in ("single_observation_space", "single_action_space"):
        check_space(name, getattr(env, name, None))
    with explaining("metadata['autoreset_mode'] must be a gymnasium.vector.AutoresetMode"):
        mode = autoreset_mode(env)
    assert declares_autoreset(env) or hasattr(env, "all_env_ids"), (
        "metadata has no 'autoreset_mode': set metadata = {'autoreset_mode': gymnasium.vector.AutoresetMode.…}, "
        "SAME_STEP if a step that ends an episode also begins the next one"
    )
    with explaining("the lanes cannot be made: num_envs must say how many there are"):
        lanes = lanes_of(env)
    with explaining(f"reset(seed=…) or step(actions) failed, with autoreset {mode.value}"):
        rewards, begun = _play(lanes, steps)
    assert np.isfinite(rewards).all(), "step() gave rewards that are not finite: rows must be finite"
    if mode is not AutoresetMode.DISABLED:
        assert begun, f"no lane began another episode in {steps} steps: play more steps="


def _play(lanes: Lanes, steps: int) -> tuple[Array, int]:
    """Play; return all rewards, and the number of episodes that began, without the first episode of each lane."""
    actions = RandomActions(lanes.spec, lanes.n, 0)
    lanes.reset(0)
    rewards, begun = [], -lanes.n
    for _ in range(steps):
        obs = lanes.observe()
        begun += 0 if lanes.begins is None else int(np.count_nonzero(lanes.begins))
        for name, leaf in to_columns("obs", obs).items():
            assert leaf.dtype.kind != "f" or np.isfinite(leaf).all(), f"'{name}' is not finite"
        outcome = lanes.step(actions.draw(obs))
        assert outcome.terminated.shape == outcome.truncated.shape == outcome.reward.shape == (lanes.n,), (
            f"expected a reward and two flags for each of {lanes.n} lanes"
        )
        rewards.append(outcome.reward if outcome.taken is None else outcome.reward[outcome.taken])
    return np.concatenate(rewards), begun
