"""The learner loop alone, with everything around it recorded. Border's invariants 1, 2, 3, 7, 8 and 9 are here."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from common.config.actor_config import ActorConfig
from common.config.trainer_config import TrainerConfig
from common.data import Array, Items, Model, Record
from common.errors import CheckpointError, DivergedError, PluginError
from common.interfaces import Agent, Callback, Evaluation, ReplayBuffer
from common.plugins.part_config import EnvConfig, PluginConfig
from learner.evaluation.scoring import FinishedEvaluation, InlineScoring, Scoring
from learner.loop.learner import Learner, Outcome, publish_to_nobody
from learner.loop.life import Life
from learner.loop.opt_step import IN_VAIN, OptStep
from learner.loop.run_records import Callbacks, RecordWindow, RunRecords
from learner.storage.checkpoint import Checkpoints, load_params
from learner.storage.checkpointer import Checkpointer
from learner.storage.training_state import BIRTH, Moment


class Diary(ReplayBuffer):
    """Everything around a learner, in one place: what happened in which order."""

    inserted = 0
    sampled = 0

    def __init__(self, scores: list[float] | None = None) -> None:
        self.events: list[str] = []
        self.records: list[tuple[int, dict[str, float]]] = []
        self.scores = scores or [1.0]
        self.now = 0.0
        self.agent = DiaryAgent(self)

    def clock(self) -> float:
        return self.now

    def __len__(self) -> int:
        return self.inserted

    def batch(self, size: int) -> Items:
        raise AssertionError("the diary's agent draws nothing")

    def update_priority(self, index: Array, td_error: Array) -> None:
        raise AssertionError("nothing was drawn")

    def evaluate(self, agent: Agent) -> Evaluation:
        assert not agent.is_train, "evaluation must be greedy"
        self.events.append("evaluate")
        self.now += 100.0
        score = self.scores.pop(0) if len(self.scores) > 1 else self.scores[0]
        return Evaluation(score, {"eval_reward": score})

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        self.events.append("record")
        self.records.append((opt_steps, dict(record)))

    def flush(self) -> None:
        self.events.append("flush")

    def close(self) -> None:
        self.events.append("close")

    def publish(self, opt_steps: int, *, wait: bool = False) -> None:
        self.events.append(f"publish {opt_steps}" + " and wait" * wait)

    def announce_stop(self) -> None:
        self.events.append("stop")


class DiaryAgent(Agent):
    """Needs ``ready_at`` items, then counts its steps; a step takes half a second."""

    ready_at = 0

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self.steps = 0
        self.loss: float | None = None

    def sample(self, obs: Array) -> Array:
        raise AssertionError("a learner does not act")

    def opt(self, buffer: object) -> Record | None:
        if self._diary.inserted < self.ready_at:
            return None
        assert self.is_train, "training must be in train mode"
        self._diary.events.append("opt")
        self._diary.now += 0.5
        self.steps += 1
        return {"loss": torch.tensor(self.loss if self.loss is not None else float(self.steps))}

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {}

    def sync_model(self, model: Model) -> None:
        raise AssertionError("a learner adopts nothing")

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {"steps": torch.tensor(self.steps)}

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        self.steps = int(params["steps"])


class LoggedCheckpoints(Checkpoints):
    """Real checkpoints that also go into the diary."""

    diary: Diary

    def save(self, name: str, agent: Agent, **meta: Any) -> Path:
        self.diary.events.append(f"save {name}")
        return super().save(name, agent, **meta)


class NoCheckpointer(Checkpointer):
    """Takes none, and says that it has."""

    def __init__(self) -> None:
        pass

    def tick(self, moment: Moment) -> None:
        """Take none."""

    def finish(self, moment: Moment) -> bool:
        return True


class DiaryCheckpointer(NoCheckpointer):
    """Writes into the diary that the last checkpoint is taken."""

    def __init__(self, diary: Diary, *, writes: bool = True) -> None:
        self._diary, self._writes = diary, writes

    def finish(self, moment: Moment) -> bool:
        self._diary.events.append("last checkpoint")
        return self._writes


def make(
    diary: Diary,
    directory: Path,
    scoring: Scoring | None = None,
    *,
    began: Moment = BIRTH,
    best_score: float = -math.inf,
    callbacks: Callbacks | None = None,
    checkpointer: Checkpointer | None = None,
    **settings: Any,
) -> Learner:
    parts = ActorConfig(env=EnvConfig(target="none:none"), agent=PluginConfig(target="none:none"))
    checkpoints = LoggedCheckpoints(directory, parts, "run")
    object.__setattr__(checkpoints, "diary", diary)
    intervals = {"eval_interval": 0, "record_interval": 0, "sync_interval": 0, **settings}
    learner = Learner(
        OptStep(
            diary.agent,
            diary,
            computing=contextlib.nullcontext(),
            explain=lambda: "it had drawn nothing",
            clock=diary.clock,
        ),
        TrainerConfig(**{"max_opts": 1000, **intervals}),
        scoring=scoring or InlineScoring(diary, checkpoints, threading.Event()),
        records=RunRecords([diary], RecordWindow(diary, diary.clock), callbacks),
        checkpoints=checkpoints,
        checkpointer=checkpointer or NoCheckpointer(),
        publish=diary.publish,
        life=Life(began, best_score, clock=diary.clock),
    )
    learner.start()
    return learner


def run(learner: Learner, diary: Diary) -> None:
    while learner.outcome is None:
        learner.step()
    learner.finish(diary.announce_stop)


def test_invariant_1_an_opt_that_returns_none_counts_nothing_and_triggers_nothing(tmp_path: Path) -> None:
    diary = Diary()
    diary.agent.ready_at = 5
    learner = make(diary, tmp_path, eval_interval=1, record_interval=1, save_interval=1, sync_interval=1)
    diary.events.clear()
    assert not learner.step()
    assert diary.events == []
    assert learner.opt_steps == 0
    diary.inserted = 5
    assert learner.step()
    assert learner.opt_steps == 1


def test_an_agent_that_never_learns_is_warned_of_since_max_opts_does_not_end_its_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    diary = Diary()
    diary.agent.ready_at = 5
    learner = make(diary, tmp_path)
    for _ in range(2 * IN_VAIN):
        assert not learner.step()
    (warning,) = caplog.messages
    assert warning.startswith(
        f"{IN_VAIN} times in a row no opt step was taken after the warm-up: agent.opt returned None"
    )
    assert "trainer.max_opts counts only opt steps" in warning


def test_invariant_2_training_stops_after_exactly_max_opts_successful_opts(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_opts=7)
    run(learner, diary)
    assert diary.events.count("opt") == learner.opt_steps == 7
    assert learner.outcome is Outcome.MAX_OPTS


def test_invariant_3_everything_due_happens_in_borders_order(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_opts=4, eval_interval=2, record_interval=2, save_interval=2, sync_interval=1)
    run(learner, diary)
    assert diary.events == [
        "publish 0 and wait",
        *("opt", "publish 1"),
        *("opt", "evaluate", "save best", "record", "flush", "save 2", "publish 2"),
        *("opt", "publish 3"),
        *("opt", "evaluate", "record", "flush", "save 4", "stop", "publish 4 and wait", "flush", "save final"),
    ]


def test_the_last_policy_is_scored_after_it_is_saved_where_no_evaluation_was_due(tmp_path: Path) -> None:
    diary = Diary(scores=[1.0, 5.0])
    learner = make(diary, tmp_path, max_opts=3, eval_interval=2, target_score=5.0)
    run(learner, diary)
    assert diary.events[-7:] == [
        "publish 3 and wait",
        "flush",
        "save final",
        "evaluate",
        "save best",
        "record",
        "flush",
    ]
    assert diary.records[-1] == (3, {"seconds": 101.5, "samples_total": 0.0, "eval_reward": 5.0})
    assert (learner.best_score, learner.outcome) == (5.0, Outcome.TARGET)


def test_a_policy_is_not_scored_twice_and_not_after_a_request_to_stop(tmp_path: Path) -> None:
    for directory, max_opts, evaluations in (("multiple", 4, 2), ("stopped", 1000, 1)):
        diary = Diary()
        learner = make(diary, tmp_path / directory, max_opts=max_opts, eval_interval=2)
        while learner.outcome is None:
            learner.step()
            if learner.opt_steps == 3 and directory == "stopped":
                learner.request_stop()
        learner.finish(diary.announce_stop)
        assert diary.events.count("evaluate") == evaluations


def test_a_stop_request_ends_the_last_evaluation_without_a_score(tmp_path: Path) -> None:
    diary = Diary()

    class Endless(InlineScoring):
        def begin(self, agent: Agent, moment: Moment) -> FinishedEvaluation | None:
            learner.request_stop()
            return None

    parts = ActorConfig(env=EnvConfig(target="none:none"), agent=PluginConfig(target="none:none"))
    scoring = Endless(diary, Checkpoints(tmp_path, parts, "run"), threading.Event())
    learner = make(diary, tmp_path, scoring, max_opts=1, eval_interval=2)
    learner.step()
    learner.finish(diary.announce_stop)
    assert (learner.outcome, diary.records) == (Outcome.MAX_OPTS, [])


def test_a_life_of_the_run_without_an_opt_step_scores_nothing(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, began=Moment(3, 0, 1.0), best_score=1.0, max_opts=3, eval_interval=2)
    learner.tick()
    learner.finish(diary.announce_stop)
    assert "evaluate" not in diary.events


def test_the_last_policy_is_scored_by_an_evaluator_that_answers_late(tmp_path: Path) -> None:
    diary, scoring = Diary(), LateScoring()
    learner = make(diary, tmp_path, scoring, max_opts=3, eval_interval=2)
    while learner.outcome is None:
        learner.step()
    learner.finish(diary.announce_stop)
    assert [step for step, _ in diary.records] == [2, 3]


def test_invariant_4_the_first_model_is_published_before_anything_else_and_has_step_zero(tmp_path: Path) -> None:
    diary = Diary()
    make(diary, tmp_path)
    assert diary.events == ["publish 0 and wait"]


def test_invariant_7_rates_are_over_the_window_and_it_starts_again_only_at_a_record(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, eval_interval=3, record_interval=4)
    for step in range(8):
        diary.inserted += 10 if step < 4 else 30
        learner.step()
    (_, at_3), (_, at_4), (_, at_6), (_, at_8) = diary.records
    assert "samples_per_opt_steps" not in at_3
    assert "samples_per_opt_steps" not in at_6
    assert (at_4["samples_per_opt_steps"], at_8["samples_per_opt_steps"]) == (10.0, 30.0)
    assert (at_4["samples_total"], at_8["samples_total"]) == (40.0, 160.0)
    assert at_4["samples_per_sec"] == pytest.approx(40 / 102)
    assert at_4["opt_steps_per_sec"] == pytest.approx(4 / 2), "an evaluation does not slow the loop down"


def test_losses_are_means_over_all_steps_since_the_last_record(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, record_interval=4)
    for _ in range(8):
        learner.step()
    assert [(step, record["loss"]) for step, record in diary.records] == [(4, 2.5), (8, 6.5)]


def test_invariant_8_best_is_saved_on_a_strictly_greater_score_only(tmp_path: Path) -> None:
    diary = Diary(scores=[1.0, 1.0, 0.5, 2.0, 1.5])
    learner = make(diary, tmp_path, max_opts=5, eval_interval=1, save_interval=2)
    run(learner, diary)
    saves = [event for event in diary.events if event.startswith("save")]
    assert saves == ["save best", "save 2", "save best", "save 4", "save final"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "4", "best", "final"]
    assert learner.best_score == 2.0


def test_a_policy_that_was_set_aside_is_the_best_one_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    diary = Diary(scores=[1e30, 1.0, 0.5])
    learner = make(diary, tmp_path, max_opts=3, eval_interval=1)
    learner.step()
    assert learner.best_score == 1e30
    (tmp_path / "best").rename(tmp_path / "best-1")
    run(learner, diary)
    assert learner.best_score == 1.0
    assert load_params(tmp_path / "best")[1]["opt_steps"] == 2
    (message,) = (found for found in caplog.messages if "set aside" in found)
    assert message == "best/ was set aside: its score 1e+30 counts no more"


def test_a_best_policy_that_cannot_be_saved_keeps_its_score(tmp_path: Path) -> None:
    (tmp_path / "best").write_text("in the way")
    (tmp_path / ".best.old").mkdir()
    diary = Diary(scores=[2.0, 1.0])
    learner = make(diary, tmp_path, max_opts=2, eval_interval=1)
    run(learner, diary)
    assert learner.best_score == 2.0


def test_a_score_that_is_no_number_ends_training_and_is_recorded_but_neither_published_nor_saved(
    tmp_path: Path,
) -> None:
    diary = Diary(scores=[1.0, math.nan])
    learner = make(diary, tmp_path, eval_interval=1)
    learner.start()
    learner.step()
    with pytest.raises(DivergedError, match="opt step 2: expected finite values, found eval_reward nan"):
        learner.step()
    before = list(diary.events)
    assert before[-2:] == ["record", "flush"]
    learner.request_stop()
    learner.finish(diary.announce_stop)
    assert diary.events[len(before) :] == ["stop"]
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_policy_that_cannot_be_published_at_the_end_is_saved_all_the_same(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path)
    learner.start()
    learner.step()

    def refuse(opt_steps: int, /, *, wait: bool = False) -> None:
        raise PluginError("agent: it has other tensors")

    learner.publish = refuse
    learner.request_stop()
    with pytest.raises(PluginError, match="it has other tensors"):
        learner.finish(diary.announce_stop)
    assert (tmp_path / "final").is_dir()
    assert "flush" in diary.events


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_an_evaluator_does_not_record_ends_training_too_and_is_never_the_best(
    score: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary = Diary()
    monkeypatch.setattr(diary, "evaluate", lambda _: Evaluation(score, {"eval_games": 3.0}))
    learner = make(diary, tmp_path, eval_interval=1)
    learner.start()
    with pytest.raises(DivergedError, match=f"opt step 1: expected finite values, found eval_score {score}"):
        learner.step()
    assert learner.best_score == -math.inf
    assert not (tmp_path / "best").exists()


def test_a_loss_that_is_no_number_ends_training_with_the_next_record(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, record_interval=3)
    diary.agent.loss = math.inf
    learner.step()
    diary.agent.loss = None
    learner.step()
    with pytest.raises(DivergedError, match="opt step 3: expected finite values, found loss inf"):
        learner.step()


def test_a_loss_that_is_no_number_after_the_last_record_ends_training_without_saving_the_policy(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_opts=4, record_interval=3, checkpointer=DiaryCheckpointer(diary))
    for loss in (None, None, None, math.nan):
        diary.agent.loss = loss
        learner.step()
    assert learner.outcome is Outcome.MAX_OPTS
    diary.events.clear()
    with pytest.raises(DivergedError, match="opt step 4: expected finite values, found loss nan"):
        learner.finish(diary.announce_stop)
    assert diary.events == ["stop"]
    assert [*tmp_path.iterdir()] == []


def test_invariant_9_the_agent_is_back_in_train_mode_after_an_evaluation(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, eval_interval=1)
    learner.step()
    assert diary.events[-4:] == ["evaluate", "save best", "record", "flush"]
    assert diary.agent.is_train


class LateScoring(Scoring):
    """A real ``Scoring``'s way to be late: the score comes when the test says so, by ``ready``, or at the end."""

    def __init__(self) -> None:
        self.ready = False
        self.begun: Moment | None = None
        self.kept: list[Moment] = []

    def begin(self, agent: Agent, moment: Moment) -> FinishedEvaluation | None:
        self.begun = self.begun or moment
        return None

    def poll(self, *, wait: bool = False) -> FinishedEvaluation | None:
        if self.begun is None or not (self.ready or wait):
            return None
        moment, self.begun = self.begun, None
        return FinishedEvaluation(moment, Evaluation(9.0, {"eval_reward": 9.0}), seconds=3.0)

    def keep_best(self, agent: Agent, scored: FinishedEvaluation) -> None:
        self.kept.append(scored.moment)

    def abandon(self) -> None:
        self.begun = None


