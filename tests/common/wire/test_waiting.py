from __future__ import annotations

from common.wire.waiting import WaitingBytes
from learner.ingest.server_options import count_descriptors


def test_a_bound_that_is_no_longer_needed_holds_no_file_descriptor() -> None:
    """An acting service begins anew with each run of its learner."""
    before = count_descriptors()
    bounds = [WaitingBytes(1 << 30, "a test") for _ in range(3)]
    assert count_descriptors() == before + 3
    bounds.clear()
    assert count_descriptors() == before
