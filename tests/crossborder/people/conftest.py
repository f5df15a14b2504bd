from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["SDL_VIDEODRIVER"] = "dummy"  # No test needs a display.

from crossborder.people.windows import load_pygame


@pytest.fixture(autouse=True)
def fresh_pygame() -> Iterator[None]:
    """Close the windows and forget the events of a test."""
    yield
    pygame = load_pygame()
    pygame.quit()
