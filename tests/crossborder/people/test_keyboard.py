from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pygame
import pytest

from common.errors import ConfigError
from crossborder.people.keyboard import Keyboard
from crossborder.people.teleoperation import Teleoperate
from tests.crossborder.people.people import Slide


def press(*keys: int) -> None:
    for key in keys:
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))


def release(*keys: int) -> None:
    for key in keys:
        pygame.event.post(pygame.event.Event(pygame.KEYUP, key=key))


def begun(env: gymnasium.Env[Any, Any], **params: Any) -> Keyboard:
    """A keyboard at the beginning of an episode."""
    keyboard = Keyboard(env, **params)
    keyboard.begin(None, {})
    return keyboard


def test_arrow_keys_move_the_first_two_dimensions_while_they_are_held() -> None:
    keyboard = begun(Slide(2), speed=0.5)
    assert keyboard.read(None, {}).action is None
    press(pygame.K_RIGHT, pygame.K_DOWN)
    for _ in range(2):
        assert keyboard.read(None, {}).action == pytest.approx([1, -1])
    release(pygame.K_RIGHT)
    assert keyboard.read(None, {}).action == pytest.approx([0, -1])
    release(pygame.K_DOWN)
    assert keyboard.read(None, {}).action is None


def test_digits_are_the_actions_of_a_discrete_space() -> None:
    keyboard = begun(gymnasium.make("CartPole-v1"))
    press(pygame.K_1)
    assert keyboard.read(None, {}).action == 1


def test_a_configuration_names_other_keys() -> None:
    keyboard = begun(Slide(), moves={"j": [0, -0.5], "k": [0, 1]}, take_over="space", success="p")
    press(pygame.K_j)
    assert keyboard.read(None, {}).action == pytest.approx([-1])
    release(pygame.K_j)
    press(pygame.K_SPACE, pygame.K_p)
    command = keyboard.read(None, {})
    assert command.action == pytest.approx([0])
    assert command.label == "success"


def test_a_label_from_before_the_episode_is_forgotten_and_a_held_one_counts_once() -> None:
    keyboard = begun(Slide())
    press(pygame.K_RETURN)
    keyboard.begin(None, {})
    assert keyboard.read(None, {}).label is None
    release(pygame.K_RETURN)
    press(pygame.K_BACKSPACE)
    assert keyboard.read(None, {}).label == "failure"


def test_other_events_and_keys_do_nothing() -> None:
    keyboard = begun(Slide())
    press(pygame.K_F5)
    pygame.event.post(pygame.event.Event(pygame.MOUSEMOTION, pos=(1, 1)))
    command = keyboard.read(None, {})
    assert (command.action, command.label) == (None, None)


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(ConfigError, match="keyboard: expected the name of a key as pygame knows it, found 'jump'"):
        Keyboard(Slide(), success="jump")


def test_a_window_of_no_size_is_named() -> None:
    with pytest.raises(ConfigError, match=r"keyboard\.window\.0: expected a number greater than 0, found -1"):
        Keyboard(Slide(), window=[-1, 5])


def test_the_window_shows_the_picture_and_who_acts() -> None:
    keyboard = begun(Slide(render_mode="rgb_array"), window=[100, 80])
    keyboard.read(None, {})
    surface = pygame.display.get_surface()
    assert surface is not None
    assert surface.get_size() == (100, 80)
    assert tuple(surface.get_at((50, 40)))[:3] == (0, 255, 0)
    assert pygame.display.get_caption()[0] == "crossborder: the agent acts"
    press(pygame.K_LEFT)
    keyboard.read(None, {})
    assert pygame.display.get_caption()[0] == "crossborder: you act"
    keyboard.close()
    assert not pygame.display.get_init()


def test_a_person_steers_an_environment_by_the_keyboard() -> None:
    env = Teleoperate(Slide(), device={"target": "crossborder.people.keyboard:Keyboard"})
    env.reset()
    press(pygame.K_RIGHT)
    env.step(np.array([-1.0], np.float32))
    release(pygame.K_RIGHT)
    press(pygame.K_RETURN)
    obs, reward, terminated, _, info = env.step(np.array([-1.0], np.float32))
    assert (obs, reward, terminated, info["is_success"]) == (1.0, 1.5, True, True)
    env.close()
