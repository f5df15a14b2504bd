"""The trainer looks for the opt step that first draws from the followed batch, and for the model after it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from common.data import ModelVersion
from learner.loop.learner import Learner
from learner.loop.opt_traces import OptTraces
from learner.shared.followed_batch import FollowedBatch
from tests.collector import collecting

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Trainer:
    """Opt steps by hand."""

    def __init__(self, directory: Path) -> None:
        self.learner = SimpleNamespace(opt_steps=0, opt=SimpleNamespace(seconds=0.0, seconds_since=lambda: 0.0))
        self.buffer = SimpleNamespace(last_drawn=np.empty(0, np.int64))
        self.newest = ModelVersion(1, 0)
        self.traces = OptTraces(
            directory, cast(Learner, self.learner), lambda: self.buffer.last_drawn, lambda: self.newest
        )

    def opt(self, *drawn: int, published: bool = False) -> None:
        self.learner.opt_steps += 1
        self.learner.opt.seconds += 0.5
        self.buffer.last_drawn = np.array(drawn)
        if published:
            self.newest = ModelVersion(1, self.learner.opt_steps)
        self.traces.note_opt()


def test_the_opt_step_that_first_draws_from_the_batch_and_the_next_model_are_in_its_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with collecting(monkeypatch) as collector:
        trainer = Trainer(tmp_path)
        ingests = FollowedBatch.open(tmp_path, create=False)
        trainer.opt(5, published=True)
        ingests.follow(3, range(100, 164), PARENT)
        trainer.opt(99, 164, published=True)
        trainer.opt(163, 5)
        trainer.opt(100)
        assert ingests.learnt == 0, "no model is published yet"
        trainer.opt(100, published=True)
        assert (ingests.learnt, ingests.opt_steps) == (1, 5)
        trace = collector.wait_for("opt", "publish")
    assert trace["opt"].attributes == {"opt_steps": 3}
    assert round((trace["opt"].ended - trace["opt"].began) / 1e8) == 5
    assert trace["publish"].attributes == {"opt_steps": 5}
    assert trace["publish"].began == pytest.approx(trace["opt"].ended, abs=1e6)


def test_without_a_collector_the_trainer_makes_no_file(tmp_path: Path) -> None:
    Trainer(tmp_path).opt(1)
    assert not list(tmp_path.iterdir())
