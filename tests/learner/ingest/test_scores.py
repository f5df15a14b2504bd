from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from common.data import NO_MODEL, ModelVersion
from common.errors import RefusedError
from common.wire.codec import encode
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import PROTOCOL_VERSION
from learner.ingest.core import IngestCore
from learner.ingest.joining import join
from learner.ingest.pushing import push
from learner.ingest.scores import CandidateScores
from learner.shared.actor_table import ActorState
from tests.conftest import counting_config
from tests.learner.ingest.cores import LoneCore
from tests.parts import counting_schema, expected_rows

EVALUATOR, ACTOR = 5, 6


def make(tmp_path: Path, process: str, eval_interval: int = 5, **server: Any) -> LoneCore:
    trainer = {"max_opts": 10, "eval_interval": eval_interval}
    parts = {"evaluator": {"process": process}, "trainer": trainer, "server": server}
    return LoneCore(tmp_path / "shared", counting_config(tmp_path / "run", **parts), counting_schema())


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LoneCore]:
    """A core whose trainer wants candidate 100 to be scored."""
    made = make(tmp_path, "actor")
    made.candidates.publish(100, wait=True)
    yield made
    made.close()


def enter(core: IngestCore, incarnation: int, *, evaluates: bool) -> pb.JoinResponse:
    request = pb.JoinRequest(protocol_version=PROTOCOL_VERSION, incarnation=incarnation, evaluates=evaluates)
    joined = join(core, request)
    core.registry.set_state(core.row_of(incarnation), ActorState.ONLINE)
    return joined


def say(core: IngestCore, incarnation: int, opt_steps: int = 100, **changes: Any) -> None:
    """A report with the score of a candidate."""
    known: dict[str, Any] = {
        "model": pb.ModelVersion(incarnation=1, opt_steps=opt_steps),
        "score": 7.5,
        "record": {"eval_return": 7.5},
    }
    report = pb.Report(score=pb.Score(**known | changes))
    push(core, core.row_of(incarnation), Request(pb.PushItemsRequest(incarnation=incarnation, report=report)))


def test_an_evaluating_actor_is_offered_candidates_and_the_others_are_not(lone: LoneCore) -> None:
    evaluator, actor = enter(lone.core, EVALUATOR, evaluates=True), enter(lone.core, ACTOR, evaluates=False)
    assert (evaluator.newest.opt_steps, actor.newest.opt_steps) == (100, 0)
    answer = lone.core.model(NO_MODEL, takes_delta=False, candidate=True)
    assert answer is not None
    assert answer.version == ModelVersion(1, 100)
    assert lone.core.model(answer.version, takes_delta=False, candidate=True) is None


def test_a_score_reaches_the_trainer_once_however_often_it_is_reported(lone: LoneCore, tmp_path: Path) -> None:
    evaluator = enter(lone.core, EVALUATOR, evaluates=True)
    for _ in range(3):
        say(lone.core, EVALUATOR, seconds=2.0)
    assert lone.core.control.scores == 1
    told = json.loads((tmp_path / "shared" / "score.json").read_text())
    expected = {"incarnation": 1, "opt_steps": 100, "score": 7.5, "record": {"eval_return": 7.5}, "seconds": 2.0}
    assert told == {**expected, "actor_id": evaluator.actor_id}
    lone.candidates.publish(200, wait=True)
    say(lone.core, EVALUATOR, 200)
    say(lone.core, EVALUATOR, 100)
    assert lone.core.control.scores == 2
    assert json.loads((tmp_path / "shared" / "score.json").read_text())["opt_steps"] == 200