def test_a_late_score_is_recorded_and_kept_as_of_the_step_that_was_scored(tmp_path: Path) -> None:
    diary, scoring = Diary(), LateScoring()
    learner = make(diary, tmp_path, scoring, eval_interval=2, record_interval=3)
    for _ in range(5):
        diary.inserted += 10
        learner.step()
        learner.tick()
    assert [step for step, _ in diary.records] == [3]
    scoring.ready = True
    learner.tick()
    assert diary.records[-1] == (2, {"eval_reward": 9.0, "seconds": 1.0, "samples_total": 20.0})
    assert scoring.kept == [Moment(opt_steps=2, samples_total=20, seconds=1.0)]
    assert learner.best_score == 9.0


@pytest.mark.parametrize("last", [True, False])
def test_a_late_score_reaches_the_target_between_steps_or_after_the_last(tmp_path: Path, last: bool) -> None:
    diary, scoring = Diary(), LateScoring()
    learner = make(diary, tmp_path, scoring, max_opts=4, eval_interval=2, target_score=9.0)
    scoring.ready = not last
    while learner.outcome is None:
        learner.step()
        learner.tick()
    learner.finish(diary.announce_stop)
    assert learner.opt_steps == (4 if last else 2)
    assert learner.outcome is Outcome.TARGET


