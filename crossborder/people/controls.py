"""Turns keys, buttons and sticks into a person's command: an action, a label, or neither."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from pydantic import Field

from common.data import Array
from common.errors import ConfigError
from common.settings import Settings
from crossborder.people.device import Command, Label

Binding = int | tuple[int, float]
"""The effect of an input: the action of a Discrete space, or ``[dimension, value]`` of a Box."""
LABELS: Final[tuple[Label, ...]] = ("success", "failure", "discard")


class ControlsConfig(Settings):
    """The effects of a device's inputs. An input is the name of a key, ``button 3`` or ``axis 0``."""

    moves: dict[str, Binding] | None = Field(
        None,
        description="By input, its effect. For a Box [dimension, value]: 1 moves the dimension to its upper bound, "
        "-1 to its lower bound. For a Discrete space the action. null: the defaults in docs/people.md.",
    )
    take_over: str | None = Field(None, description="While this input is held, the person acts even without moving.")
    success: str | None = Field(None, description="The input that labels a step as a success.")
    failure: str | None = Field(None, description="The input that ends the episode as a failure.")
    discard: str | None = Field(None, description="The input that ends the episode as not worth keeping.")
    speed: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Multiplies the values of moves; 0.3 moves a robot at three tenths of its speed."
    )


class Inputs:
    """The inputs that are held, or that were pressed and let go between two looks."""

    def __init__(self) -> None:
        self._pressed: list[str] = []  # In the order of pressing; an input that was let go may still be in it.
        self._held: set[str] = set()
        self._unseen: set[str] = set()  # Pressed since the last look.

    def press(self, name: str) -> None:
        """Note that an input is pressed; it is now the last one in the order of pressing."""
        self._pressed = [*(other for other in self._pressed if other != name), name]
        self._held.add(name)
        self._unseen.add(name)

    def release(self, name: str) -> None:
        """Note that an input is let go."""
        self._held.discard(name)

    def begin(self, labels: Iterable[str]) -> None:
        """An episode begins: forget inputs that were let go before, and labels even if they are still held."""
        self._unseen.clear()
        self._held.difference_update(labels)

    def look(self) -> list[str]:
        """The inputs that are held, or were pressed since the last look, in the order of pressing."""
        found = [name for name in self._pressed if name in self._held | self._unseen]
        self._unseen.clear()
        return found


class Controls:
    """Turns the inputs that are in use into a ``Command``.

    Args:
        space: of the actions, a Box of floats with finite bounds or a Discrete.
        config: the effects of inputs.
        default_moves: the bindings if the configuration has none.
        device: its name, for messages.

    Raises:
        ConfigError: the space is of another kind, a binding does not fit it, or an input does two things.
    """

    def __init__(
        self, space: gymnasium.Space[Any], config: ControlsConfig, default_moves: Mapping[str, Binding], device: str
    ) -> None:
        self._space, self._config, self._device = space, config, device
        is_box = isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.is_bounded()
        if not (is_box or isinstance(space, spaces.Discrete)):
            raise ConfigError(
                f"{device}: expected Discrete actions or a Box of floats with finite bounds, found {space}; name "
                "your own device for other actions"
            )
        self.rest = rest_of(space)
        """The action of a person who holds the device and does not move it."""
        self.moves = dict(default_moves if config.moves is None else config.moves)
        """By input, the action or the movement that it makes."""
        self.labels = {name: label for label in LABELS if (name := getattr(config, label)) is not None}
        """By input, the label that it gives."""
        for name, binding in self.moves.items():
            self._check_binding(name, binding)
        self._check_inputs()

    @property
    def inputs(self) -> list[str]:
        """The names of all inputs that do something."""
        return [*self.moves, *self.labels, *([self._config.take_over] if self._config.take_over else [])]

    def command(self, amounts: Mapping[str, float]) -> Command:
        """The command of a person who uses these inputs.

        Args:
            amounts: by input, how far it is moved: 1 for a key or a button, -1 to 1 for a stick. Inputs that do nothing
                are ignored.
        """
        label = next((self.labels[name] for name in amounts if name in self.labels), None)
        moved = [(self.moves[name], amount) for name, amount in amounts.items() if name in self.moves]
        if moved:
            return Command(self._move(moved), label)
        return Command(self.rest if self._config.take_over in amounts else None, label)

    def _move(self, moved: list[tuple[Binding, float]]) -> Any:
        if isinstance(self._space, spaces.Discrete):
            return np.int64(next(binding for binding, _ in reversed(moved) if isinstance(binding, int)))
        assert isinstance(self._space, spaces.Box)
        share = np.zeros(self._space.shape).reshape(-1)
        for binding, amount in moved:
            assert isinstance(binding, tuple)
            share[binding[0]] += binding[1] * amount
        share = self._config.speed * np.clip(share, -1, 1).reshape(self._space.shape)
        towards = np.where(share > 0, self._space.high - self.rest, self.rest - self._space.low)
        return (self.rest + share * towards).astype(self._space.dtype)

    def _check_binding(self, name: str, binding: Binding) -> None:
        if isinstance(self._space, spaces.Discrete):
            if not isinstance(binding, int) or not self._space.contains(np.int64(binding)):
                raise ConfigError(f"{self._device}: moves.{name}: expected an action of {self._space}, found {binding}")
        elif not isinstance(binding, tuple) or not 0 <= binding[0] < self.rest.size or abs(binding[1]) > 1:
            raise ConfigError(
                f"{self._device}: moves.{name}: expected [dimension, value] with a dimension from 0 to "
                f"{self.rest.size - 1} and a value from -1 to 1, found {binding}"
            )

    def _check_inputs(self) -> None:
        names = [getattr(self._config, label) for label in LABELS]
        names = [*self.moves, *(name for name in (*names, self._config.take_over) if name is not None)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"{self._device}: expected each input to do one thing, found two for {', '.join(twice)}")


def rest_of(space: gymnasium.Space[Any]) -> Array:
    """The action of a person who does not move: zeros, clipped to the bounds; in a discrete space, the first action.

    Args:
        space: a leaf, see ``common.spaces.leaves_of``.
    """
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return np.asarray(np.zeros(space.shape or (), space.dtype) + getattr(space, "start", 0), space.dtype)
