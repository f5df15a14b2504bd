"""``actor-worker`` as a process, without a learner; with one it is in ``tests/e2e/test_by_hand.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from actor.commands.actor_worker import parser
from common.cores import write_cores
from common.errors import ConfigError, LearnerUnreachableError
from common.system import usable_cores
from tests.conftest import Command

Start = Callable[..., Command]


def test_targets_to_allow_can_be_given_at_once_or_one_by_one() -> None:
    words = ["--learner", "gpu-host:50051", "--allow", "mine", "mine.parts:make", "--allow", "other"]
    assert parser().parse_args(words).allow == ["mine", "mine.parts:make", "other"]
    assert parser().parse_args(words[:2]).allow == []


@pytest.mark.parametrize("n_actors", ["1", "2"])
def test_it_ends_with_the_reason_and_the_exit_code_of_the_actor_that_cannot_work(start: Start, n_actors: str) -> None:
    worker = start("actor-worker", "--learner", "127.0.0.1:1", "--ca", "no-such-file.pem", "--num-actors", n_actors)
    assert worker.wait() == ConfigError.exit_code, worker.output()
    assert "actor-worker: CA file no-such-file.pem" in worker.output()
    assert "Traceback" not in worker.output()


def test_an_id_is_refused_for_several_actors(start: Start) -> None:
    worker = start("actor-worker", "--learner", "127.0.0.1:1", "--id", "1", "--num-actors", "2")
    assert worker.wait() == ConfigError.exit_code
    assert "--id: expected one actor, found --num-actors 2" in worker.output()


def test_cores_that_this_host_lacks_are_refused_before_the_search_for_a_learner(start: Start) -> None:
    worker = start("actor-worker", "--learner", "127.0.0.1:1", "--cores", "9999")
    assert worker.wait() == ConfigError.exit_code
    assert f"--cores: expected some of the cores that this process may use ({write_cores(usable_cores())}), " in (
        worker.output()
    )


def test_it_looks_for_its_learner_as_long_as_its_patience(start: Start) -> None:
    worker = start("actor-worker", "--learner", "127.0.0.1:1", "--patience", "0.5")
    assert worker.wait() == LearnerUnreachableError.exit_code
    assert "127.0.0.1:1: no learner for 0.5 s" in worker.output()


def test_an_impossible_recording_is_refused_before_the_search_for_a_learner(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, message in (
        (("--record", str(tmp_path / "file" / "episodes")), "expected a directory to write episodes into"),
        (("--record", str(tmp_path), "--evaluate"), "expected an actor that records steps, found --evaluate"),
    ):
        worker = start("actor-worker", "--learner", "127.0.0.1:1", *words)
        assert worker.wait() == 2
        assert message in worker.output()
