"""What the steps of lanes came to, as an actor notes the outcome of its own environments' steps."""

from __future__ import annotations

import numpy as np

from common.data import Array
from common.lanes.lanes import Round
from common.leaves import capacity_for, pick_lanes
from crossborder.serving.reading import Moment


class Outcomes:
    """Keeps the returns and lengths of the episodes of all lanes."""

    def __init__(self) -> None:
        self._returns: Array = np.zeros(0)
        self._lengths: Array = np.zeros(0, np.int64)

    def note(self, moment: Moment) -> Round:
        """The outcome of the steps before this moment; a lane whose episode begins has taken none."""
        lanes, begins = moment.lanes, moment.begins
        if (more := capacity_for(lanes, len(self._returns)) - len(self._returns)) > 0:
            self._returns, self._lengths = np.pad(self._returns, (0, more)), np.pad(self._lengths, (0, more))
        returns, lengths = self._returns[lanes] + moment.reward, self._lengths[lanes] + 1
        outcome = Round(moment.reward, moment.terminated, moment.truncated, moment.obs)
        if np.count_nonzero(begins):
            returns[begins], lengths[begins] = 0.0, 0
            outcome.taken = ~begins
        self._returns[lanes], self._lengths[lanes] = returns, lengths
        if moment.executed is not None and np.count_nonzero(moment.intervened):
            outcome.action, outcome.intervened = moment.executed, moment.intervened
        ended = np.flatnonzero(moment.ends)
        if len(ended):
            outcome.ended, outcome.final_obs = ended, pick_lanes(moment.obs, ended)
            outcome.returns, outcome.lengths = returns[ended].tolist(), lengths[ended].tolist()
            outcome.success = [None] * len(ended)
        return outcome
