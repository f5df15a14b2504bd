"""A gamepad by which a person takes over and labels, read by pygame."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import gymnasium
from gymnasium import spaces
from pydantic import Field, NonNegativeInt

from common.errors import ConfigError, PluginError
from common.settings import validate
from crossborder.people.controls import Binding, Controls, ControlsConfig, Inputs
from crossborder.people.device import Command
from crossborder.people.windows import load_pygame

STICKS: Final[tuple[tuple[str, float], ...]] = (("axis 0", 1.0), ("axis 1", -1.0), ("axis 4", -1.0), ("axis 3", 1.0))
"""For each dimension of a Box, the axis of a stick, and the dimension's value when the axis is at 1. Of an Xbox pad on
Linux, these are the left stick to the right, the left one up, the right one up and the right one to the right."""


class GamepadConfig(ControlsConfig):
    """The parameters of a gamepad. Inputs are ``axis N`` and ``button N``; the defaults are those of an Xbox pad."""

    take_over: str | None = Field("button 5", description="While this button is held, the person acts (RB).")
    success: str | None = Field("button 3", description="The button that labels a step as a success (Y).")
    failure: str | None = Field("button 0", description="The button that ends the episode as a failure (A).")
    discard: str | None = Field("button 2", description="The button that ends the episode as not worth keeping (X).")
    dead_zone: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.15, description="A stick that is moved by less than this share of its way counts as not moved."
    )
    index: NonNegativeInt = Field(0, description="The number of the gamepad on this host, from 0 on.")


class GamepadState:
    """The pressed buttons and moved sticks of a gamepad, read from its events.

    Raises:
        ConfigError: see ``Controls``; or an input has a name other than ``axis N`` and ``button N``.
    """

    def __init__(self, space: gymnasium.Space[Any], config: GamepadConfig) -> None:
        self._controls, self._dead_zone = Controls(space, config, _default_moves(space), "gamepad"), config.dead_zone
        self._pressed, self._axes, self._pygame = Inputs(), dict[str, float](), load_pygame()
        for name in self._controls.inputs:
            if not re.fullmatch(r"(axis|button) \d+", name):
                raise ConfigError(f"gamepad: expected inputs such as 'axis 0' or 'button 3', found '{name}'")

    def begin(self) -> None:
        """An episode begins: forget labels, and buttons that were let go before."""
        self._pressed.begin(self._controls.labels)

    def take(self, events: Iterable[Any]) -> None:
        """Note pygame's events.

        Raises:
            PluginError: the gamepad has been unplugged.
        """
        pygame = self._pygame
        for event in events:
            if event.type == pygame.JOYAXISMOTION:
                self._axes[f"axis {event.axis}"] = event.value
            elif event.type == pygame.JOYBUTTONDOWN:
                self._pressed.press(f"button {event.button}")
            elif event.type == pygame.JOYBUTTONUP:
                self._pressed.release(f"button {event.button}")
            elif event.type == pygame.JOYDEVICEREMOVED:
                raise PluginError("gamepad: it has been unplugged")

    def command(self) -> Command:
        """The person's present command."""
        moved = {name: value for name, value in self._axes.items() if abs(value) > self._dead_zone}
        return self._controls.command(moved | dict.fromkeys(self._pressed.look(), 1.0))


class Gamepad:
    """A person acts while a stick is moved or the button ``take_over`` is held, and labels by other buttons.

    It needs no window and no focus, so it also works on a robot's host without a display. Without ``moves``, the
    dimensions of a Box follow ``STICKS``; a Discrete space needs ``moves``, for example ``{button 1: 0}``.

    Args:
        env: the environment, whose actions are a Box of floats with finite bounds or a Discrete.
        params: see ``GamepadConfig``.

    Raises:
        ConfigError: the action space is of another kind, or a parameter does not fit.
        PluginError: pygame is not installed, or there is no such gamepad.
    """

    Config = GamepadConfig

    def __init__(self, env: gymnasium.Env[Any, Any], **params: Any) -> None:
        config = validate(self.Config, params, "gamepad")
        self._state, self._pygame = GamepadState(env.action_space, config), load_pygame()
        os.environ.setdefault("SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS", "1")  # Our window, if any, need not have focus.
        if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # Events need a display; this driver is enough.
        self._pygame.display.init()
        self._pygame.joystick.init()
        count = self._pygame.joystick.get_count()
        if config.index >= count:
            raise PluginError(f"gamepad: expected a gamepad with the index {config.index}, found {count} on this host")
        self._pad = self._pygame.joystick.Joystick(config.index)

    def begin(self, obs: Any, info: Mapping[str, Any]) -> None:  # noqa: ARG002 - the signature of Device
        self._state.take(self._events())
        self._state.begin()

    def read(self, obs: Any, info: Mapping[str, Any]) -> Command:  # noqa: ARG002 - the signature of Device
        self._state.take(self._events())
        return self._state.command()

    def _events(self) -> list[Any]:
        """The events of this gamepad since the last look."""
        mine = self._pad.get_instance_id()
        return [event for event in self._pygame.event.get() if getattr(event, "instance_id", None) == mine]

    def close(self) -> None:
        self._pad.quit()


def _default_moves(space: gymnasium.Space[Any]) -> dict[str, Binding]:
    if isinstance(space, spaces.Discrete) or not space.shape:
        return {}
    return {name: (dimension, value) for dimension, (name, value) in zip(range(space.shape[0]), STICKS, strict=False)}
