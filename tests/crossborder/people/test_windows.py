from __future__ import annotations

import sys

import numpy as np
import pygame
import pytest

from common.errors import PluginError
from crossborder.people.windows import AGENT_COLOUR, PERSON_COLOUR, Window, load_pygame


def test_the_border_says_who_acts() -> None:
    window = Window((60, 60))
    picture = np.full((10, 20, 3), 255, np.uint8)
    for person_acts, colour in ((False, AGENT_COLOUR), (True, PERSON_COLOUR)):
        window.show(picture, person_acts=person_acts)
        surface = pygame.display.get_surface()
        assert surface is not None
        assert tuple(surface.get_at((0, 0)))[:3] == colour
        assert tuple(surface.get_at((30, 30)))[:3] == (255, 255, 255)


def test_the_window_of_the_environment_is_used_and_left_open() -> None:
    pygame.display.init()
    theirs = pygame.display.set_mode((30, 20))
    window = Window((60, 60))
    window.show(np.zeros((5, 5, 3), np.uint8), person_acts=True)
    window.close()
    assert pygame.display.get_surface() is theirs
    assert theirs.get_size() == (30, 20)


def test_a_host_without_a_display_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "none")
    with pytest.raises(PluginError, match=r"this host shows none.*in_evaluations: false"):
        Window((60, 60))


def test_a_window_that_nobody_can_see_takes_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PluginError, match="a keyboard needs a window, and this host shows none"):
        Window((60, 60))


def test_a_host_without_pygame_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(PluginError, match=r"pip install 'crossborder\[teleop\]'"):
        load_pygame()