def test_a_request_to_stop_does_not_wait_for_a_score(tmp_path: Path) -> None:
    diary, scoring = Diary(), LateScoring()
    learner = make(diary, tmp_path, scoring, eval_interval=1, target_score=9.0)
    learner.step()
    learner.request_stop()
    learner.finish(diary.announce_stop)
    assert learner.outcome is Outcome.STOPPED
    assert diary.records == []


def test_reaching_the_target_score_ends_training_at_once(tmp_path: Path) -> None:
    diary = Diary(scores=[1.0, 9.0])
    learner = make(diary, tmp_path, eval_interval=10, target_score=9.0)
    run(learner, diary)
    assert learner.outcome is Outcome.TARGET
    assert learner.opt_steps == 20


def test_training_ends_when_its_time_is_over_even_if_no_step_is_possible(tmp_path: Path) -> None:
    diary = Diary()
    diary.agent.ready_at = 1
    learner = make(diary, tmp_path, max_seconds=10.0)
    learner.step()
    diary.now = 10.0
    learner.tick()
    assert learner.outcome is Outcome.MAX_SECONDS


def test_training_ends_when_the_environment_steps_of_all_ranks_are_taken(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_env_steps=100)
    diary.inserted = 99
    learner.step()
    assert learner.outcome is None
    diary.inserted = 100
    learner.step()
    assert learner.outcome is Outcome.MAX_ENV_STEPS


