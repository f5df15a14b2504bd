"""A script in the place of a person with a gamepad, who helps where the policy gets nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from crossborder import Command
from examples.robot.arm import PressButton
from examples.robot.expert import press


class HelpfulPerson:
    """Watches the fingertip's distance to the button, and takes over for some steps if the distance does not fall.

    Args:
        env: a ``PressButton``, perhaps within wrappers.
        patience: steps without progress after which the person takes over.
        steps: the number of steps for which the person then acts, before the policy may try again.
        progress: the distance makes progress if it falls below its least value so far by this many metres.
        noise: of the person's actions, see ``press``.
        seed: of the noise.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        patience: int = 10,
        steps: int = 8,
        progress: float = 0.005,
        noise: float = 0.3,
        seed: int = 0,
    ) -> None:
        arm = env.unwrapped
        assert isinstance(arm, PressButton), "this person knows how to press a button, and nothing else"
        self._arm, self._patience, self._steps, self._progress, self._noise = arm, patience, steps, progress, noise
        self._rng = np.random.default_rng(seed)
        self._least, self._idle, self._remaining = np.inf, 0, 0

    def begin(self, obs: Any, info: Mapping[str, Any]) -> None:
        """Look at a new episode."""
        self._least, self._idle, self._remaining = np.inf, 0, 0

    def read(self, obs: Any, info: Mapping[str, Any]) -> Command:
        """Act for a while after some steps without progress; leave the other steps to the policy."""
        distance = float(np.linalg.norm(self._arm.button - self._arm.tip))
        if distance < self._least - self._progress:
            self._least, self._idle = distance, 0
        else:
            self._idle += 1
        if self._idle >= self._patience:
            self._idle, self._remaining = 0, self._steps
        if not self._remaining:
            return Command()
        self._remaining -= 1
        self._idle = 0
        return Command(press(self._arm, self._noise, self._rng))

    def close(self) -> None:
        """Do nothing: this device holds no resources."""
