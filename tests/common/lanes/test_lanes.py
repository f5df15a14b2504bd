"""Lanes of plain and of vector environments, as an evaluator or a user's own loop would step them."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from common.data import Array, Leaves
from common.lanes.building import lanes_of
from common.lanes.lanes import AnyEnv, Busy, Lanes, Round
from common.plugins.part_config import EnvConfig
from tests.actor.acting import together
from tests.parts import CountingEnv, UncloseableEnv

MODES = pytest.mark.parametrize("mode", [None, *AutoresetMode])


def counting(n: int, mode: AutoresetMode | None) -> Lanes:
    return lanes_of(together([CountingEnv() for _ in range(n)], mode))


def answers(obs: Leaves) -> Array:
    assert isinstance(obs, np.ndarray)
    actions: Array = ((obs[:, 1] + obs[:, 2]) % 3).astype(np.int64)
    return actions


def array(leaves: Leaves | None) -> Array:
    assert isinstance(leaves, np.ndarray)
    return leaves


@MODES
def test_a_round_says_what_came_of_each_lane(mode: AutoresetMode | None) -> None:
    lanes = counting(2, mode)
    lanes.reset(10)
    outcomes: list[Round] = []
    for number in range(6):
        obs = array(lanes.observe())
        assert (lanes.begins is None) == (number > 0)
        assert obs.tolist() == [[10, number + 1, 0], [11, number + 1, 0]]
        outcomes.append(lanes.step(answers(obs)))
        assert outcomes[-1].reward.tolist() == [number + 1, number + 1]
    last = outcomes[-1]
    assert last.terminated.tolist() == [True, True]
    assert last.truncated.tolist() == [False, False]
    assert last.ended is not None
    assert last.ended.tolist() == [0, 1]
    assert array(last.final_obs).tolist() == [[10, 7, 0], [11, 7, 0]]
    assert (list(last.returns), list(last.lengths), list(last.success)) == ([21.0, 21.0], [6, 6], [None, None])


@MODES
def test_lanes_go_on_with_the_next_episode(mode: AutoresetMode | None) -> None:
    lanes = counting(2, mode)
    lanes.reset(10)
    begun = []
    for number in range(9):
        obs = lanes.observe()
        if lanes.begins is not None:
            assert lanes.begins.tolist() == [True, True]
            begun.append((number, array(obs)[0].tolist()))
        outcome = lanes.step(answers(obs))
        assert (outcome.taken is not None) == (mode is AutoresetMode.NEXT_STEP and number == 6)
    later = 7 if mode is AutoresetMode.NEXT_STEP else 6
    assert begun == [(0, [10, 1, 0]), (later, [10, 8, 1])]


@MODES
def test_all_lanes_can_be_reset_at_any_time(mode: AutoresetMode | None) -> None:
    lanes = counting(2, mode)
    for seed, rounds in ((1, 3), (5, 6), (9, 1)):
        lanes.reset(seed)
        for _ in range(rounds):
            obs = lanes.observe()
            lanes.step(answers(obs))
    lanes.reset(20)
    assert array(lanes.observe()).tolist() == [[20, 1, 0], [21, 1, 0]]
    assert lanes.begins is not None
    assert lanes.begins.all()


@MODES
def test_a_reset_right_after_the_end_of_an_episode_leaves_nothing_of_it(mode: AutoresetMode | None) -> None:
    lanes = counting(2, mode)
    lanes.reset(10)
    for _ in range(6):  # The sixth step ends the episodes.
        lanes.step(answers(lanes.observe()))
    lanes.reset(20)
    first = lanes.step(answers(lanes.observe()))
    assert first.taken is None, "every lane took the step"
    assert array(lanes.observe()).tolist() == [[20, 2, 0], [21, 2, 0]]
    assert lanes.begins is None


@MODES
def test_a_keeper_sees_when_an_environment_is_busy(mode: AutoresetMode | None) -> None:
    seen: list[float] = []

    class Watched(CountingEnv):
        def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
            seen.append(keeper.busy.since)
            return super().reset(**options)

        def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            seen.append(keeper.busy.since)
            return super().step(action)

    class Watching:
        busy = Busy()

        def replace(self, env: AnyEnv, error: Exception | SystemExit) -> AnyEnv:
            raise error

    keeper = Watching()
    lanes = lanes_of(Watched() if mode is None else SyncVectorEnv([Watched], autoreset_mode=mode))
    lanes.keep(keeper)
    for _ in range(8):
        lanes.step(answers(lanes.observe()))
        assert keeper.busy.since == math.inf
    assert len(seen) >= 8
    assert all(math.isfinite(since) for since in seen)


class Informing(CountingEnv):
    """Its info has two keys."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        *outcome, _ = super().step(action)
        return (*outcome, {"force": 2.0, "executed": action})  # type: ignore[return-value]


def warnings_of(caplog: pytest.LogCaptureFixture, mode: AutoresetMode | None, steps: int, **env: Any) -> list[str]:
    config = EnvConfig(target="unused", **env)
    lanes = lanes_of(together([Informing() for _ in range(2)], mode), config)
    with caplog.at_level(logging.WARNING):
        for _ in range(steps):
            lanes.step(answers(lanes.observe()))
    return [record.getMessage() for record in caplog.records]


@MODES
def test_a_key_that_no_info_has_is_told_after_the_first_episode_with_the_nearest_and_again(
    mode: AutoresetMode | None, caplog: pytest.LogCaptureFixture
) -> None:
    found = warnings_of(caplog, mode, 40, info={"forse": "float32"})
    assert found[0] == ("env.info.forse: no info had this key in 2 episodes, so 0 is recorded (did you mean 'force'?)")
    assert 2 <= len(found) <= 4, "not after each episode"


@MODES
def test_an_intervention_that_never_came_is_told_of_only_where_a_similar_key_came(
    mode: AutoresetMode | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert not warnings_of(caplog, mode, 20, info={"force": "float32"}, intervention="teleoperated")
    found = warnings_of(caplog, mode, 10, intervention="executd")
    assert "env.intervention: no info had the key 'executd'" in found[0]
    assert "(did you mean 'executed'?)" in found[0]


def test_an_environment_that_does_not_close_is_left_after_a_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("common.lanes.lanes.CLOSE_SECONDS", 0.05)
    lanes_of(UncloseableEnv()).close()
    assert "an environment's close() has not returned within 0.05 s" in caplog.text
    assert "parts.py" in caplog.text, "the log says where it waits"


def test_an_environment_that_exits_when_it_is_closed_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Exiting(CountingEnv):
        def close(self) -> None:
            raise SystemExit(3)

    lanes_of(Exiting()).close()
    assert "an environment could not be closed" in caplog.text
