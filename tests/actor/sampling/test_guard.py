"""Environments that raise, and some that never return."""

from __future__ import annotations

import faulthandler
import itertools
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from actor.sampling.guard import Guard, NotReplacedError, Watchdog
from actor.sampling.sampler import Sampler
from actor.stat import ActorCounters
from common.data import Array
from common.interfaces import StepProcessor
from common.lanes.building import EnvExitError, lanes_of
from common.lanes.lanes import Busy
from common.process.child import RestartPolicy
from tests.actor.acting import Kept, act, make_parts
from tests.actor.sampling.test_item_maker import Pairs
from tests.conftest import PATIENCE, ROOT, wait_for
from tests.parts import CountingEnv, check_rows, expected_rows


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
    make: Callable[[], Any],
    rounds: int,
    *,
    lanes: int = 1,
    times: int = 5,
    processors: Sequence[StepProcessor] = (),
    vector: bool = False,
) -> tuple[Kept, ActorCounters]:
    """Step guarded environments for this many rounds; they may be built anew ``times`` a minute."""
    counters, sink = ActorCounters(), Kept()
    parts = make_parts(make() if vector else [make() for _ in range(lanes)], processors=processors)
    assert parts.lanes is not None
    parts.lanes.keep(Guard(make, RestartPolicy(times), counters, Busy(), stopped=threading.Event()))
    sampler = Sampler(parts, counters, seed=7)
    for _ in range(rounds):
        sampler.sample_and_push(parts.agent, sink)
    return sink, counters


@pytest.fixture(autouse=True)
def _numbered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FragileEnv, "built", itertools.count())


def test_an_environment_that_raises_is_rebuilt_and_begins_another_episode() -> None:
    sink, counters = sample(FragileEnv, 25)
    rows = sink.items()
    check_rows(rows)
    steps = {name: column[~rows["final"]] for name, column in rows.items()}
    assert steps["obs"][:, 0].tolist() == [0.0] * 9 + [1.0] * 9 + [2.0] * 5
    assert np.flatnonzero(steps["terminated"]).tolist() == [5, 14]
    assert (counters.env_steps, counters.env_rebuilds) == (23, 2)


def test_an_episode_that_broke_has_no_final_row_and_the_next_one_has_its_first() -> None:
    rows = sample(FragileEnv, 25)[0].items()
    begins = np.flatnonzero(rows["first"])
    assert begins.tolist() == [0, 7, 10, 17, 20]
    assert [bool(rows["final"][begin - 1]) for begin in begins[1:]] == [True, False, True, False]


def test_an_episode_that_broke_is_not_counted_and_its_rewards_are_in_no_other() -> None:
    _, counters = sample(FragileEnv, 16)
    assert counters.take_episodes() == ([21.0, 21.0], [6, 6], [])


def test_no_item_reaches_from_the_episode_that_broke_into_the_next_one() -> None:
    sink, _ = sample(FragileEnv, 25, processors=[Pairs()])
    np.testing.assert_array_equal(sink.column("steps")[:, 0] + 1, sink.column("steps")[:, 1])


class FragileVector(SyncVectorEnv):
    """Two environments as one, which is lost with each of them."""

    def __init__(self) -> None:
        super().__init__([FragileEnv, FragileEnv], autoreset_mode="SameStep")


def test_when_a_vector_environment_raises_all_lanes_lose_their_episodes() -> None:
    sink, counters = sample(FragileVector, 25, vector=True)
    assert (counters.env_steps, counters.env_rebuilds) == (46, 2)
    for j in range(2):
        rows = sink.lane(j)
        check_rows(rows)
        assert sorted(set(rows["obs"][:, 0])) == [j, 2 + j, 4 + j]
        assert np.flatnonzero(rows["first"]).tolist() == [0, 7, 10, 17, 20]


def test_when_one_environment_raises_the_others_of_the_actor_go_on() -> None:
    envs = itertools.count()
    sink, counters = sample(lambda: CountingEnv() if next(envs) else FragileEnv(), 30, lanes=3)
    for j in (1, 2):
        np.testing.assert_array_equal(sink.lane(j)["obs"], expected_rows(7 + j, 30)["obs"])
    assert counters.env_rebuilds == 1


def test_a_round_in_which_all_environments_raise_pushes_nothing() -> None:
    sink, counters = sample(FragileEnv, 11, lanes=2)
    assert [len(items["obs"]) for items in sink.pushed] == [2] * 5 + [4] + [2] * 3 + [2]
    assert (counters.env_steps, counters.env_rebuilds) == (20, 2)


def test_an_environment_that_raises_in_reset_is_rebuilt() -> None:
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

    lanes = lanes_of(env)
    lanes.keep(Guard(HangingEnv, RestartPolicy(), ActorCounters(), busy, stopped=threading.Event()))
    with Watchdog(busy, 0.05, notice, ends_process=False):
        lanes.reset(0)
        lanes.observe()
        lanes.step(np.ones(1, np.int64))
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
    with Watchdog(Watched(), 0.02, noticed.append, ends_process=False):
        wait_for(lambda: Watched.looks >= 3, "the watchdog has looked")
    assert noticed == []


