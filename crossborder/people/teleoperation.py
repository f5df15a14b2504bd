"""Lets a person take over from the agent, and label steps, by a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from pydantic import Field, field_validator

from common.errors import CrossborderError, PluginError
from common.lanes.lanes import DISCARDED, SUCCESS
from common.plugins.part_config import PluginConfig, require_role
from common.settings import Settings, validate
from crossborder.people.device import Device, Label

INTERVENE_ACTION: Final = "intervene_action"
"""The key of ``info`` that holds the executed action if a person acted, for ``env.intervention``."""
Outcome = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
"""The values that ``step`` of an environment returns."""


class Teleoperate(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Reads the device at each step. If the person acts, the person's action is executed instead of the agent's.

    Then ``info["intervene_action"]`` is the executed action; if the agent acts, ``info`` lacks the key. Actions of a
    Box are clipped to its bounds. Labels change the outcome of the step, see ``judge``.

    The device is built at the first ``reset``, so a learner that only reads the spaces opens no window.

    Args:
        env: a plain environment, no vector environment.
        params: see ``Config``.

    Raises:
        ConfigError: a parameter is wrong.
        PluginError: the device cannot be built (at ``reset``), or gives an action that does not fit (at ``step``).
    """

    class Config(Settings):
        """The parameters of the wrapper."""

        device: PluginConfig = Field(
            description="The device, for example {target: Keyboard}; built with env and its params."
        )
        reward: float = Field(1.0, description="The number that the label success adds to the reward of a step.")
        success_ends: bool = Field(
            True, description="Whether the label success ends the episode; with false, it may be given at many steps."
        )

        @field_validator("device")
        @classmethod
        def _fits(cls, device: PluginConfig) -> PluginConfig:
            try:
                device.check("device", frozenset({"env"}))
            except CrossborderError as error:
                raise ValueError(str(error)) from error
            return device

    def __init__(self, env: gymnasium.Env[Any, Any], **params: Any) -> None:
        super().__init__(env)
        self._config = validate(self.Config, params, "Teleoperate")
        self._device: Device | None = None
        self._is_locked_out = False
        self._obs: Any = None
        self._info: Mapping[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; labels that were given between episodes are forgotten."""
        self._obs, info = self.env.reset(seed=seed, options=options)
        self._info, self._is_locked_out = info, False
        if self._device is None:
            self._device = self._build_device()
        self._device.begin(self._obs, info)
        return self._obs, info

    def _build_device(self) -> Device:
        config = self._config.device
        device: Device = config.build(env=self.env)
        require_role(device, "device", f"device {config.target}")
        return device

    def lock_out_person(self) -> None:
        """Ignore the person until the next ``reset``: ``step`` executes its action, such as that of a safe stop."""
        self._is_locked_out = True

    def step(self, action: Any) -> Outcome:
        if self._device is None or self._is_locked_out:  # Without a device, this is a safe stop before the first reset.
            return self.env.step(action)
        command = self._device.read(self._obs, self._info)
        executed = None if command.action is None else self._as_element(command.action)
        obs, reward, terminated, truncated, info = self.env.step(action if executed is None else executed)
        if executed is not None and info.get(INTERVENE_ACTION) is None:  # Else a safety layer inside has set it.
            info = {**info, INTERVENE_ACTION: executed}
        outcome = (obs, reward, terminated, truncated, info)
        outcome = judge(outcome, command.label, reward=self._config.reward, success_ends=self._config.success_ends)
        self._obs, self._info = obs, outcome[-1]
        return outcome

    def _as_element(self, action: Any) -> Any:
        """The action as an element of the action space."""
        space = self.action_space
        element = action
        if isinstance(space, spaces.Box):
            element = np.asarray(action, space.dtype)
            if element.shape == space.shape:
                element = np.clip(element, space.low, space.high)
        elif isinstance(space, spaces.Discrete) and np.ndim(action) == 0:
            element = np.int64(action)
        if not space.contains(element):
            target = self._config.device.target
            raise PluginError(f"device {target}: expected an action of {space}, found {action!r}")
        return element

    def close(self) -> None:
        """Close the device and the environment."""
        try:
            if self._device is not None:
                self._device.close()
        finally:
            self._device = None
            self.env.close()


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
