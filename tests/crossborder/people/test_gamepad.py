from __future__ import annotations

from typing import Any

import pygame
import pytest
from gymnasium import spaces

from common.errors import ConfigError, PluginError
from common.settings import validate
from crossborder.people.device import Command
from crossborder.people.gamepad import Gamepad, GamepadConfig, GamepadState
from tests.crossborder.people.people import Slide


def state(n: int = 2, **params: Any) -> GamepadState:
    pygame.display.init()
    return GamepadState(Slide(n).action_space, validate(GamepadConfig, params))


def after(pad: GamepadState, *events: tuple[int, dict[str, Any]]) -> Command:
    """The command after events that went through pygame's queue."""
    for kind, values in events:
        pygame.event.post(pygame.event.Event(kind, instance_id=0, **values))
    pad.take(pygame.event.get())
    return pad.command()


def stick(axis: int, value: float) -> tuple[int, dict[str, Any]]:
    return pygame.JOYAXISMOTION, {"axis": axis, "value": value}


def test_a_stick_moves_its_dimension_until_it_is_let_go() -> None:
    pad = state()
    assert after(pad, stick(0, 0.5), stick(1, -1.0)).action == pytest.approx([1, 2])
    assert after(pad).action == pytest.approx([1, 2])
    assert after(pad, stick(1, 0.0)).action == pytest.approx([1, 0])
    assert after(pad, stick(0, 0.01)).action is None


def test_buttons_take_over_and_label() -> None:
    pad = state()
    assert after(pad, (pygame.JOYBUTTONDOWN, {"button": 5})).action == pytest.approx([0, 0])
    command = after(pad, (pygame.JOYBUTTONUP, {"button": 5}), (pygame.JOYBUTTONDOWN, {"button": 3}))
    assert (command.action, command.label) == (None, "success")
    pad.begin()
    assert after(pad).label is None


def test_a_configuration_names_other_inputs() -> None:
    pad = state(moves={"axis 2": [1, -0.5], "button 9": [0, 1]}, dead_zone=0.4)
    assert after(pad, stick(0, 1.0), stick(2, 0.3)).action is None
    assert after(pad, stick(2, 1.0), (pygame.JOYBUTTONDOWN, {"button": 9})).action == pytest.approx([2, -1])


def test_buttons_are_actions_of_a_discrete_space() -> None:
    pygame.display.init()
    config = validate(GamepadConfig, {"moves": {"button 1": 0, "button 6": 1}})
    assert after(GamepadState(spaces.Discrete(2), config), (pygame.JOYBUTTONDOWN, {"button": 6})).action == 1


def test_an_input_that_is_no_axis_and_no_button_is_named() -> None:
    with pytest.raises(ConfigError, match="gamepad: expected inputs such as 'axis 0' or 'button 3', found 'left'"):
        state(moves={"left": [0, 1]})


def test_a_gamepad_that_is_unplugged_ends_the_step_with_an_error() -> None:
    with pytest.raises(PluginError, match="gamepad: it has been unplugged"):
        after(state(), (pygame.JOYDEVICEREMOVED, {}))


def test_a_host_without_a_gamepad_says_so() -> None:
    with pytest.raises(PluginError, match=r"gamepad: expected a gamepad with the index 7, found \d on this host"):
        Gamepad(Slide(), index=7)
