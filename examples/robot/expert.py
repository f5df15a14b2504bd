"""A script that presses the button: it makes demonstrations, and stands in for the person who intervenes."""

from __future__ import annotations

from typing import Final

import numpy as np

from crossborder import Array
from examples.robot.arm import CONTROL_HZ, SPEED, PressButton

ABOVE: Final = 0.05
"""The hand first moves to a place this many metres above the button, and then goes down."""
ALIGNED: Final = 0.012
"""The hand goes down if it is within this many metres of the button's middle, seen from above."""


def press(arm: PressButton, noise: float, rng: np.random.Generator) -> Array:
    """The next action of a player who sees the button, ``[3]`` in [-1, 1].

    Args:
        arm: gives the true places of fingertip and button.
        noise: standard deviation of Gaussian noise that is added to the action.
        rng: draws the noise.
    """
    way = arm.button - arm.tip
    is_above = np.hypot(way[0], way[1]) < ALIGNED
    way[2] = -ABOVE if is_above else way[2] + ABOVE
    action = way * CONTROL_HZ / SPEED + noise * rng.standard_normal(3)
    clipped: Array = np.clip(action, -1, 1).astype(np.float32)
    return clipped
