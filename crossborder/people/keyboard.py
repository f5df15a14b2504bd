"""A keyboard by which a person takes over and labels, through a window of pygame."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import gymnasium
from gymnasium import spaces
from pydantic import Field, PositiveInt

from common.errors import ConfigError
from common.settings import validate
from crossborder.people.controls import Binding, Controls, ControlsConfig, Inputs
from crossborder.people.device import Command
from crossborder.people.windows import Window, load_pygame

log = logging.getLogger(__name__)
PAIRS: Final = (("left", "right"), ("down", "up"), ("s", "w"), ("a", "d"), ("q", "e"), ("f", "r"), ("g", "t"))
"""For each dimension of a Box, the key that moves it to its lower bound and the key to its upper bound."""


class Keyboard:
    """A person acts while a key of ``moves`` or ``take_over`` is held, and labels by other keys.

    The window must have the focus. It shows what ``env.render()`` gives if the environment's ``render_mode`` is
    ``rgb_array``, within a border that is orange while the person acts. Without ``moves``, the dimensions of a Box have
    the keys of ``PAIRS`` (left and right for the first one, down and up for the second one), and the actions of a
    Discrete space have the keys 0 to 9.

    Args:
        env: the environment, whose actions are a Box of floats with finite bounds or a Discrete.
        params: see ``Config``.

    Raises:
        ConfigError: the action space is of another kind, or a parameter does not fit.
        PluginError: pygame is not installed, or this host has no display.
    """

    class Config(ControlsConfig):
        """The parameters of a keyboard. Names of keys are pygame's: a, left, return, left shift."""

        take_over: str | None = Field("left shift", description="While this key is held, the person acts.")
        success: str | None = Field("return", description="The key that labels a step as a success.")
        failure: str | None = Field("backspace", description="The key that ends the episode as a failure.")
        discard: str | None = Field("delete", description="The key that ends the episode as not worth keeping.")
        window: tuple[PositiveInt, PositiveInt] = Field(
            (480, 480), description="Width and height of the window in pixels."
        )

    def __init__(self, env: gymnasium.Env[Any, Any], **params: Any) -> None:
        config = validate(self.Config, params, "keyboard")
        self._env, self._inputs = env, Inputs()
        self._controls = Controls(env.action_space, config, _default_moves(env.action_space), "keyboard")
        self._window = Window(config.window)
        self._pygame = load_pygame()
        self._names = {self._code(name): name for name in self._controls.inputs}
        log.info(
            "keyboard: moves %s; take over: %s; labels %s",
            self._controls.moves,
            config.take_over,
            self._controls.labels,
        )

    def _code(self, name: str) -> int:
        try:
            return int(self._pygame.key.key_code(name))
        except ValueError as error:
            self._window.close()
            raise ConfigError(f"keyboard: expected the name of a key as pygame knows it, found '{name}'") from error

    def begin(self, obs: Any, info: Mapping[str, Any]) -> None:  # noqa: ARG002 - the signature of Device
        self._take_events()
        self._inputs.begin(self._controls.labels)

    def read(self, obs: Any, info: Mapping[str, Any]) -> Command:  # noqa: ARG002 - the signature of Device
        self._take_events()
        command = self._controls.command(dict.fromkeys(self._inputs.look(), 1.0))
        picture = self._env.render() if self._env.render_mode == "rgb_array" else None
        self._window.show(picture, person_acts=command.action is not None)  # type: ignore[arg-type]
        return command

    def _take_events(self) -> None:
        pygame = self._pygame
        for event in pygame.event.get():
            if event.type == pygame.KEYDOWN and event.key in self._names:
                self._inputs.press(self._names[event.key])
            elif event.type == pygame.KEYUP and event.key in self._names:
                self._inputs.release(self._names[event.key])

    def close(self) -> None:
        self._window.close()


def _default_moves(space: gymnasium.Space[Any]) -> dict[str, Binding]:
    if isinstance(space, spaces.Discrete):
        return {str(n): int(space.start) + n for n in range(min(10, int(space.n)))}
    size = int(space.shape[0]) if space.shape else 0
    moves: dict[str, Binding] = {}
    for dimension, (lower, upper) in zip(range(size), PAIRS, strict=False):
        moves |= {lower: (dimension, -1.0), upper: (dimension, 1.0)}
    return moves