def test_a_stop_request_keeps_the_first_reason(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_opts=1)
    learner.step()
    learner.request_stop()
    assert learner.outcome is Outcome.MAX_OPTS


def test_an_interval_of_zero_or_none_switches_off(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_opts=50, save_interval=None)
    run(learner, diary)
    assert set(diary.events) == {"publish 0 and wait", "opt", "stop", "publish 50 and wait", "flush", "save final"}


def test_training_goes_on_when_a_checkpoint_cannot_be_saved(tmp_path: Path) -> None:
    (tmp_path / "best").write_text("in the way")
    (tmp_path / ".best.old").mkdir()
    (tmp_path / "1").write_text("")
    diary = Diary()
    learner = make(diary, tmp_path / "file" / "nested", max_opts=2, save_interval=1)
    (tmp_path / "file").write_text("not a directory")
    assert learner.step()
    assert learner.opt_steps == 1


def test_a_resumed_run_that_had_reached_its_target_is_done_and_another_target_lets_it_go_on(tmp_path: Path) -> None:
    moment, diary = Moment(5, 50, 2.0), Diary()
    done = make(diary, tmp_path, began=moment, best_score=120.0, target_score=100.0)
    assert done.outcome is Outcome.TARGET
    further = make(diary, tmp_path, began=moment, best_score=120.0, target_score=150.0)
    assert further.outcome is None


