"""Made-up episodes of a run: their values are in the spaces, and mean nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import gymnasium
import numpy as np

from common.data import FINAL, FIRST, Array, Items
from common.errors import PluginError
from common.interfaces import Agent, EnvSpec
from common.parts import Parts
from common.spaces import leaves_of, name_of
from learner.datasets.episode_rows import as_sent

POOL: Final = 32
"""The number of different observations and actions that are made up; episodes repeat them."""
LIMIT: Final = 10.0
"""Made-up floats lie between -LIMIT and LIMIT where the space allows it: bounds of 1e38 would overflow in a network."""
WHOLE: Final = np.iinfo(np.int64)
"""A bound of whole numbers at one of these ends counts as none."""
LENGTHS: Final = (40, 7, 1, 23)
"""The steps of the episodes, in turn, in addition to the rows that a view may look ahead."""


def make_up_episodes(parts: Parts, agent: Agent, reach: int, rows: int) -> Iterator[Items]:
    """Make up episodes, each as an actor would send it; every second one ends by truncation.

    Args:
        parts: of the run.
        agent: gives the columns that it records beside its actions. It acts for this, so do not use it afterwards.
        reach: how many rows ahead a draw may look; every fourth episode is shorter.
        rows: of all episodes together, at least.

    Yields:
        Columns ``[n, *shape]`` of ``parts.schema`` of one episode; of a step processor n may be 0.
    """
    pool = _make_pool(parts, agent)
    rng = np.random.default_rng(0)
    made = episode = 0
    while made < rows:
        length = LENGTHS[episode % len(LENGTHS)]
        steps = length if length == min(LENGTHS) else length + reach
        yield as_sent(_make_episode(parts, pool, rng, steps, is_cut=episode % 2 == 1), parts)
        made, episode = made + steps + 1, episode + 1


def _make_pool(parts: Parts, agent: Agent) -> Items:
    """Columns of observations, actions and the agent's extras, ``[POOL, *shape]``."""
    pool = _sample("obs", parts.frames.observation_space) | _sample("action", parts.frames.action_space)
    columns = agent.extra_columns()
    if not columns:
        return pool
    agent.begin(np.ones(POOL, np.bool_))
    agent.sample(_observe(parts.spec))
    extras: dict[str, Any] = dict(agent.extras())
    for column in columns:
        found, shape = np.asarray(extras.get(column.name)), [POOL, *column.shape]
        if [*found.shape] != shape or not np.can_cast(found.dtype, column.dtype, "same_kind"):
            raise PluginError(
                f"agent.extras: '{column.name}' of {POOL} observations: expected {column.numpy_dtype} {shape}, found "
                f"{found.dtype} {[*found.shape]}"
            )
    return pool | {name: column.copy() for name, column in extras.items()}


def _observe(spec: EnvSpec) -> Any:
    """Observations of ``POOL`` lanes as the agent sees them."""
    found = _sample("", spec.observation_space)
    return found.get("", {path.removeprefix("/"): leaf for path, leaf in found.items()})


def _sample(prefix: str, space: gymnasium.Space[Any]) -> Items:
    """Elements of a space as columns, ``[POOL, *shape]``."""
    return {
        name_of(prefix, path): _sample_leaf(leaf, seed) for seed, (path, leaf) in enumerate(leaves_of(space).items())
    }


def _sample_leaf(space: gymnasium.Space[Any], seed: int) -> Array:
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low = np.maximum(space.low, np.minimum(-LIMIT, space.high))
        high = np.minimum(space.high, np.maximum(LIMIT, space.low))
        values = np.random.default_rng(seed).uniform(low, high, (POOL, *space.shape))
        found: Array = np.clip(values.astype(space.dtype), space.low, space.high)
        return found
    own = copy.deepcopy(space)  # So the environment's own space keeps its random state.
    if isinstance(own, gymnasium.spaces.Box):
        # Who writes the ends of 64 bits means no bounds; for these, gymnasium's sample would compute beyond them.
        own.bounded_below &= own.low > WHOLE.min
        own.bounded_above &= own.high < WHOLE.max
    own.seed(seed)
    return np.stack([np.asarray(own.sample(), space.dtype) for _ in range(POOL)])


def _make_episode(parts: Parts, pool: Items, rng: np.random.Generator, steps: int, *, is_cut: bool) -> Items:
    """The rows of one episode as the sampler records them, ``[steps + 1, *shape]``."""
    at, place = rng.integers(POOL, size=steps + 1), np.arange(steps + 1)
    ends = place == steps - 1
    known = {name: column[at] for name, column in pool.items()}
    known |= {"reward": rng.standard_normal(steps + 1), "terminated": ends & (not is_cut), "truncated": ends & is_cut}
    known |= {FIRST.name: place == 0, FINAL.name: place == steps}
    return {
        column.name: known[column.name].astype(column.dtype)
        if column.name in known
        else np.zeros((steps + 1, *column.shape), column.dtype)
        for column in parts.rows.columns
    }
