"""Exploration over action values: how an actor chooses actions in train mode.

Actions whose value is ``NOT_ALLOWED`` are never chosen.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat

from common.agents.machinery.lane_states import LaneRandom, RowRandom
from common.agents.networks.discrete_actions import NOT_ALLOWED
from common.config.replay_config import Unit
from common.data import Array
from common.settings import Settings

Random = np.random.Generator | RowRandom
"""Where explorers draw from: one stream for all lanes, or for each row the sequence of its lane."""


class EpsilonGreedy(Settings):
    """The best action, or with probability epsilon a random one.

    Epsilon falls linearly from ``start`` to the actor's own (``exploration.epsilons`` in the run's config).
    It counts the learner's opt steps, not the actor's own steps: a restarted actor goes on where the others are.
    """

    kind: Literal["epsilon_greedy"] = Field(
        "epsilon_greedy", description="Takes a random action with the probability epsilon, and the best one otherwise."
    )
    start: Unit = Field(1.0, description="The epsilon of all actors before the first opt step.")
    final_step: NonNegativeInt = Field(
        10_000, description="The number of opt steps in which epsilon falls from start to the actor's own epsilon."
    )

    def at(self, opt_steps: int, own: float) -> float:
        """Epsilon after ``opt_steps`` for an actor whose own epsilon is ``own``."""
        if opt_steps >= self.final_step:
            return own
        return self.start + (own - self.start) * opt_steps / self.final_step

    def choose(self, values: Array, opt_steps: int, own: float, rng: Random) -> Array:
        """Actions ``[n]`` for values ``[n, A]``."""
        return choose_mostly_best(values, self.at(opt_steps, own), rng)


class Softmax(Settings):
    """Boltzmann exploration: actions with the probabilities ``softmax(Q / temperature)``, the same for all actors."""

    kind: Literal["softmax"] = Field(
        "softmax", description="Samples actions by the softmax of their values (Boltzmann), as border does by default."
    )
    temperature: PositiveFloat = Field(
        1.0,
        description="The temperature of the softmax: actions whose values differ by much less are chosen about "
        "equally often.",
    )

    def choose(self, values: Array, opt_steps: int, own: float, rng: Random) -> Array:  # noqa: ARG002 - no schedule, no epsilon
        """Actions ``[n]`` for values ``[n, A]``, drawn as the maximum of values and Gumbel noise."""
        noise = rng.gumbel(values.shape[1]) if isinstance(rng, RowRandom) else rng.gumbel(size=values.shape)
        actions: Array = (values / self.temperature + noise).argmax(axis=1)
        return actions


class Greedy(Settings):
    """The best action: the network itself explores, by its noise."""

    kind: Literal["greedy"] = Field(
        "greedy", description="Takes the best action always; noisy networks explore by their own noise."
    )

    def choose(self, values: Array, opt_steps: int, own: float, rng: Random) -> Array:  # noqa: ARG002 - no chance either
        """Actions ``[n]`` for values ``[n, A]``."""
        actions: Array = values.argmax(axis=1)
        return actions


class EvaluationEpsilon:
    """Epsilon-greedy actions in evaluations (Mnih et al. 2015), with the same chances in each evaluation.

    Args:
        epsilon: share of random actions; 0 acts greedily.
    """

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon
        self.begin()

    def begin(self) -> None:
        """Begin an evaluation; all evaluations have the same draws, so that the same model has the same score."""
        self._rng, self._lane_random = np.random.default_rng(0), LaneRandom(0)

    def choose(self, values: Array, lanes: Array | None = None) -> Array:
        """Actions ``[n]`` for values ``[n, A]``, of all lanes or of ``lanes`` ``[n]``."""
        if self._epsilon:
            return choose_mostly_best(
                values, self._epsilon, self._rng if lanes is None else self._lane_random.of(lanes)
            )
        actions: Array = values.argmax(axis=1)
        return actions


def choose_mostly_best(values: Array, epsilon: float, rng: Random) -> Array:
    """Choose the best action in each row of ``[n, A]``, or with probability ``epsilon`` a random action; ``[n]``.

    Random actions are uniform among the allowed ones.
    """
    n, n_actions = values.shape
    actions: Array = values.argmax(axis=1)
    if isinstance(rng, RowRandom):
        chance, place = rng.random(2).T
        return np.where(chance < epsilon, _pick_allowed(values, place), actions)
    explorers = (rng.random(n) < epsilon).nonzero()[0]
    if len(explorers):
        actions[explorers] = drawn = rng.integers(n_actions, size=len(explorers))
        refused = explorers[values[explorers, drawn] == NOT_ALLOWED]
        if len(refused):  # Drawn again among the allowed actions, which leaves all of them equally likely.
            actions[refused] = _pick_allowed(values[refused], rng.random(len(refused)))
    return actions


def _pick_allowed(values: Array, place: Array) -> Array:
    """The allowed actions ``[n]`` at these places ``[n]``, 0 to 1, among the allowed ones of each row of ``[n, A]``."""
    allowed = values != NOT_ALLOWED
    rank = (place * np.count_nonzero(allowed, axis=1)).astype(np.int64)
    actions: Array = (allowed.cumsum(axis=1) > rank[:, None]).argmax(axis=1)
    return actions


Explorer = Annotated[EpsilonGreedy | Softmax | Greedy, Field(discriminator="kind")]
