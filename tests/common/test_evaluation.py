from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from common.agents.dqn import DQN
from common.config.actor_config import EvaluatorConfig
from common.data import Array, Model, Record
from common.errors import ConfigError, PluginError
from common.evaluation import (
    DefaultEvaluator,
    RestingEnv,
    build_eval_env,
    open_evaluator,
    score_agent,
)
from common.interfaces import Agent, Evaluation, ReplayBuffer
from common.lanes.building import build_env, spec_of
from common.lanes.lanes import AnyEnv
from common.lanes.watched_envs import EvaluationAbandoned, Watch
from common.plugins.part_config import EnvConfig
from tests.conftest import counting_config
from tests.frame_parts import developed, filmed_counting_env
from tests.parts import CheckingAgent, CountingEnv
from tests.robots import told


class SeedEnv(gymnasium.Env[Array, Any]):
    """Pays the seed of the reset once a step, for three steps; ends in turn by termination and truncation."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self.seeds.append(seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        seed = self.seeds[-1] or 0
        done = self.steps == 3
        return np.zeros(1, np.float32), float(seed), done and seed % 2 == 0, done and seed % 2 == 1, {}


class Idle(Agent):
    def sample(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        return None

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {}

    def sync_model(self, model: Model) -> None: ...

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {}

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None: ...


def test_invariant_10_episode_i_starts_from_seed_plus_i_every_time() -> None:
    env = SeedEnv()
    evaluator = DefaultEvaluator(env, EvaluatorConfig(episodes=4))
    first, second = evaluator.evaluate(Idle()), evaluator.evaluate(Idle())
    assert env.seeds == [1000, 1001, 1002, 1003] * 2
    assert first == second


def test_an_episode_that_does_not_end_is_cut_off() -> None:
    evaluation = DefaultEvaluator(SeedEnv(), EvaluatorConfig(episodes=1, max_steps=2), seed=5).evaluate(Idle())
    assert evaluation.score == 10.0


def test_a_number_outside_its_space_with_which_an_agent_fails_is_the_environments_fault() -> None:
    class Outside(SeedEnv):
        observation_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return 3, {}

    env = Outside()
    agent = DQN(spec_of(env), seed=0, epsilon=0.0, device="cpu", units=[8])
    with pytest.raises(PluginError, match=r"observation: expected int64 \[1\] of 0 to 2, found int64 \[1\] 3"):
        DefaultEvaluator(env, EvaluatorConfig(episodes=1)).evaluate(agent)


def test_the_score_is_the_mean_undiscounted_return() -> None:
    evaluation = DefaultEvaluator(SeedEnv(), EvaluatorConfig(episodes=3), seed=1).evaluate(Idle())
    assert evaluation.score == 6.0
    assert evaluation.record == {
        "eval_reward": 6.0,
        "eval_reward_std": float(np.std([3.0, 6.0, 9.0])),
        "eval_reward_min": 3.0,
        "eval_reward_max": 9.0,
    }


class Longest:
    """A user's evaluator: scores by the longest of so many episodes."""

    def __init__(self, env: AnyEnv, config: EvaluatorConfig, bonus: float) -> None:
        self._inner, self._bonus = DefaultEvaluator(env, config, seed=1), bonus

    def evaluate(self, agent: Agent) -> Evaluation:
        evaluation = self._inner.evaluate(agent)
        return Evaluation(float(evaluation.record["eval_reward_max"]) + self._bonus, evaluation.record)


def test_an_own_evaluator_is_named_in_the_configuration(tmp_path: Path) -> None:
    own = {"target": f"{__name__}:Longest", "params": {"bonus": 0.5}, "episodes": 3}
    with ExitStack() as stack:
        evaluator = opened(tmp_path, stack, threading.Event(), **own)
        assert evaluator.evaluate(checking_agent()).score == sum(range(1, 7)) + 0.5


