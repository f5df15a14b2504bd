"""Environments that raise, and some that never return."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from actor.guard import Busy, EpisodeLostError, Guard, Watchdog
from actor.sampler import Sampler
from actor.stat import ActorCounters
from common.data import Array
from common.envs import Env, EnvExitError, spec_of
from common.interfaces import StepProcessor
from common.parts import Lane
from common.process.child import RestartPolicy
from common.processors import NStep, OneStep
from tests.actor.test_sampler import Kept
from tests.conftest import PATIENCE, ROOT, wait_for
from tests.parts import CheckingAgent, CountingEnv, check_rows


class FragileEnv(CountingEnv):
    """The k-th to be built calls itself so in its observations, and raises in its tenth step."""

    built = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self._tag = next(self.built)
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        return super().reset(options=options)

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self._step - self._episode == 10:
            raise ValueError("it broke")
        return super().step(action)

    def close(self) -> None:
        self.closed = True
        raise OSError("and does not close")


class StubbornEnv(CountingEnv):
    """Raises when it is reset with a seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:
            raise ValueError("no seed, please")
        return super().reset(options=options)


def sample(
    make: Callable[[], Env],
    rounds: int,
    *,
    processor: Callable[[], StepProcessor] = OneStep,
    lanes: int = 1,
    times: int = 5,
) -> tuple[Kept, ActorCounters]:
    """Step guarded environments for this many rounds; they may be built anew ``times`` a minute."""
    counters, sink, allowance, busy = ActorCounters(), Kept(), RestartPolicy(times), Busy()
    guarded = [Lane(Guard(make(), make, allowance, counters, busy), processor()) for _ in range(lanes)]
    sampler = Sampler(guarded, counters, seed=7)
    agent = CheckingAgent(spec_of(CountingEnv()), seed=7, epsilon=0.0, device="cpu")
    for _ in range(rounds):
        sampler.sample_and_push(agent, sink)
    return sink, counters


@pytest.fixture(autouse=True)
def _numbered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FragileEnv, "built", itertools.count())


def test_an_environment_that_raises_is_built_anew_and_goes_on_with_another_episode() -> None:
    sink, counters = sample(FragileEnv, 25)
    items = {name: sink.column(name) for name in sink.pushed[0]}
    check_rows(items)  # So none of them ends where the environment broke.
    assert items["obs"][:, 0].tolist() == [0.0] * 9 + [1.0] * 9 + [2.0] * 5
    assert np.flatnonzero(items["terminated"]).tolist() == [5, 14]
    assert (counters.env_steps, counters.env_rebuilds) == (23, 2)


def test_an_episode_that_broke_is_not_counted_and_its_rewards_are_in_no_other() -> None:
    _, counters = sample(FragileEnv, 16)
    assert counters.take_episodes() == ([21.0, 21.0], [6, 6], [])


def test_no_item_reaches_from_the_episode_that_broke_into_the_next_one() -> None:
    sink, _ = sample(FragileEnv, 25, processor=NStep)
    obs, next_obs = sink.column("obs"), sink.column("next_obs")
    np.testing.assert_array_equal(obs[:, 0], next_obs[:, 0])
    steps = np.log(sink.column("discount")) / np.log(0.99)
    np.testing.assert_allclose(next_obs[:, 1] - obs[:, 1], steps, atol=1e-3)


def test_when_one_environment_raises_the_others_of_the_actor_go_on() -> None:
    envs = itertools.count()
    sink, counters = sample(lambda: CountingEnv() if next(envs) else FragileEnv(), 30, lanes=3)
    tags = sink.column("obs")[:, 0].tolist()
    assert (tags.count(8), tags.count(9), counters.env_rebuilds) == (30, 30, 1)


def test_a_round_in_which_all_environments_raise_pushes_nothing() -> None:
    sink, counters = sample(FragileEnv, 11, lanes=2)
    assert [len(items["obs"]) for items in sink.pushed] == [2] * 10
    assert (counters.env_steps, counters.env_rebuilds) == (20, 2)


def test_an_environment_that_raises_in_reset_is_built_anew() -> None:
    sink, counters = sample(StubbornEnv, 5)
    assert len(sink.pushed) == 5
    assert counters.env_rebuilds == 1


def test_an_environment_that_raises_too_often_ends_the_actor_with_its_own_exception() -> None:
    with pytest.raises(ValueError, match="it broke"):
        sample(FragileEnv, 40, times=3)
    assert next(FragileEnv.built) == 4, "the first one, and three more"


def test_the_traceback_of_an_environment_is_kept_for_the_learner_once() -> None:
    _, counters = sample(FragileEnv, 10)
    told = counters.take_env_error()
    assert told.startswith("Traceback")
    assert told.endswith("ValueError: it broke\n")
    assert counters.take_env_error() == ""


class HangingEnv(CountingEnv):
    """Its first step ends when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert self.free.wait(PATIENCE)
        return super().step(action)


def test_an_environment_that_does_not_return_is_noticed_with_where_it_hangs() -> None:
    env, busy, noticed = HangingEnv(), Busy(), []

    def notice(where: str) -> None:
        noticed.append(where)
        env.free.set()

    guard = Guard(env, HangingEnv, RestartPolicy(), ActorCounters(), busy)
    with Watchdog(busy, 0.05, notice):
        guard.reset()
        guard.step(1)
    assert len(noticed) == 1
    assert "in step\n    assert self.free.wait(PATIENCE)" in noticed[0]


def test_time_outside_environments_does_not_count_as_hanging() -> None:
    class Watched(Busy):
        looks = 0

        def __getattribute__(self, name: str) -> Any:
            if name == "since":
                Watched.looks += 1
            return super().__getattribute__(name)

    noticed: list[str] = []
    with Watchdog(Watched(), 0.02, noticed.append):
        wait_for(lambda: Watched.looks >= 3, "the watchdog has looked")
    assert noticed == []


NEVER_LETS_GO = """
import ctypes
from actor.guard import Busy, Watchdog
with Watchdog(Busy(), 0.5, print):
    ctypes.PyDLL(None).sleep(1000)
"""


def test_an_environment_that_never_lets_go_of_the_interpreter_ends_its_process() -> None:
    command = [sys.executable, "-c", NEVER_LETS_GO]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert 'File "<string>", line 5' in done.stderr


class LeavingEnv(CountingEnv):
    """Calls ``sys.exit``."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        sys.exit(3)


def test_an_environment_that_calls_exit_counts_as_one_that_raised() -> None:
    counters, busy = ActorCounters(), Busy()
    guard = Guard(LeavingEnv(), LeavingEnv, RestartPolicy(1, 60.0), counters, busy)
    guard.reset(seed=0)
    with pytest.raises(EpisodeLostError):
        guard.step(0)
    assert counters.env_rebuilds == 1
    with pytest.raises(EnvExitError, match=r"the environment called sys\.exit\(3\)"):
        guard.step(0)
