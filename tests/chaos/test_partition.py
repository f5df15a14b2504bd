from __future__ import annotations

import pytest

from tests.chaos.partition import cut_off
from tests.chaos.wire import is_possible

pytestmark = [
    pytest.mark.own_children,
    pytest.mark.skipif(not is_possible(), reason="needs root, iproute2 and TUN devices"),
]


def test_over_a_slow_lossy_wire_that_is_cut_and_then_leads_elsewhere_all_arrives_once_without_a_traceback() -> None:
    """A cut of three seconds, and then a learner whose former address is silent, and whom the actors follow."""
    result = cut_off(seconds=3.0, delay_ms=200, loss_percent=1.0, seed=2, moves=True)
    assert result["packets_lost"] > 0
    assert result["rows"] > 0
    assert result["noticed_seconds"] > 0