class Noting(Idle):
    """Notes how many lanes it acts in, and where episodes begin."""

    def __init__(self) -> None:
        self.begun: list[list[bool]] = []
        self.lanes: list[int] = []

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        self.begun.append(begins.tolist())

    def sample(self, obs: Array) -> Array:
        self.lanes.append(len(obs))
        return super().sample(obs)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (1.5, r"expected Evaluation\(score, record\), found float"),
        (Evaluation("good", {}), "score: expected a number, found 'good'"),  # type: ignore[arg-type]
        (Evaluation(1.5, {"seconds": 3.0}), "expected a name .* as key, found 'seconds'"),
    ],
)
def test_an_evaluator_that_gives_no_evaluation_is_refused(given: Any, found: str) -> None:
    class Broken:
        def evaluate(self, agent: Agent) -> Any:
            return given

    with pytest.raises(PluginError, match=f"^evaluator.evaluate: {found}$"):
        score_agent(Broken(), CheckingAgent(spec_of(CountingEnv()), seed=0, epsilon=0.0, device="cpu"))


def test_episodes_are_played_at_the_same_time_in_environments_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.evaluation.MAX_ENVS", 3)
    made: list[SeedEnv] = []

    def make() -> SeedEnv:
        made.append(SeedEnv())
        return made[-1]

    env, agent, config = SeedEnv(), Noting(), EvaluatorConfig(episodes=5)
    evaluation = DefaultEvaluator(env, config, make_env=make, seed=10).evaluate(agent)
    alone = DefaultEvaluator(SeedEnv(), config, seed=10).evaluate(Idle())
    assert evaluation == alone
    assert [env.seeds, *(each.seeds for each in made)] == [[10, 13], [11, 14], [12, 15]]
    assert set(agent.lanes) == {3}


def test_the_agent_hears_where_episodes_begin() -> None:
    agent = Noting()
    DefaultEvaluator(SeedEnv(), EvaluatorConfig(episodes=2)).evaluate(agent)
    assert agent.begun == [[True], [True]]


def test_an_environment_rests_after_its_episode_until_the_next_seed() -> None:
    env = SeedEnv()
    resting = RestingEnv(env)
    resting.reset(seed=4)
    assert [resting.step(0)[1] for _ in range(5)] == [4.0, 4.0, 4.0, 0.0, 0.0]
    resting.reset()
    assert (env.seeds, resting.step(0)[1]) == ([4], 0.0)
    resting.reset(seed=5)
    assert resting.step(0)[1] == 5.0


class Watching(Idle):
    """Looks at stacks of the last four pictures."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def sample(self, obs: Array) -> Array:
        steps = developed(obs)[0, :, 1]
        self.seen.append(steps.tolist())
        return ((developed(obs)[:, -1, 1] + developed(obs)[:, -1, 2]) % 3).astype(np.int64)


def test_an_agent_of_stacked_frames_sees_stacks_that_begin_with_each_episode() -> None:
    config = EnvConfig(target="tests.frame_parts:filmed_counting_env", frame_stack=4)
    agent = Watching()
    DefaultEvaluator(filmed_counting_env(), EvaluatorConfig(episodes=2), config).evaluate(agent)
    assert agent.seen[:5] == [[1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert agent.seen[6] == [1, 1, 1, 1]


def test_a_vector_environment_plays_an_episode_in_each_of_its_lanes() -> None:
    vector = gymnasium.vector.SyncVectorEnv([SeedEnv for _ in range(2)])
    config = EvaluatorConfig(episodes=3)
    assert DefaultEvaluator(vector, config, seed=1).evaluate(Idle()).score == 6.0


class WideEnv(CountingEnv):
    """Observations as wide as it is asked for."""

    def __init__(self, width: int, episodes: int = 0) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.episodes = episodes


@pytest.mark.parametrize("is_vector", [False, True])
def test_a_value_that_only_training_has_in_its_info_is_not_missed(
    caplog: pytest.LogCaptureFixture, *, is_vector: bool
) -> None:
    config = EnvConfig(target="none:none", info={"opponent": "int64"})
    env: Any = gymnasium.vector.SyncVectorEnv([SeedEnv]) if is_vector else SeedEnv()
    DefaultEvaluator(env, EvaluatorConfig(episodes=2), config).evaluate(Idle())
    assert caplog.messages == []


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
    config = counting_config(tmp_path, env=env, evaluator={"episodes": 2})
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
