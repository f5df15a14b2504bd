from __future__ import annotations

import pytest

from tests.chaos.storm import storm

pytestmark = pytest.mark.own_children


def test_256_actors_that_join_at_once_are_served_and_those_beyond_are_refused_without_harm() -> None:
    storm(actors=256, beyond=16, batches=4)
