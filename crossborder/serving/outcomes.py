"""What the steps of lanes came to, as an actor notes the outcome of its own environments' steps."""

from __future__ import annotations

import numpy as np

from common.data import Array
from common.lanes.lanes import Round
from common.leaves import capacity_for, pick_lanes
from crossborder.serving.client_steps import ClientSteps


class Outcomes:
    """Keeps the returns and lengths of the episodes of all lanes."""

    def __init__(self) -> None:
        self._returns: Array = np.zeros(0)
        self._lengths: Array = np.zeros(0, np.int64)

    def note(self, steps: ClientSteps) -> Round:
        """The outcome of the steps before these; a lane whose episode begins has taken none."""
        lanes, begins = steps.lanes, steps.begins
        if (more := capacity_for(lanes, len(self._returns)) - len(self._returns)) > 0:
            self._returns, self._lengths = np.pad(self._returns, (0, more)), np.pad(self._lengths, (0, more))
        returns, lengths = self._returns[lanes] + steps.reward, self._lengths[lanes] + 1
        outcome = Round(steps.reward, steps.terminated, steps.truncated, steps.obs)
        if np.count_nonzero(begins):
            returns[begins], lengths[begins] = 0.0, 0
            outcome.taken = ~begins
        self._returns[lanes], self._lengths[lanes] = returns, lengths
        if steps.executed is not None and np.count_nonzero(steps.intervened):
            outcome.action, outcome.intervened = steps.executed, steps.intervened
        ended = np.flatnonzero(steps.ends)
        if len(ended):
            outcome.ended, outcome.final_obs = ended, pick_lanes(steps.obs, ended)
            outcome.returns, outcome.lengths = returns[ended].tolist(), lengths[ended].tolist()
            outcome.success = [None] * len(ended)
        return outcome