def test_an_ingest_process_that_begins_knows_which_score_was_handed_over_last_and_has_the_trainer_look(
    lone: LoneCore, tmp_path: Path
) -> None:
    enter(lone.core, EVALUATOR, evaluates=True)
    say(lone.core, EVALUATOR)
    lone.core.control.scores -= 1  # Killed between the file and the word.
    assert lone.core.scoring is not None
    again = CandidateScores(tmp_path / "shared" / "score.json", lone.core.scoring.slots, lone.core.control)
    assert lone.core.control.scores == 1
    again.take(pb.Score(model=pb.ModelVersion(incarnation=1, opt_steps=100), score=1.0), 0)
    assert lone.core.control.scores == 1


def test_a_score_that_cannot_be_written_is_taken_with_a_later_report(
    lone: LoneCore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    enter(lone.core, EVALUATOR, evaluates=True)
    in_the_way = tmp_path / "shared" / ".score.json.part"
    in_the_way.mkdir()
    for _ in range(3):
        say(lone.core, EVALUATOR)
    assert lone.core.control.scores == 0
    (message,) = (found for found in caplog.messages if "a score waits" in found)
    assert "score.json cannot be written: [Errno 21] Is a directory" in message
    in_the_way.rmdir()
    say(lone.core, EVALUATOR)
    assert lone.core.control.scores == 1


@pytest.mark.parametrize("damage", [Path.mkdir, lambda path: path.write_text("half")])
def test_a_score_that_cannot_be_read_is_logged(
    lone: LoneCore, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "shared" / "score.json"
    damage(path)
    assert lone.core.scoring is not None
    CandidateScores(path, lone.core.scoring.slots, lone.core.control)
    assert lone.core.control.scores == 0
    assert "score.json cannot be read" in caplog.text


def test_a_score_of_a_former_life_of_the_learner_is_left_out_and_its_actor_stays(tmp_path: Path) -> None:
    lone = make(tmp_path, "actor")
    enter(lone.core, EVALUATOR, evaluates=True)
    lone.core.control.incarnation = 2  # Resumed, and no candidate yet.
    say(lone.core, EVALUATOR)
    assert lone.core.control.scores == 0
    assert not (tmp_path / "shared" / "score.json").exists()
    lone.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"opt_steps": 101}, "score: expected a candidate up to"),
        ({"score": float("nan")}, "score: expected finite values up to .*, found nan"),
        ({"score": 1e300}, "score: expected finite values up to 3.40282e.38, found 1e.300"),
        ({"record": {"x": float("inf")}}, "score: expected finite values"),
        ({"seconds": -1.0}, "score: expected finite values"),
        ({"record": {str(i): 0.0 for i in range(65)}}, "at most 64 different keys .* found 65"),
        ({"record": {"n" * 65: 0.0}}, "each of at most 64 printable characters"),
        ({"record": {"\n": 0.0}}, "printable"),
        (
            {"score": 1e30},
            r"mean of returns within 1e\+17 \(1e\+12 times evaluator.max_steps\), .* 1e\+30",
        ),
        (
            {"score": 7.6, "record": {"eval_reward_min": 1.0, "eval_reward_max": 7.5}},
            "found 7.6 and returns from 1.0 to",
        ),
        (
            {"score": 0.9, "record": {"eval_reward_min": 1.0, "eval_reward_max": 7.5}},
            "found 0.9 and returns from 1.0 to",
        ),
        ({"record": {"eval_reward_min": -1e18}}, "returns from -1e"),
    ],
)
def test_a_score_that_cannot_be_true_is_refused(lone: LoneCore, changes: dict[str, Any], message: str) -> None:
    enter(lone.core, EVALUATOR, evaluates=True)
    with pytest.raises(RefusedError, match=message):
        say(lone.core, EVALUATOR, **changes)
    assert lone.core.control.scores == 0


@pytest.mark.parametrize("score", [0.1 + 0.2, -3e16, 0.0])
def test_a_score_may_be_every_mean_that_returns_can_have(lone: LoneCore, score: float) -> None:
    enter(lone.core, EVALUATOR, evaluates=True)
    rounded = 0.3 if score == 0.1 + 0.2 else score
    say(lone.core, EVALUATOR, score=score, record={"eval_reward_min": rounded, "eval_reward_max": rounded})
    assert lone.core.control.scores == 1


