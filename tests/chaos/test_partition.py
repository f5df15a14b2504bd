from __future__ import annotations

import pytest

from tests.chaos.partition import cut_off, move_away
from tests.chaos.wire import is_possible

pytestmark = [
    pytest.mark.own_children,
    pytest.mark.skipif(not is_possible(), reason="needs root, iproute2 and TUN devices"),
]


def test_over_a_slow_lossy_wire_that_is_cut_for_a_while_all_arrives_once() -> None:
    result = cut_off(seconds=3.0, delay_ms=200, loss_percent=1.0, seed=2)
    assert result["packets_lost"] > 0
    assert result["rows"] > 0


def test_actors_follow_a_learner_that_moves_and_the_calls_of_its_former_address_end_without_a_traceback() -> None:
    assert move_away(seed=2)["rows"] > 0
