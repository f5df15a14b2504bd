"""A policy that takes single observations as the environment gives them, or arrays of observations of some lanes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from common.data import Array, Leaves, Model, ModelVersion
from common.errors import ConfigError, PluginError
from common.interfaces import Agent, EnvSpec, LaneAgent, acting_for_lanes
from common.lanes.stacking import Stacker
from common.leaves import by_path, describe_misfit, pick_leaves, stack_lanes
from common.spaces import UNREADABLE, flatten, leaves_of, unflatten


class Policy:
    """Greedy actions for single observations of any space, whereas ``Agent.sample`` takes batches of arrays.

    The policy may remember the present episode, as an agent with a memory or with stacks of frames does. So call
    ``begin`` before each further episode; the first episode needs no call.

    A program that plays several episodes at the same time numbers them, and names in each call the ``lanes`` that its
    observations belong to. Without ``lanes``, the only lane is lane 0.

    Args:
        agent: in eval mode.
        frames: the spaces of the environment, as they are recorded.
        frame_stack: the number of frames that the agent sees in one observation.
        opt_steps: the opt steps after which the policy was saved.
    """

    def __init__(self, agent: Agent, frames: EnvSpec, frame_stack: int = 1, opt_steps: int = 0) -> None:
        self.agent, self.spec, self.opt_steps = agent, frames, opt_steps
        self._stacker = Stacker(frames, 1, frame_stack)
        self._shapes = {path: leaf.shape for path, leaf in leaves_of(frames.observation_space).items()}
        self._begun: set[int] = set()  # The lanes whose episodes go on.
        self._has_lanes = False

    def explore(self) -> None:
        """Explore from now on, as the run's actor with the least exploration did with this model."""
        set_opt_steps(self.agent, self.opt_steps)
        self.agent.train()

    def begin(self, lanes: Sequence[int] | None = None) -> None:
        """Note that the next observation begins an episode, in these lanes or in all.

        Raises:
            PluginError: a lane is no number of 0 or more.
        """
        self._begun = set() if lanes is None else self._begun.difference(_read_lanes(lanes))

    def __call__(self, observation: Any, lanes: Sequence[int] | None = None) -> Any:
        """Choose an action for one observation; it can be passed to the environment's ``step``.

        With ``lanes``, choose a list of actions for a sequence of as many observations; all lanes are different.

        Raises:
            PluginError: the agent cannot act for some of its lanes; there are not as many observations as lanes, or a
                lane twice, or a lane is no number of 0 or more; or an observation does not fit its space, or has values
                that are not finite.
        """
        self._has_lanes = self._has_lanes or lanes is not None
        if lanes is not None:
            return self._choose(observation, _read_lanes(lanes))
        return self._choose([observation], [0])[0]

    def _choose(self, observations: Sequence[Any], lanes: Sequence[int]) -> list[Any]:
        if not len(observations) == len(lanes) == len(set(lanes)):
            raise PluginError(
                f"policy: expected an observation for each of the lanes {list(lanes)}, all different, found "
                f"{len(observations)} observations"
            )
        if not lanes:
            return []
        obs = stack_lanes([self._read(observation) for observation in observations])
        begins = np.array([lane not in self._begun for lane in lanes])
        self._begun.update(lanes)
        named = np.array(lanes, np.int64) if self._has_lanes else None
        try:
            actions = self._sample(obs, begins) if named is None else self.sample(obs, begins, named)
        except Exception as error:  # The agent may have used a number outside its space as an index.
            for misfit in (describe_misfit(self.spec.observation_space, observation) for observation in observations):
                if misfit is not None:
                    raise PluginError(f"policy: observation: {misfit}") from error
            raise
        return [unflatten(self.spec.action_space, pick_leaves(actions, i)) for i in range(len(lanes))]

    def _read(self, observation: Any) -> Leaves:
        """The leaves of an observation."""
        space = self.spec.observation_space
        try:
            found = flatten(space, observation)
        except (ConfigError, *UNREADABLE) as error:
            raise PluginError(f"policy: observation: {describe_misfit(space, observation) or error}") from error
        leaves = by_path(found)
        if any(leaf.shape != self._shapes[path] for path, leaf in leaves.items()):
            raise PluginError(f"policy: observation: {describe_misfit(space, observation)}")
        for path, leaf in leaves.items():
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():  # A network answers NaN by some action.
                named = f" '{path}'" if path else ""
                raise PluginError(f"policy: observation{named}: expected finite values, found {observation!r:.200}")
        return found

    def _sample(self, obs: Leaves, begins: Array) -> Leaves:
        seen = self._stacker.add(obs, begins)
        if begins.any():
            self.agent.begin(begins)
        actions: Leaves = self.agent.sample(seen)
        return actions

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:
        """Choose actions for arrays of observations, for a program that keeps the lanes' episodes itself.

        Args:
            obs: the observations, as the environment gives them, ``[k, *shape]``.
            begins: where episodes begin with them, ``[k]`` bool.
            lanes: the lane of each row, ``[k]`` int64, all different.

        Returns:
            The actions, ``[k, *shape]``.

        Raises:
            PluginError: the agent cannot act for some of its lanes.
        """
        seen = self._stacker.add(obs, begins, lanes)
        if np.count_nonzero(begins):  # A sixth of the time of begins.any().
            self._lane_agent.begin(begins, lanes)
        actions: Leaves = self._lane_agent.sample(seen, lanes)
        return actions

    @cached_property
    def _lane_agent(self) -> LaneAgent:
        """The agent that acts for some lanes; looking at its methods takes as long as a small network."""
        return acting_for_lanes(self.agent)


def set_opt_steps(agent: Agent, opt_steps: int) -> None:
    """Let an agent's schedules and ages go by this number of opt steps: it adopts its own model as that of this number.

    Its tensors keep their values.
    """
    params = {}
    for name, tensor in agent.model_info().items():
        # Actors get bfloat16, which numpy does not know, as float32.
        is_half = tensor.is_floating_point() and tensor.dtype.itemsize == 2
        params[name] = (tensor.float() if is_half else tensor).numpy(force=True).copy()
    agent.sync_model(Model(ModelVersion(1, opt_steps), params))


def _read_lanes(lanes: Sequence[int]) -> list[int]:
    """The numbers of lanes."""
    found = list(lanes) if isinstance(lanes, Sequence | np.ndarray) else [None]
    if not all(isinstance(lane, int | np.integer) and not isinstance(lane, bool) and lane >= 0 for lane in found):
        raise PluginError(f"policy: lanes: expected a list of numbers of lanes, 0 or more, found {lanes!r:.80}")
    return [int(lane) for lane in found]
