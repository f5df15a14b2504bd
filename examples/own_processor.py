"""Your own step processor: rewards scaled and clipped on the actor, before they travel.

Run: learner-server --config examples/own_processor.yaml --local-actors 2
"""

from dataclasses import replace

from common.data import Items
from common.interfaces import Step
from common.processors import OneStep


class ScaledReward(OneStep):
    """Transitions whose reward is ``scale * reward``, cut at ``-limit`` and ``limit``."""

    def __init__(self, scale: float = 1.0, limit: float = 1.0) -> None:
        self._scale, self._limit = scale, limit

    def process(self, step: Step) -> Items:
        reward = max(-self._limit, min(self._limit, self._scale * step.reward))
        return super().process(replace(step, reward=reward))