def test_training_is_finished_in_order_whatever_ends_its_loop(tmp_path: Path) -> None:
    for directory, error in (("ended", None), ("raised", ZeroDivisionError("the user's own mistake"))):
        diary = Diary()
        learner = make(diary, tmp_path / directory, max_opts=2)
        with contextlib.suppress(ZeroDivisionError), learner.training(diary.announce_stop):
            learner.step()
            if error is not None:
                raise error
            learner.step()
        assert diary.events[-4:] == ["stop", f"publish {learner.opt_steps} and wait", "flush", "save final"]
        assert learner.outcome is (Outcome.MAX_OPTS if error is None else Outcome.STOPPED)


class LostScoring(LateScoring):
    """Actors score, and their score cannot be read."""

    needs_actors = True

    def poll(self, *, wait: bool = False) -> FinishedEvaluation | None:
        raise PluginError("the score cannot be read")


def test_the_last_checkpoint_is_taken_also_where_final_cannot_be_saved(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_opts=1, checkpointer=DiaryCheckpointer(diary))
    (tmp_path / ".final.part").touch()
    learner.step()
    with pytest.raises(CheckpointError, match=r"final\.part: cannot be saved"):
        learner.finish(diary.announce_stop)
    assert diary.events[-2:] == ["save final", "last checkpoint"]


