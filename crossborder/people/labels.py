"""A person's judgement of a step: how a label changes its reward, its end and its ``info``."""

from __future__ import annotations

from typing import Any, SupportsFloat

from common.lanes.lanes import DISCARDED, SUCCESS
from crossborder.people.device import Label

Outcome = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
"""The values that ``step`` of an environment returns."""


def judge(outcome: Outcome, label: Label | None, *, reward: float, success_ends: bool) -> Outcome:
    """Change the outcome of a step by a person's label.

    ``success`` adds ``reward``, and ends the episode (terminated) unless ``success_ends`` is False. ``failure`` ends it
    (terminated) and leaves the reward. ``discard`` ends it as a limit of time would (truncated), so that no agent
    learns from the end itself. ``info`` has ``is_success`` and ``discarded`` at every step; without a label,
    ``is_success`` is the environment's value, or False.
    """
    obs, earned, terminated, truncated, info = outcome
    info = {SUCCESS: False, **info, DISCARDED: label == "discard"}
    if label is None:
        return obs, earned, terminated, truncated, info
    info[SUCCESS] = label == "success"
    if label == "success":
        return obs, float(earned) + reward, terminated or success_ends, truncated, info
    if label == "failure":
        return obs, earned, True, truncated, info
    return obs, earned, terminated, True, info
