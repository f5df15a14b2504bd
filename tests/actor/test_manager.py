"""Several worker processes against a real learner host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from actor.child_main import ActorWork
from actor.manager import ACTOR, ActorManager, ModelShare
from common.errors import ConfigError, CrossborderError
from common.process.fork_server import ForkServer
from common.wire.trust import Trust
from learner.loop.server import LearnerServer
from learner.replay.ring import read_ring
from tests.conftest import PATIENCE, ROOT, children_of, is_alive, kill, wait_for


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


def test_no_worker_is_started_again_once_none_is_wanted(host: LearnerServer) -> None:
    failures: list[CrossborderError] = []
    manager = ActorManager(host.ingest.address, 2, failures.append, Trust())
    try:
        wait_for(lambda: (host.actor_table["env_steps"] > 0).sum() == 2, "both act")
        pids = manager.pids
        manager.stop_restarting()
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not any(map(is_alive, pids)), "both have ended")
        manager.wait()
        assert (manager.restarts, failures) == (0, [])
    finally:
        manager.stop_and_join(PATIENCE)


def test_a_worker_that_the_kernel_cannot_end_yet_keeps_no_other_from_its_orderly_end(
    host: LearnerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(timeout: float) -> int:
        raise subprocess.TimeoutExpired("worker", timeout)

    manager = ActorManager(host.ingest.address, 2, lambda _: None, Trust())
    wait_for(lambda: (host.actor_table["env_steps"] > 0).sum() == 2, "both act")
    assert manager.share is not None
    directory = manager.share.path
    with monkeypatch.context() as patch:
        patch.setattr(manager._supervisors[0].child._process, "wait", wait)
        assert manager.stop_and_join(PATIENCE)
    assert not directory.exists()


def publish(host: LearnerServer, opt_steps: int) -> None:
    host.learner.agent.model_info()["steps"].fill_(opt_steps)
    host.learner.publish(opt_steps)


def act_further(host: LearnerServer, steps: int) -> None:
    """Wait until all actors have taken this many steps more."""
    before = host.actor_table["env_steps"].copy()
    working = before > 0
    wait_for(lambda: (host.actor_table["env_steps"] - before)[working].min() > steps, "all act further")


def test_workers_of_one_host_fetch_each_model_once_and_leave_no_file(host: LearnerServer) -> None:
    control, size = host.control, host.publisher.blob_bytes
    manager = ActorManager(host.ingest.address, 4, lambda _: None, Trust())
    try:
        wait_for(lambda: (host.actor_table["env_steps"] > 0).sum() == 4, "all act")
        assert (control.fetches, control.model_bytes_sent) == (1, size)
        publish(host, 1)
        wait_for(lambda: control.fetches == 2, "one worker fetches the next model")
        act_further(host, 200)
        assert (control.fetches, control.model_bytes_sent) == (2, 2 * size)
        assert manager.share is not None
        directory = manager.share.path
        assert len([*directory.iterdir()]) == 2
    finally:
        manager.stop_and_join(PATIENCE)
    assert not directory.exists()


def test_workers_on_the_learners_host_read_the_trainers_slots_and_fetch_nothing(host: LearnerServer) -> None:
    slots = host.run.dir.shared / "models"
    manager = ActorManager(host.ingest.address, 1, lambda _: None, Trust(), work=ActorWork(models=slots))
    try:
        wait_for(lambda: (host.actor_table["env_steps"] > 0).sum() == 1, "it acts")
        publish(host, 7)
        memory = host.run.memory
        assert memory is not None
        versions = memory.columns["version"]
        wait_for(lambda: read_ring(versions, memory.committed - 1, memory.committed)[0] == 7, "it acts with this model")
        assert host.control.fetches == host.control.not_modified == 0
    finally:
        manager.stop_and_join(PATIENCE)


def test_workers_are_forked_from_a_process_that_began_before_the_learner_listened(host: LearnerServer) -> None:
    server = ForkServer([ACTOR])
    server.begin()
    begun = server.pid
    assert begun is not None
    manager = ActorManager(host.ingest.address, 2, lambda _: None, Trust(), server=server)
    try:
        assert server.pid == begun
        assert children_of(begun) == manager.pids
        wait_for(lambda: (host.actor_table["env_steps"] > 0).sum() == 2, "both act")
        kill(manager.pids[0])
        wait_for(lambda: manager.restarts == 1, "the restart")
        assert set(children_of(begun)) == {*manager.pids}
    finally:
        manager.stop_and_join(PATIENCE)
        assert is_alive(begun), "whoever made it ends it"
        server.end()
    assert not is_alive(begun)


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


def test_the_directory_is_this_users_alone_and_is_removed_with_its_files(tmp_path: Path) -> None:
    share = ModelShare(tmp_path)
    (share.path / "file").write_bytes(b"model")
    assert share.path.stat().st_mode & 0o777 == 0o700
    share.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_a_killed_process_left_is_removed_by_the_next_and_one_in_use_is_kept(tmp_path: Path) -> None:
    code = "import sys, pathlib, actor.manager as s; print(s.ModelShare(pathlib.Path(sys.argv[1])).path)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    left = Path(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip())
    assert left.is_dir()
    used = ModelShare(tmp_path)
    assert not left.exists()
    other = ModelShare(tmp_path)
    assert used.path.is_dir()
    used.close()
    other.close()
