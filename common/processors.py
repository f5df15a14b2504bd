"""The step processors that come with crossborder."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from common.data import Column, Items, Schema
from common.domain import Domain
from common.envs import column_of
from common.errors import ConfigError, SchemaMismatchError
from common.interfaces import EnvSpec, Step, StepProcessor


class OneStep:
    """One transition per step: border's SimpleStepProcessor with terminated and truncated kept apart."""

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema(
            (
                column_of("obs", spec.observation_space),
                column_of("action", spec.action_space),
                Column.of("reward", np.float32),
                column_of("next_obs", spec.observation_space),
                Column.of("terminated", np.bool_),
                Column.of("truncated", np.bool_),
            )
        )

    def reset(self) -> None:
        """Do nothing: this processor remembers no steps."""

    def process(self, step: Step) -> Items:
        return {
            "obs": step.obs[None],
            "action": np.asarray(step.action)[None],
            "reward": np.array(step.reward, np.float32, ndmin=1),
            "next_obs": step.next_obs[None],
            "terminated": np.array((step.terminated,)),
            "truncated": np.array((step.truncated,)),
        }


def is_one_step(processor: StepProcessor) -> bool:
    """Whether ``transitions`` makes the same items: the processor is a ``OneStep`` with the original ``process``."""
    return getattr(processor.process, "__func__", None) is OneStep.process


def transitions(steps: Sequence[Step]) -> Items:
    """The items that ``OneStep`` makes of these steps, at least one, in the same order.

    Many steps at once take half the time of one after another.

    Raises:
        SchemaMismatchError: the arrays of the steps differ in shape.
    """
    try:
        return {
            "obs": np.array([step.obs for step in steps]),
            "action": np.array([step.action for step in steps]),
            "reward": np.array([step.reward for step in steps], np.float32),
            "next_obs": np.array([step.next_obs for step in steps]),
            "terminated": np.array([step.terminated for step in steps]),
            "truncated": np.array([step.truncated for step in steps]),
        }
    except ValueError as error:
        shapes = {(np.shape(step.obs), np.shape(step.action), np.shape(step.next_obs)) for step in steps}
        raise SchemaMismatchError(
            f"obs, action, next_obs: expected one shape each in all steps, found {sorted(shapes)}"
        ) from error


class RoundProcessor:
    """Processes rounds of one step in each of several environments, by a step processor for each.

    Where all of them are ``OneStep``, the transitions of a round are made at once, which takes half the time.
    """

    def __init__(self, processors: Sequence[StepProcessor]) -> None:
        self._processors = processors
        # A single step is made into an item faster by its own processor.
        self._makes_transitions = len(processors) > 1 and all(map(is_one_step, processors))

    def process(self, steps: Sequence[Step | None]) -> list[Items]:
        """The items of a round in the order of the environments; None stands for an environment that took no step."""
        if self._makes_transitions:
            taken = [step for step in steps if step is not None]
            return [transitions(taken)] if taken else []
        pairs = zip(self._processors, steps, strict=True)
        made = [processor.process(step) for processor, step in pairs if step is not None]
        return [items for items in made if items is not None]


class NStep:
    """Transitions over k steps: their discounted rewards are one sum, and ``next_obs`` is that of the last step.

    The columns are those of ``OneStep`` with ``reward = r_0 + gamma r_1 + … + gamma^(k-1) r_(k-1)``, the ``next_obs``,
    ``terminated`` and ``truncated`` of the last of these k steps, and ``discount = gamma^k`` (float32), the factor of
    the value of ``next_obs`` in the target. k is n, but in the last n - 1 items of an episode k is the number of steps
    that are left; so every step gives one item. Multi-step learning as in Rainbow, arXiv:1710.02298.

    Args:
        n: steps in one transition, at least 1.
        discount_factor: gamma, between 0 and 1. A run passes the agent's ``discount_factor`` and refuses another
            value; the default counts only beside an agent that has no discount factor.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(self, n: int = 3, discount_factor: float = 0.99) -> None:
        if n < 1 or not 0 <= discount_factor <= 1:
            raise ConfigError(f"NStep: expected n >= 1 and 0 <= discount_factor <= 1, found {n} and {discount_factor}")
        self._n, self._gamma = n, discount_factor
        self._steps: deque[Step] = deque()

    def schema(self, spec: EnvSpec) -> Schema:
        discount = Column.of("discount", np.float32, domain=Domain.between(0, 1, np.float32))
        return Schema((*OneStep().schema(spec).columns, discount))

    def reset(self) -> None:
        self._steps.clear()

    def process(self, step: Step) -> Items | None:
        self._steps.append(step)
        done = step.terminated or step.truncated
        if not done and len(self._steps) < self._n:
            return None
        items = self._items(list(self._steps), len(self._steps) if done else 1)
        if done:
            self._steps.clear()
        else:
            self._steps.popleft()
        return items

    def _items(self, steps: Sequence[Step], count: int) -> Items:
        """The transitions that begin at the first ``count`` of these steps; all of them end at the last step."""
        last, returns = steps[-1], self._returns([step.reward for step in steps])
        folded = [
            Step(step.obs, step.action, value, last.next_obs, last.terminated, last.truncated)
            for step, value in zip(steps[:count], returns, strict=False)
        ]
        discount = np.array([self._gamma ** (len(steps) - i) for i in range(count)], np.float32)
        return {**transitions(folded), "discount": discount}

    def _returns(self, rewards: Sequence[float]) -> list[float]:
        """For each step, the discounted sum of the rewards from this step on."""
        sums, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + self._gamma * total
            sums.append(total)
        return sums[::-1]
