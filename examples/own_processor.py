"""Your own map of rows: rewards scaled and clipped on the actor, before they travel.

Run: learner-server --config examples/own_processor.yaml --local-actors 2
"""

from crossborder import Items, SameColumns


class ScaledReward(SameColumns):
    """Rows whose reward is ``scale * reward``, clipped to [-limit, limit]; the reward of final rows stays 0."""

    def __init__(self, scale: float = 1.0, limit: float = 1.0) -> None:
        self._scale, self._limit = scale, limit

    def map(self, rows: Items) -> Items:
        return {**rows, "reward": (self._scale * rows["reward"]).clip(-self._limit, self._limit)}
