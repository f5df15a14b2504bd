from __future__ import annotations

import copy
import math
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.lanes.building import EnvExitError
from common.lanes.lanes import Busy
from common.lanes.pace import Pace
from common.lanes.vector_lanes import is_vector
from common.lanes.watched_envs import EvaluationAbandoned, Watch
from tests.common.lanes.test_pace import Clock
from tests.common.test_evaluation import SeedEnv
from tests.parts import CountingEnv, counting_action


def test_an_abandoned_environment_can_neither_step_nor_be_reset() -> None:
    abandoned = threading.Event()
    env = Watch(abandoned).over(SeedEnv())
    np.testing.assert_array_equal(env.reset(seed=3)[0], [0.0])
    assert env.step(0)[1] == 3.0
    abandoned.set()
    with pytest.raises(EvaluationAbandoned):
        env.step(0)
    with pytest.raises(EvaluationAbandoned):
        env.reset()


def test_an_abandoned_vector_environment_can_neither_step_nor_be_reset() -> None:
    abandoned = threading.Event()
    env = Watch(abandoned).over(gymnasium.vector.SyncVectorEnv([SeedEnv, SeedEnv]))
    assert is_vector(env)
    env.reset(seed=3)
    np.testing.assert_array_equal(env.step(np.zeros(2, np.int64))[1], [3.0, 4.0])
    abandoned.set()
    with pytest.raises(EvaluationAbandoned):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(EvaluationAbandoned):
        env.reset()


def test_an_evaluator_finds_what_is_special_about_its_environment() -> None:
    env = Watch(threading.Event()).over(SeedEnv())
    env.reset(seed=3)
    assert env.seeds == [3]
    with pytest.raises(AttributeError, match="sedes"):
        _ = env.sedes
    with pytest.raises(TypeError, match="cannot pickle"):
        copy.deepcopy(env)  # An event cannot be copied; nothing worse happens.


def test_an_environment_is_busy_during_its_steps_and_resets() -> None:
    busy, seen = Busy(), []

    class Looking(SeedEnv):
        def step(self, action: int) -> Any:
            seen.append(busy.since)
            return super().step(action)

    env = Watch(threading.Event(), busy).over(Looking())
    env.reset(seed=3)
    env.step(0)
    assert math.isfinite(seen[0])
    assert busy.since == math.inf


def test_an_environment_that_calls_exit_raises_instead() -> None:
    class Leaving(SeedEnv):
        def step(self, action: int) -> Any:
            sys.exit(3)

    env = Watch(threading.Event()).over(Leaving())
    env.reset()
    with pytest.raises(EnvExitError, match=r"sys\.exit\(3\)"):
        env.step(0)


def test_a_safe_stop_is_watched_and_leaves_environments_as_busy_as_they_were() -> None:
    busy, seen = Busy(), list[float]()
    watch = Watch(threading.Event(), busy)
    with watch.stopping(lambda: seen.append(busy.since)):
        watch.rest()
        assert busy.since == math.inf
        busy.since = 1.0  # They are being built anew since then.
    assert max(seen) < math.inf
    assert busy.since == 1.0


def test_an_environment_keeps_the_pace_for_whoever_steps_it() -> None:
    clock = Clock()
    env = Watch(clock).over(CountingEnv(), Pace(10.0, clock, clock=clock))
    obs, _ = env.reset(seed=1)
    for _ in range(3):
        obs = env.step(counting_action(obs))[0]
    assert clock.now == pytest.approx(100.2)
    assert isinstance(env, gymnasium.Env)
    clock.set()
    with pytest.raises(EvaluationAbandoned):
        env.step(counting_action(obs))
