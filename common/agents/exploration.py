"""Epsilon-greedy exploration."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt

from common.config import Unit
from common.settings import Settings


class EpsilonGreedy(Settings):
    """Falls linearly from ``start`` to the actor's own rung of the ladder (``exploration`` in the run's config).

    It counts the learner's opt steps, not the actor's own steps: a restarted actor goes on where the others are.
    """

    start: Unit = Field(1.0, description="Epsilon of every actor before the first opt step.")
    final_step: NonNegativeInt = Field(10_000, description="Opt steps until the actor's own epsilon is reached.")

    def at(self, opt_steps: int, final: float) -> float:
        """Epsilon after ``opt_steps`` for an actor whose rung is ``final``."""
        if opt_steps >= self.final_step:
            return final
        return self.start + (final - self.start) * opt_steps / self.final_step
