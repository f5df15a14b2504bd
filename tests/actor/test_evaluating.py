"""An actor's scores of candidates, in this process; ``tests/e2e/test_evaluating_actor.py`` has a learner too."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actor.evaluating import CandidateScorer
from actor.sampling.guard import Watchdog
from actor.stat import ActorCounters
from common.data import Array, Model, ModelVersion
from common.errors import FaultError, PluginError
from common.interfaces import Agent, Evaluation
from common.lanes.lanes import Busy
from common.lanes.watched_envs import Watch
from common.parts import build_parts
from tests.conftest import PATIENCE, counting_config
from tests.parts import CountingEnv


class Fragile(CountingEnv):
    """The first ones to be built for evaluations raise in their third step, and when they are closed.

    Environment -1 only tells its spaces.
    """

    built: Iterator[int]
    closed: list[int]

    def __init__(self, broken: int) -> None:
        super().__init__()
        self._number = next(self.built)
        self._is_broken = 0 <= self._number < broken

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self._is_broken and self._step == 3:
            raise ValueError("it broke")
        return super().step(action)

    def close(self) -> None:
        self.closed.append(self._number)
        if self._is_broken:
            raise OSError("and does not close")


class Hanging(CountingEnv):
    """Does not return from its first step until it is told to."""

    free: threading.Event

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert self.free.wait(PATIENCE)
        return super().step(action)


class Unbuildable:
    """An evaluator that cannot be built."""

    def __init__(self, env: Any, config: Any) -> None:
        raise ValueError("no evaluator")


class Undefined:
    """An evaluator whose score is NaN."""

    def __init__(self, env: Any, config: Any) -> None:
        pass

    def evaluate(self, agent: Agent) -> Evaluation:
        return Evaluation(math.nan, {"eval_reward_std": 0.0})


@pytest.fixture(autouse=True)
def _anew() -> None:
    Fragile.built, Fragile.closed, Hanging.free = itertools.count(-1), [], threading.Event()


class Candidates:
    """Gives models one after another, and then stops whoever asks."""

    def __init__(self, stopped: threading.Event, *opt_steps: int) -> None:
        self._stopped, self._opt_steps = stopped, iter(opt_steps)

    def wait_newer(self, version: ModelVersion, seconds: float) -> Model | None:
        opt_steps = next(self._opt_steps, None)
        if opt_steps is None:
            self._stopped.set()
            return None
        return Model(ModelVersion(1, opt_steps), {"steps": np.array([opt_steps], np.float32)})


class Evaluating:
    """A scorer of candidates, and what it tells."""

    def __init__(self, run_dir: Path, env: dict[str, Any], evaluator: dict[str, Any] | None = None) -> None:
        evaluator = evaluator or {"episodes": 3}
        config = counting_config(run_dir, env=env, evaluator=evaluator, agent={"params": {"in_turns": True}})
        self.stopped, self.busy, self.counters = threading.Event(), Busy(), ActorCounters()
        self.scores: list[tuple[ModelVersion, float, Mapping[str, float], float]] = []
        parts = build_parts(config, seed=0)
        watch = Watch(self.stopped, self.busy)
        self.scorer = CandidateScorer(config, parts, self.counters, watch, lambda *score: self.scores.append(score))

    def run(self, *opt_steps: int) -> list[int]:
        """Score candidates of so many opt steps; return the opt steps of those that have a score."""
        try:
            self.scorer.run(Candidates(self.stopped, *opt_steps).wait_newer, lambda: False)
        finally:
            self.scorer.close()
        return [version.opt_steps for version, *_ in self.scores]


def fragile(broken: int, rebuilds: int = 5) -> dict[str, Any]:
    return {"target": f"{__name__}:Fragile", "params": {"broken": broken}, "rebuilds_per_minute": rebuilds}


@contextmanager
def watched(evaluating: Evaluating, noticed: list[str]) -> Iterator[None]:
    def notice(where: str) -> None:
        noticed.append(where)
        Hanging.free.set()

    with Watchdog(evaluating.busy, 0.05, notice, ends_process=False):
        yield


def test_each_candidate_is_adopted_and_scored_once(tmp_path: Path) -> None:
    evaluating = Evaluating(tmp_path, {})
    assert evaluating.run(10, 20) == [10, 20]
    assert [score for _, score, *_ in evaluating.scores] == [21.0, 21.0]
    *_, record, seconds = evaluating.scores[0]
    assert record["eval_reward_std"] == 0.0
    assert seconds > 0


def test_after_an_environment_raised_the_candidate_is_scored_in_new_ones(tmp_path: Path) -> None:
    evaluating = Evaluating(tmp_path, fragile(broken=4))
    assert evaluating.run(10, 20) == [10, 20]
    assert [score for _, score, *_ in evaluating.scores] == [21.0, 21.0]
    assert evaluating.counters.env_rebuilds == 2, "three environments raised together, and then one"


def test_the_traceback_is_kept_for_the_learner_and_all_environments_are_closed(tmp_path: Path) -> None:
    evaluating = Evaluating(tmp_path, fragile(broken=1))
    evaluating.run(10)
    assert evaluating.counters.take_env_error().endswith("ValueError: it broke\n")
    assert sorted(Fragile.closed) == [-1, *range(6)]


def test_environments_that_raise_too_often_end_the_actor_with_their_own_exception(tmp_path: Path) -> None:
    evaluating = Evaluating(tmp_path, fragile(broken=100, rebuilds=2))
    with pytest.raises(ValueError, match="it broke"):
        evaluating.run(10)
    assert (evaluating.scores, evaluating.counters.env_rebuilds) == ([], 2)


def test_an_environment_is_closed_when_its_evaluator_cannot_be_built(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="ValueError: no evaluator"):
        Evaluating(tmp_path, fragile(broken=0), {"target": f"{__name__}:Unbuildable"})
    assert sorted(Fragile.closed) == [-1, 0]


def test_a_score_that_is_no_number_ends_the_actor_and_names_the_evaluator(tmp_path: Path) -> None:
    evaluating = Evaluating(tmp_path, {}, {"target": f"{__name__}:Undefined"})
    with pytest.raises(
        PluginError, match=r"evaluator: expected finite values, found the score nan and {'eval_reward_std': 0.0}"
    ):
        evaluating.run(10)
    assert evaluating.scores == []


def test_an_actor_that_is_stopped_ends_its_evaluation_without_a_score(tmp_path: Path) -> None:
    evaluating = Evaluating(tmp_path, {"target": f"{__name__}:Hanging"})

    def stop() -> None:
        evaluating.stopped.set()
        Hanging.free.set()

    threading.Timer(0.05, stop).start()
    assert evaluating.run(10, 20) == []


def test_an_environment_that_does_not_return_is_noticed_with_where_it_hangs(tmp_path: Path) -> None:
    evaluating = Evaluating(tmp_path, {"target": f"{__name__}:Hanging"})
    noticed: list[str] = []
    with watched(evaluating, noticed):
        assert evaluating.run(10) == [10]
    assert len(noticed) == 1
    assert "in step\n    assert self.free.wait(PATIENCE)" in noticed[0]