def test_a_users_own_evaluator_may_score_what_it_likes(tmp_path: Path) -> None:
    trainer, evaluator = (
        {"max_opts": 10, "eval_interval": 5},
        {"process": "actor", "target": "tests.parts:OwnEvaluator"},
    )
    config = counting_config(tmp_path / "run", evaluator=evaluator, trainer=trainer)
    lone = LoneCore(tmp_path / "shared", config, counting_schema())
    lone.candidates.publish(100, wait=True)
    enter(lone.core, EVALUATOR, evaluates=True)
    say(lone.core, EVALUATOR, score=1e30, record={"eval_reward_min": 1.0, "eval_reward_max": 2.0})
    assert lone.core.control.scores == 1
    lone.close()


def test_scores_cannot_bring_new_columns_for_ever(lone: LoneCore) -> None:
    enter(lone.core, EVALUATOR, evaluates=True)
    say(lone.core, EVALUATOR, record={f"first{i}": 0.0 for i in range(40)})
    lone.candidates.publish(200, wait=True)
    with pytest.raises(RefusedError, match=r"at most 64 different keys in the records of all scores, .* found 80"):
        say(lone.core, EVALUATOR, 200, record={f"second{i}": 0.0 for i in range(40)})
    say(lone.core, EVALUATOR, 200, record={f"first{i}": 1.0 for i in range(40)})
    assert lone.core.control.scores == 2


def test_only_actors_of_the_names_that_may_evaluate_do(tmp_path: Path) -> None:
    lone = make(tmp_path, "actor", evaluating_names=["judge"])
    request = pb.JoinRequest(protocol_version=PROTOCOL_VERSION, incarnation=EVALUATOR, evaluates=True)
    with pytest.raises(RefusedError, match=r"a token of judge \(server.evaluating_names\), found one of 'mallory'"):
        join(lone.core, request, "mallory")
    join(lone.core, request, "judge")
    lone.close()


@pytest.mark.parametrize(("name", "may"), [("", True), ("unnamed", True), ("mallory", False)])
def test_by_default_no_name_may_evaluate(tmp_path: Path, name: str, may: bool) -> None:
    lone = make(tmp_path, "actor")
    request = pb.JoinRequest(protocol_version=PROTOCOL_VERSION, incarnation=EVALUATOR, evaluates=True)
    with nullcontext() if may else pytest.raises(RefusedError, match="expected a token of nobody"):
        join(lone.core, request, name)
    lone.close()


def test_only_an_actor_that_joined_to_evaluate_may_score_and_it_may_push_no_rows(lone: LoneCore) -> None:
    enter(lone.core, ACTOR, evaluates=False)
    with pytest.raises(RefusedError, match="expected none of an actor that did not join to evaluate"):
        say(lone.core, ACTOR)
    enter(lone.core, EVALUATOR, evaluates=True)
    schema, rows = counting_schema(), expected_rows(0, 5)
    head = pb.PushItemsRequest(incarnation=EVALUATOR, seq=1, schema_hash=schema.hash, rows=5)
    with pytest.raises(RefusedError, match="seq: expected 0 of an actor that evaluates, found 1"):
        push(lone.core, lone.core.row_of(EVALUATOR), Request(head, (encode(schema, rows, 5),)))


@pytest.mark.parametrize(("process", "eval_interval"), [("inline", 5), ("actor", 0)])
def test_a_learner_that_asks_no_actor_for_scores_refuses_evaluating_actors(
    tmp_path: Path, process: str, eval_interval: int
) -> None:
    lone = make(tmp_path, process, eval_interval)
    with pytest.raises(RefusedError, match=r"asks no actor to score models \(evaluator.process: actor, trainer.eval"):
        enter(lone.core, EVALUATOR, evaluates=True)
    lone.close()