def test_a_last_checkpoint_that_cannot_be_written_is_an_error_unless_another_one_ends_the_run(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_opts=1, checkpointer=DiaryCheckpointer(diary, writes=False))
    learner.step()
    with pytest.raises(CheckpointError, match=r"opt step 1: final/ is saved, but not the last checkpoint"):
        learner.finish(diary.announce_stop)
    (tmp_path / ".final.part").touch()
    with pytest.raises(CheckpointError, match=r"final\.part: cannot be saved"):
        learner.finish(diary.announce_stop)


def test_final_and_the_last_checkpoint_are_saved_also_where_the_last_score_of_an_actor_is_lost(tmp_path: Path) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, LostScoring(), max_opts=1, eval_interval=2, checkpointer=DiaryCheckpointer(diary))
    learner.step()
    with pytest.raises(PluginError, match="the score cannot be read"):
        learner.finish(diary.announce_stop)
    assert diary.events[-5:] == ["stop", "publish 1 and wait", "flush", "save final", "last checkpoint"]


def test_an_error_of_the_loop_goes_before_one_of_the_end_which_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_opts=2)
    (tmp_path / ".final.part").touch()
    with pytest.raises(ZeroDivisionError), learner.training(diary.announce_stop):
        raise ZeroDivisionError
    assert "final.part: cannot be saved" in caplog.text


