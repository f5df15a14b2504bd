from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.errors import ConfigError, PluginError
from common.evaluators import build_eval_env, open_evaluator
from common.lanes.building import build_env, spec_of
from common.lanes.watched_envs import EvaluationAbandoned, Watch
from common.plugins.part_config import EnvConfig
from tests.conftest import counting_config
from tests.parts import CheckingAgent, CountingEnv
from tests.robots import told


class WideEnv(CountingEnv):
    """Observations as wide as it is asked for."""

    def __init__(self, width: int, episodes: int = 0) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.episodes = episodes


def test_the_environment_of_evaluations_has_the_params_of_its_own() -> None:
    config = EnvConfig(target=f"{__name__}:WideEnv", params={"width": 2}, eval_params={"episodes": 9})
    env = build_eval_env(config, spec_of(build_env(config)))
    assert env.unwrapped.episodes == 9


def test_spaces_that_are_not_those_of_training_are_refused() -> None:
    config = EnvConfig(target=f"{__name__}:WideEnv", params={"width": 2}, eval_params={"width": 3})
    with pytest.raises(ConfigError, match=r"env.eval_params: expected the spaces of training, .*\(2,\).*\(3,\)"):
        build_eval_env(config, spec_of(WideEnv(width=2)))


def opened(tmp_path: Path, stack: ExitStack, abandoned: threading.Event, **evaluator: Any) -> Any:
    config = counting_config(tmp_path, evaluator=evaluator)
    return open_evaluator(config, spec_of(CountingEnv()), Watch(abandoned), stack)


def checking_agent() -> CheckingAgent:
    agent = CheckingAgent(spec_of(CountingEnv()), seed=0, epsilon=0.0, device="cpu")
    agent.eval()
    return agent


def test_the_evaluator_of_a_run_scores_its_agent(tmp_path: Path) -> None:
    with ExitStack() as stack:
        evaluation = opened(tmp_path, stack, threading.Event(), episodes=3).evaluate(checking_agent())
    assert evaluation.score == sum(range(1, 7))


def test_evaluations_in_a_simulation_need_not_keep_the_rate_of_a_robot(tmp_path: Path) -> None:
    config = counting_config(tmp_path, evaluator={"episodes": 3})
    env = config.env.model_copy(update={"rate_hz": 0.001, "eval_at_rate": False})  # A step would take 1000 s.
    with ExitStack() as stack:
        watch = Watch(threading.Event())
        evaluator = open_evaluator(config.model_copy(update={"env": env}), spec_of(CountingEnv()), watch, stack)
        assert evaluator.evaluate(checking_agent()).score == sum(range(1, 7))


def test_an_evaluation_that_nobody_waits_for_ends_in_whichever_environment_it_is(tmp_path: Path) -> None:
    abandoned = threading.Event()
    with ExitStack() as stack:
        evaluator = opened(tmp_path, stack, abandoned, episodes=3)
        evaluator.evaluate(checking_agent())
        abandoned.set()
        with pytest.raises(EvaluationAbandoned):
            evaluator.evaluate(checking_agent())


def test_an_evaluation_on_a_robot_plays_in_one_environment_and_stops_it_safely(tmp_path: Path) -> None:
    log = tmp_path / "log"
    params = {"log": str(log)}
    env = {"target": "tests.robots:Robot", "params": params, "rate_hz": 1000.0, "safe_stop": "halt"}
    config = counting_config(tmp_path, env=env, evaluator={"episodes": 2, "max_envs": 2})
    watch = Watch(threading.Event())
    with ExitStack() as stack:
        open_evaluator(config, spec_of(CountingEnv()), watch, stack).evaluate(checking_agent())
        assert "halt" not in told(log)
        watch.rest()
    assert [line for line in told(log) if line != "step"] == ["reset", "reset", "halt", "halt"]


def test_an_environment_without_the_method_of_the_safe_stop_is_refused(tmp_path: Path) -> None:
    config = counting_config(tmp_path)
    env = config.env.model_copy(update={"safe_stop": "halt"})
    with ExitStack() as stack, pytest.raises(PluginError, match=r"env\.safe_stop: expected a method .*'halt'"):
        open_evaluator(config.model_copy(update={"env": env}), spec_of(CountingEnv()), Watch(threading.Event()), stack)
