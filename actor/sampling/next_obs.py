"""The true next observation of each lane, as the agent would see it."""

from __future__ import annotations

from common.data import Leaves
from common.lanes.lanes import Round
from common.lanes.stacking import Stacker
from common.leaves import copy_leaves, put_leaves


def next_of(outcome: Round, stacker: Stacker | None) -> Leaves:
    """The observations after a step, the last ones where an episode ended, ``[n, *shape]``: a copy.

    Args:
        outcome: of the step.
        stacker: stacks the agent's frames, or None.
    """
    frames = copy_leaves(outcome.obs)
    if outcome.ended is not None and outcome.final_obs is not None:
        put_leaves(frames, outcome.ended, outcome.final_obs)
    return frames if stacker is None else stacker.peek(frames)