def test_an_error_of_an_agent_whose_last_state_cannot_be_read_is_not_hidden_by_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary = Diary()
    learner = make(diary, tmp_path, max_opts=2)

    def raise_again(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(learner, "publish", raise_again)
    with pytest.raises(ZeroDivisionError), learner.training(diary.announce_stop):
        raise ZeroDivisionError
    assert "final/ or its last checkpoint may be missing" in caplog.text
    assert "device-side assert triggered" in caplog.text


def test_without_actors_nothing_is_published_and_nobody_is_told_to_stop(tmp_path: Path) -> None:
    learner = make(Diary(), tmp_path)
    learner.publish = publish_to_nobody
    with learner.training():
        learner.step()
        learner.request_stop()
    assert learner.outcome is Outcome.STOPPED


# Callbacks.


class DiaryCallback(Callback):
    """Writes what it sees into the diary, and ends the run at a score or an opt step."""

    def __init__(self, diary: Diary, *, at_score: float = math.inf, at_opt: float = math.inf) -> None:
        self._diary, self._at_score, self._at_opt = diary, at_score, at_opt

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:
        self._diary.events.append(f"see record {opt_steps} {sorted(record)}")
        return "late enough" if opt_steps >= self._at_opt else None

    def on_evaluation(self, opt_steps: int, evaluation: Evaluation) -> str | None:
        self._diary.events.append(f"see score {opt_steps} {evaluation.score}")
        return "good enough" if evaluation.score >= self._at_score else None


def test_callbacks_see_each_evaluation_and_each_record_after_the_recorders(tmp_path: Path) -> None:
    diary = Diary(scores=[1.0])
    callbacks = Callbacks({"diary": DiaryCallback(diary)})
    learner = make(diary, tmp_path, max_opts=4, eval_interval=4, record_interval=2, callbacks=callbacks)
    diary.events.clear()
    run(learner, diary)
    keys = ["loss", "opt_steps_per_sec", "samples_per_opt_steps", "samples_per_sec", "samples_total", "seconds"]
    assert diary.events[:12] == [
        *("opt", "opt", "record", "flush", f"see record 2 {keys}"),
        *("opt", "opt", "evaluate", "see score 4 1.0", "save best", "record", "flush"),
    ]
    assert diary.events[12] == f"see record 4 {sorted([*keys, 'eval_reward'])}"
    assert learner.outcome is Outcome.MAX_OPTS


@pytest.mark.parametrize("limit", [{"at_score": 5.0}, {"at_opt": 6}])
def test_a_callback_ends_the_run_and_the_run_is_finished_then(tmp_path: Path, limit: dict[str, float]) -> None:
    diary = Diary(scores=[1.0, 2.0, 5.0, 9.0])
    callbacks = Callbacks({"diary": DiaryCallback(diary, **limit)})
    learner = make(diary, tmp_path, eval_interval=2, record_interval=2, save_interval=2, callbacks=callbacks)
    run(learner, diary)
    assert (learner.opt_steps, learner.outcome) == (6, Outcome.CALLBACK)
    assert Outcome.CALLBACK.is_finish
    assert diary.events[-5:] == ["save 6", "stop", "publish 6 and wait", "flush", "save final"]


def test_the_target_score_is_a_better_reason_to_end_than_a_callback(tmp_path: Path) -> None:
    diary = Diary(scores=[5.0])
    callbacks = Callbacks({"diary": DiaryCallback(diary, at_score=5.0)})
    learner = make(diary, tmp_path, eval_interval=1, target_score=5.0, callbacks=callbacks)
    run(learner, diary)
    assert learner.outcome is Outcome.TARGET


def test_what_a_callback_raises_ends_the_run(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:
            raise RuntimeError("my own bug")

    diary = Diary()
    learner = make(diary, tmp_path, record_interval=1, callbacks=Callbacks({"failing": Failing()}))
    with pytest.raises(RuntimeError, match="my own bug"):
        learner.step()
