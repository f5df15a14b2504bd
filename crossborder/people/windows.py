"""pygame, and the window of a device, which shows what the environment draws and who acts."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, Final

import numpy as np

from common.data import Array
from common.errors import PluginError

AGENT_COLOUR: Final = (70, 70, 70)
PERSON_COLOUR: Final = (220, 120, 0)
INVISIBLE: Final = ("dummy", "offscreen")
"""Drivers that pygame uses if it finds no display; nobody can press a key in their windows."""
BORDER: Final = 8
"""Pixels around the picture; their colour shows who acts."""


def load_pygame() -> ModuleType:
    """Import pygame, without the greeting that it prints.

    Raises:
        PluginError: pygame is not installed.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame  # noqa: PLC0415 - installed by an extra
    except ImportError as error:
        raise PluginError(f"a keyboard or gamepad needs more: pip install 'crossborder[teleop]' ({error})") from error
    return pygame


class Window:
    """A window that takes keys. If the environment has a pygame window already, that window takes them.

    Args:
        size: width and height in pixels.

    Raises:
        PluginError: pygame is not installed, or this host has no display.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._pygame = load_pygame()
        self._acts: str | None = None
        try:
            self._pygame.display.init()
            driver = self._pygame.display.get_driver()
            if driver in INVISIBLE and driver != os.environ.get("SDL_VIDEODRIVER"):
                raise self._pygame.error(f"pygame found no display but '{driver}'")
            self._is_ours = self._pygame.display.get_surface() is None
            if self._is_ours:
                self._pygame.display.set_mode(size)
        except self._pygame.error as error:
            raise PluginError(
                f"a keyboard needs a window, and this host shows none: {error}; if evaluations run on a host "
                "without a display, leave the wrapper out of them by in_evaluations: false"
            ) from error

    def show(self, picture: Array | None, *, person_acts: bool) -> None:
        """Show who acts, and a picture.

        Args:
            picture: uint8 ``[H, W, 3]``, as ``env.render`` gives it; None shows none.
            person_acts: True if the person acts, False if the agent acts.
        """
        pygame, acts = self._pygame, "you act" if person_acts else "the agent acts"
        is_new, self._acts = acts != self._acts, acts
        if is_new:
            pygame.display.set_caption(f"crossborder: {acts}")
        if not self._is_ours or (picture is None and not is_new):
            return
        surface = pygame.display.get_surface()
        surface.fill(PERSON_COLOUR if person_acts else AGENT_COLOUR)
        if picture is not None:
            self._draw(surface, picture)
        pygame.display.flip()

    def _draw(self, surface: Any, picture: Array) -> None:
        """Draw a picture in the middle, as large as fits."""
        image = self._pygame.surfarray.make_surface(np.swapaxes(picture, 0, 1))
        (width, height), (room_x, room_y) = image.get_size(), surface.get_size()
        scale = min((room_x - 2 * BORDER) / width, (room_y - 2 * BORDER) / height)
        scaled = self._pygame.transform.scale(image, (max(1, int(scale * width)), max(1, int(scale * height))))
        surface.blit(scaled, scaled.get_rect(center=surface.get_rect().center))

    def close(self) -> None:
        """Close the window, unless it is the environment's."""
        if self._is_ours:
            self._pygame.display.quit()
