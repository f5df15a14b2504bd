"""A loss of the learner's host; ``python -m tests.chaos host_loss`` makes 20."""

from __future__ import annotations

import pytest

from tests.chaos.host_loss import lose_hosts

pytestmark = pytest.mark.own_children


def test_another_host_goes_on_from_the_mirror_and_the_actors_with_it() -> None:
    found = lose_hosts(losses=1, seed=4, shortest=0.2, longest=1.0, mirror_seconds=0.3, n_actors=2)
    for acknowledge in ("disk", "mirrored"):
        assert found[acknowledge]["rows"] > 0
        assert found[acknowledge]["rivals"] > 0
