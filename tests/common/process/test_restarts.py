from __future__ import annotations

from common.process.restarts import RestartPolicy


def test_restarts_are_allowed_up_to_a_number_in_a_span_of_time() -> None:
    now = 0.0
    policy = RestartPolicy(times=3, seconds=60.0, clock=lambda: now)
    assert [policy.allows() for _ in range(4)] == [True, True, True, False]
    now = 60.0
    assert not policy.allows()
    now = 60.5
    assert [policy.allows() for _ in range(4)] == [True, True, True, False]


def test_a_refused_restart_does_not_count() -> None:
    now = 0.0
    policy = RestartPolicy(times=1, seconds=10.0, clock=lambda: now)
    assert policy.allows()
    now = 9.0
    assert not policy.allows()
    now = 11.0
    assert policy.allows()
