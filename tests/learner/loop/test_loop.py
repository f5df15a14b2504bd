"""The loop that trains with actors: what happens in each of its turns, in which order."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest
import torch

from common.errors import StarvedError
from learner.loop.intake import Intake
from learner.loop.learner import Learner, Outcome
from learner.loop.loop import train
from learner.loop.opt_traces import OptTraces
from learner.models.publisher import ModelPublisher
from learner.replay.limiter import RatioLimiter
from learner.replay.ratio import LiveRatio
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock
from tests.learner.loop.test_learner import Diary, make


class DiaryPublisher(ModelPublisher):
    """Writes into the diary when the loop looks for a model that is on its way."""

    diary: Diary

    def settle(self, *, wait: bool = False) -> None:
        self.diary.events.append("settle" + " and wait" * wait)
        super().settle(wait=wait)


class DiaryTraces(OptTraces):
    """Writes into the diary when an opt step is noted."""

    diary: Diary

    def note_opt(self) -> None:
        self.diary.events.append("trace")
        super().note_opt()


class Host:
    """All that the loop needs, around a learner with a diary."""

    def __init__(self, directory: Path, diary: Diary, learner: Learner, *, warmup: int = 0) -> None:
        self.learner, self.control = learner, ControlBlock.open(directory, create=True)
        self.intake = Intake(
            buffer=diary,
            ratio=LiveRatio(self.control, RatioLimiter(None, warmup=warmup)),
            control=self.control,
            bell=Bell.create(),
            release_held=lambda: diary.events.append(f"release after {self.control.opt_steps}"),
            starvation_seconds=3.0,
            clock=partial(next, itertools.count()),
        )
        self.publisher = DiaryPublisher(directory / "models", {"w": torch.zeros(1)}, incarnation=1)
        self.traces = DiaryTraces(directory, learner, diary, self.publisher.slots.newest)  # type: ignore[arg-type] # no traces, so nothing asks for drawn rows
        self.publisher.diary = self.traces.diary = diary
        diary.events.clear()

    def train(self) -> None:
        train(self.learner, self.intake, self.publisher, self.traces)


def test_after_an_opt_step_ingest_is_told_then_a_model_may_arrive_then_the_step_is_traced(tmp_path: Path) -> None:
    diary = Diary()
    host = Host(tmp_path, diary, make(diary, tmp_path, max_opts=2, sync_interval=1))
    host.train()
    assert diary.events == [
        *("opt", "publish 1", "release after 1", "settle", "trace"),
        *("opt", "release after 2", "settle", "trace"),
    ]
    assert host.learner.outcome is Outcome.MAX_OPTS
    assert (host.control.opt_steps, host.control.trainer_beats) == (2, 2)


@pytest.mark.parametrize("holds", ["the ratio", "the agent"])
def test_without_an_opt_step_a_model_becomes_the_newest_before_the_wait_for_rows(tmp_path: Path, holds: str) -> None:
    diary = Diary()
    if holds == "the agent":
        diary.agent.ready_at = 5
    host = Host(tmp_path, diary, make(diary, tmp_path), warmup=5 if holds == "the ratio" else 0)
    with pytest.raises(StarvedError):
        host.train()
    assert diary.events[:2] == ["settle and wait", "release after 0"], "ingest is asked for rows in the wait"
    assert "opt" not in diary.events
    assert host.control.trainer_beats == diary.events.count("settle and wait")