NEVER_LETS_GO = """
import ctypes
from actor.sampling import guard
from common.lanes.lanes import Busy
guard.LEAST_ALARM_SECONDS = 1.0
with guard.Watchdog(Busy(), 0.5, print):
    ctypes.PyDLL(None).sleep(1000)
"""


def test_an_environment_that_never_lets_go_of_the_interpreter_ends_its_process() -> None:
    command = [sys.executable, "-c", NEVER_LETS_GO]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert 'File "<string>", line 7' in done.stderr


def test_the_alarm_is_set_before_the_watchdogs_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, *, exit: done.append(f"alarm {seconds}"))
    monkeypatch.setattr(threading.Thread, "start", lambda _: done.append("thread"))
    Watchdog(Busy(), 0.5, print).__enter__()
    assert done == ["alarm 600.0", "thread"]


STOPPED = """
import os, sys, time
from actor.sampling.guard import Watchdog
from common.lanes.lanes import Busy
busy = Busy()
with Watchdog(busy, 2.0, lambda where: os._exit(17)):
    busy.since = time.monotonic()
    print("busy", flush=True)
    sys.stdin.readline()
    busy.since = float("inf")
"""


def test_a_process_that_was_stopped_itself_has_no_environment_that_hangs() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(4.0)  # The pause itself: longer than an environment may take.
        process.stdin.write("the environment returns\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE) == 0


class LeavingEnv(CountingEnv):
    """Calls ``sys.exit``."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        sys.exit(3)


def test_an_environment_that_calls_exit_counts_as_one_that_raised() -> None:
    counters = ActorCounters()
    lanes = lanes_of(LeavingEnv())
    lanes.keep(Guard(LeavingEnv, RestartPolicy(1, 60.0), counters, Busy(), stopped=threading.Event()))
    lanes.observe()
    outcome = lanes.step(np.zeros(1, np.int64))
    assert outcome.taken is not None
    assert not outcome.taken.any()
    assert counters.env_rebuilds == 1
    lanes.observe()
    with pytest.raises(EnvExitError, match=r"the environment called sys\.exit\(3\)"):
        lanes.step(np.zeros(1, np.int64))


def test_without_a_guard_exceptions_of_an_environment_come_through() -> None:
    parts = make_parts([FragileEnv()])
    with pytest.raises(ValueError, match="it broke"):
        act(parts, 12)


def test_the_learner_hears_why_no_other_environment_could_be_built() -> None:
    def build() -> CountingEnv:
        raise ConnectionRefusedError("no simulator")

    counters = ActorCounters()
    with pytest.raises(ConnectionRefusedError, match="no simulator"):
        Guard(build, RestartPolicy(1), counters, Busy(), stopped=threading.Event()).replace(
            FragileEnv(), ValueError("it broke")
        )
    assert counters.take_env_error().endswith("ConnectionRefusedError: no simulator\n")


class ToldSoon(threading.Event):
    """A process hears of a signal a little later than the processes of its environment."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout:
            self.set()
        return self.is_set()


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError(), ConnectionResetError("by peer")])
def test_an_environment_whose_processes_ended_by_the_signal_that_ends_its_worker_is_not_rebuilt(
    error: Exception,
) -> None:
    counters = ActorCounters()
    guard = Guard(FragileEnv, RestartPolicy(1), counters, Busy(), stopped=ToldSoon())
    with pytest.raises(NotReplacedError):
        guard.replace(FragileEnv(), error)
    assert counters.env_rebuilds == 0


def test_a_worker_that_ends_with_its_environment_is_not_busy_while_it_hands_over() -> None:
    """The watchdog would take the hand-over for an environment that hangs."""

    class Lost(CountingEnv):
        def step(self, action: Any) -> Any:
            raise EOFError

    busy, lanes = Busy(), lanes_of(Lost())
    lanes.keep(Guard(Lost, RestartPolicy(1), ActorCounters(), busy, stopped=ToldSoon()))
    lanes.observe()
    with pytest.raises(NotReplacedError):
        lanes.step(np.zeros(1, np.int64))
    assert busy.since == math.inf


def test_an_environment_that_raised_is_stopped_safely_before_it_is_closed() -> None:
    env, order = FragileEnv(), list[bool]()
    guard = Guard(
        FragileEnv,
        RestartPolicy(1),
        ActorCounters(),
        Busy(),
        stopped=threading.Event(),
        stop_safely=lambda failed: order.append(failed.closed),
    )
    guard.replace(env, ValueError("it broke"))
    assert (order, env.closed) == ([False], True)


def test_a_robot_is_stopped_before_anything_is_waited_for() -> None:
    order = list[str]()

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            order.append("wait")
            return True

    guard = Guard(
        FragileEnv,
        RestartPolicy(1),
        ActorCounters(),
        Busy(),
        stopped=Waits(),
        stop_safely=lambda _: order.append("stop"),
    )
    with pytest.raises(NotReplacedError):
        guard.replace(FragileEnv(), ConnectionResetError("the arm is gone"))
    assert order == ["stop", "wait"]
