"""Checks an environment."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from common.action_masks import MASK, OBEY, ActionMasks, RandomActions, find_masks
from common.data import Array, Leaves
from common.lanes.building import Env, lanes_of, spec_of
from common.lanes.interface_faults import Call, require_interface
from common.lanes.lanes import Lanes
from common.lanes.vector_lanes import autoreset_mode, declares_autoreset, is_vector
from common.spaces import columns_of, flatten, leaves_of, to_columns, unflatten
from crossborder.testing.play import Policy, explaining, play, random_policy, record_leaves

log = logging.getLogger(__name__)


def check_env(env: Any, *, steps: int = 300, policy: Policy | None = None) -> None:
    """Check that agents can act in an environment and be evaluated in it, and that its data can be recorded and sent.

    Args:
        env: a ``gymnasium.Env`` or a vector environment; it is reset and stepped.
        steps: the number of steps to play.
        policy: chooses actions if random actions are not allowed; only for a ``gymnasium.Env``.
    """
    if is_vector(env):
        check_vector_env(env, steps)
        return
    assert isinstance(env, gymnasium.Env), (
        f"expected a gymnasium.Env or VectorEnv, found {type(env).__name__}: derive from one of them"
    )
    for name in ("observation_space", "action_space"):
        check_space(name, getattr(env, name, None))
    with explaining("the mask of actions does not fit the action space"):
        masks = find_masks(spec_of(env))
    _check_reset(env, masks)
    _check_step(env, policy)
    episodes = play(env, steps, policy=policy)
    for step in (step for episode in episodes for step in episode):
        assert math.isfinite(step.reward), f"step() gave a reward of {step.reward}: rows must be finite"
        check_leaves(step.next_obs, spec_of(env).observation_space, "step()")
        if masks is not None and not step.terminated:
            _check_mask(masks, step.next_obs, "step()")
    _check_seeding(env, steps, policy)


def _check_mask(masks: ActionMasks, obs: Leaves, where: str) -> None:
    """Check that an action is allowed after an observation, ``[*shape]`` of each leaf."""
    assert isinstance(obs, dict)
    is_stuck = len(masks.find_dead_ends({path: leaf[None] for path, leaf in obs.items()})) > 0
    assert not is_stuck, (
        f"{where} gave an {MASK} that allows no action: end the episode with terminated where nothing can be done"
    )


def _check_reset(env: Env, masks: ActionMasks | None) -> None:
    found = _call(env, "reset", lambda: env.reset(seed=7, options=None))
    is_pair = isinstance(found, tuple) and len(found) == 2
    assert is_pair, f"reset() gave {found!r}: return observation, info"
    _check_observation(env, found[0], "reset()")
    assert isinstance(found[1], dict), (
        f"reset() gave an info of {type(found[1]).__name__}: return a dict, even if it is empty"
    )
    if masks is not None:
        log.info("agents obey the leaf %s of observations", MASK)
        _check_mask(masks, record_leaves(spec_of(env).observation_space, found[0]), "reset()")
    elif MASK in found[1]:
        log.warning("info has an %s, which agents do not obey: %s", MASK, OBEY)


def _call(env: Env, call: Call, act: Callable[[], Any]) -> Any:
    """The result of a call; an exception of it is raised again, or explained if it shows another interface."""
    try:
        return act()
    except Exception as error:
        with explaining(f"{call}() failed"):
            require_interface("env", call, error, env.action_space)
        raise


def _check_step(env: Env, policy: Policy | None) -> None:
    obs, _ = env.reset(seed=7)
    choose = policy or random_policy(env, 7)
    action = unflatten(env.action_space, choose(record_leaves(spec_of(env).observation_space, obs)))
    found = _call(env, "step", lambda: env.step(action))
    is_five = isinstance(found, tuple) and len(found) == 5
    assert is_five, f"step() gave {found!r}: return observation, reward, terminated, truncated, info"
    obs, reward, terminated, truncated, info = found
    assert isinstance(info, dict), f"step() gave an info of {type(info).__name__}: return a dict, even if it is empty"
    _check_observation(env, obs, "step()")
    with explaining(f"step() gave a reward of {reward!r}: return a number"):
        assert not np.shape(np.asarray(reward)), "it has dimensions"
        assert np.asarray(reward).dtype.kind in "biuf", "it is no number"
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        assert isinstance(value, (bool, np.bool_)), f"step() gave {name} = {value!r}: return a bool"


def _check_observation(env: Env, obs: Any, where: str) -> None:
    """Check that each leaf of an observation, as the environment gives it, is in its space."""
    with explaining(f"{where} gave an observation with other parts than the observation space: {obs!r}"):
        parts = dict(_parts_of(env.observation_space, obs, ""))
    for path, (space, part) in parts.items():
        what = f"an observation{f' {path}' if path else ''}"
        with explaining(f"{where} gave {what} that is no array"):
            found = np.asarray(part)
        _check_leaf(space, found, f"{where} gave", what)


def _parts_of(space: Any, value: Any, path: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(space, gymnasium.spaces.Dict):
        assert set(value) == set(space.spaces), f"expected the keys {sorted(space.spaces)}, found {sorted(value)}"
        for key, part in space.spaces.items():
            yield from _parts_of(part, value[key], f"{path}/{key}" if path else key)
    elif isinstance(space, gymnasium.spaces.Tuple):
        assert len(value) == len(space.spaces), f"expected {len(space.spaces)} parts, found {len(value)}"
        for index, part in enumerate(space.spaces):
            yield from _parts_of(part, value[index], f"{path}/{index}" if path else str(index))
    else:
        yield path, (space, value)


def _check_leaf(space: Any, found: Array, where: str, what: str) -> None:
    assert found.dtype == space.dtype, (
        f"{where} {what} of {found.dtype}, its space wants {space.dtype}: return np.array(…, np.{space.dtype})"
    )
    assert found.shape == space.shape, (
        f"{where} {what} of shape {list(found.shape)}, its space wants {list(space.shape or ())}"
    )
    finite = found.dtype.kind != "f" or np.isfinite(found).all()
    assert finite, f"{where} {what} that is not finite: {found}"
    assert space.contains(found[()] if space.shape == () else found), (
        f"{where} {what} outside its space: {found} is not in {space}; widen the space or clip"
    )


def check_leaves(leaves: Leaves, space: Any, where: str) -> None:
    """Check that recorded leaves are elements of a space."""
    for path, leaf in leaves_of(space).items():
        found = np.asarray(leaves[path] if isinstance(leaves, dict) else leaves)
        _check_leaf(leaf, found, f"{where} gave", f"an observation{f' {path}' if path else ''}")


def _check_seeding(env: Env, steps: int, policy: Policy | None) -> None:
    first, second = env.reset(seed=11)[0], env.reset(seed=11)[0]
    advice = "pass the seed to super().reset(seed=seed), draw from self.np_random, and keep nothing over episodes"
    assert _same(env, first, second), f"reset(seed=…) twice gave different observations: {advice}"
    lives = [play(env, steps, seed=11, policy=policy) for _ in range(2)]
    for number, (one, other) in enumerate(zip(*([step for e in life for step in e] for life in lives), strict=True)):
        assert _same_outcome(one, other), (
            f"the same actions after the same reset(seed=…) gave something else at step {number + 1}: {advice}"
        )


def _same_outcome(one: Any, other: Any) -> bool:
    ends = [(step.reward, step.terminated, step.truncated) for step in (one, other)]
    leaves = [to_columns("obs", step.next_obs) for step in (one, other)]
    return ends[0] == ends[1] and all(np.array_equal(leaves[0][name], leaves[1][name]) for name in leaves[0])


def _same(env: Env, one: Any, other: Any) -> bool:
    space = env.observation_space
    pairs = [to_columns("obs", flatten(space, obs)) for obs in (one, other)]
    return all(np.array_equal(pairs[0][name], pairs[1][name]) for name in pairs[0])


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
