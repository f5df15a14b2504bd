"""Several worker processes against a real learner host."""

from __future__ import annotations

import threading

from actor.manager import ActorManager
from common.errors import ConfigError, CrossborderError
from common.wire.trust import Trust
from learner.loop.server import LearnerServer
from tests.conftest import PATIENCE, kill, wait_for


def test_workers_act_are_restarted_and_leave_their_statistics(host: LearnerServer) -> None:
    failures: list[CrossborderError] = []
    manager = ActorManager(host.ingest.address, 2, failures.append, Trust())
    try:
        table = host.actor_table
        wait_for(lambda: (table["env_steps"] > 0).sum() == 2, "both act")
        kill(int(table["pid"][0]))
        wait_for(lambda: manager.restarts == 1 and (table["env_steps"] > 0).sum() == 3, "another one acts in its place")
    finally:
        stats = manager.stop_and_join(PATIENCE)
    manager.wait()
    assert failures == []
    assert sorted(stat.env_steps for stat in stats) == sorted(table["env_steps"][1:3])


def test_a_worker_that_cannot_work_is_reported_with_its_own_error_and_not_started_again() -> None:
    failed, failures = threading.Event(), list[CrossborderError]()

    def note(error: CrossborderError) -> None:
        failures.append(error)
        failed.set()

    manager = ActorManager("127.0.0.1:1", 1, note, Trust(ca="no-such-file.pem"))
    assert failed.wait(PATIENCE)
    manager.wait()
    assert manager.stop_and_join(PATIENCE) == []
    assert manager.restarts == 0
    (failure,) = failures
    assert isinstance(failure, ConfigError)
    assert "no-such-file.pem" in str(failure)
