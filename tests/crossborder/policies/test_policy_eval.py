from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
import torch

from common.config.actor_config import ActorConfig, EvaluatorConfig
from common.interfaces import Agent, Evaluation
from common.lanes.building import Env
from common.parts import build_parts
from common.settings import validate
from crossborder.policies import policy_eval
from examples import connect_four
from learner.storage.checkpoint import Checkpoints
from tests.duels import ENV
from tests.learner.storage.test_checkpoint import CONFIG, dqn, save_own_parts


def test_a_saved_policy_is_scored_without_its_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=12)
    assert policy_eval.main(["--run", str(tmp_path), "--episodes", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["opt_steps"] == 12
    assert 1 <= found["eval_reward_min"] <= found["eval_reward"] <= found["eval_reward_max"] <= 500
    assert policy_eval.main(["--run", str(tmp_path), "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found, "the same seeds, the same score"
    assert policy_eval.main(["--run", str(tmp_path), "--best", "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found, "the best is what is scored unless another is named"


def test_a_policy_is_scored_in_the_environment_of_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = CONFIG.env.model_copy(update={"eval_params": {"max_episode_steps": 3}})
    Checkpoints(tmp_path, CONFIG.model_copy(update={"env": env}), "run").save("best", dqn(seed=1), opt_steps=12)
    assert policy_eval.main(["--run", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["eval_reward_min"], found["eval_reward_max"]) == (3.0, 3.0)


def test_a_policy_is_scored_under_other_settings_of_its_environment_and_evaluator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = CONFIG.env.model_copy(update={"eval_params": {"max_episode_steps": 3}})
    Checkpoints(tmp_path, CONFIG.model_copy(update={"env": env}), "run").save("best", dqn(seed=1), opt_steps=12)
    words = ["--run", str(tmp_path), "--json", "--set", "env.params.max_episode_steps=2"]
    assert policy_eval.main([*words, "--set", "evaluator.episodes=4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["eval_reward"], found["episodes"]) == (2.0, 4)
    assert policy_eval.main([*words, "--set", "agent.params.lr=1"]) == 2
    assert "expected a setting of env or evaluator" in capsys.readouterr().err


def test_an_environment_in_which_the_policy_cannot_act_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=12)
    assert policy_eval.main(["--run", str(tmp_path), "--set", "env.params.id=Pendulum-v1"]) == 2
    error = capsys.readouterr().err
    assert "policy-eval: env: expected spaces in which the policy can act, EnvSpec(" in error
    assert "found EnvSpec(observation_space=Box([-1. -1. -8.]" in error


def test_a_run_whose_environment_only_actors_have_says_who_can_score_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = {"type": "Box", "low": -1, "high": 1, "shape": [4]}
    spaces = {"observation": box, "action": {"type": "Discrete", "n": 2}}
    env = CONFIG.env.model_copy(update={"target": "no_such_game:Game", "params": {}, "spaces": spaces})
    Checkpoints(tmp_path, CONFIG.model_copy(update={"env": env}), "run").save("best", dqn(seed=1), opt_steps=12)
    assert policy_eval.main(["--run", str(tmp_path), "--allow", "no_such_game:Game"]) == 3
    assert "no_such_game" in (told := capsys.readouterr().err)
    assert "let an actor score policies" in told


def save_duellist(directory: Path, opt_steps: int) -> Path:
    """A policy for ``Duel`` whose action is this number."""
    values = {
        "env": {**ENV, "params": {**ENV["params"], "players": "random"}},
        "agent": {"target": "tests.duels:Versioned"},
    }
    config = validate(ActorConfig, values)
    agent = build_parts(config, seed=0).agent
    agent.load_params({"steps": torch.tensor([float(opt_steps)])})
    return Checkpoints(directory, config, "run").save("best", agent, opt_steps=opt_steps)


@pytest.mark.parametrize(("opponent", "share"), [(3, "eval_wins"), (5, "eval_draws"), (8, "eval_losses")])
def test_a_policy_plays_against_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opponent: int, share: str
) -> None:
    save_duellist(tmp_path / "one", 5)
    other = save_duellist(tmp_path / "other", opponent)
    words = ["--run", str(tmp_path / "one"), "--json", "--episodes", "20", "--allow", "tests.duels", "tests.duels:Duel"]
    assert policy_eval.main([*words, "--against", str(other)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in ("eval_wins", "eval_draws", "eval_losses")} == {
        **dict.fromkeys(("eval_wins", "eval_draws", "eval_losses"), 0.0),
        share: 1.0,
    }
    assert found["score"] == {"eval_wins": 1.0, "eval_draws": 0.0, "eval_losses": -1.0}[share]


def test_the_opponent_may_be_named_in_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy whose parts come with crossborder."""
    values = {
        "env": {"target": "pettingzoo", "params": {"id": "classic/tictactoe-v3"}},
        "agent": {"target": "DQN", "params": {"units": [8]}},
    }
    config = validate(ActorConfig, values)
    saved = Checkpoints(tmp_path, config, "run").save("best", build_parts(config, seed=0).agent, opt_steps=1)
    players = f"env.params.players={{saved: {saved}}}"
    assert policy_eval.main(["--run", str(tmp_path), "--json", "--episodes", "6", "--set", players]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["eval_wins"] + found["eval_draws"] + found["eval_losses"] == 1


@pytest.fixture
def beginner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy for Connect Four, and a person who names all columns one after another, also when they are full."""
    values = {
        "env": {"target": "pettingzoo", "params": {"id": "classic/connect_four-v3"}},
        "agent": {"target": "DQN", "params": {"units": [8]}},
    }
    config = validate(ActorConfig, values)
    columns = "".join(f"{column}\n" for column in (*range(7), "no column"))
    monkeypatch.setattr("sys.stdin", io.StringIO(columns * 20))
    return Checkpoints(tmp_path, config, "run").save("best", build_parts(config, seed=0).agent, opt_steps=1)


def test_a_person_in_the_terminal_plays_on_a_seat(beginner: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plays = ["--set", "env.params.players=examples.connect_four:person"]
    assert policy_eval.main(["--run", str(beginner), "--episodes", "4", *plays]) == 0
    told, shown = capsys.readouterr()  # What environments print goes to the errors.
    shares = [float(share) for share in re.findall(r"eval_(?:wins|draws|losses): (\S+)", told)]
    assert sum(shares) == 1
    boards = re.findall(r"((?:(?: [XO.]){7}\n){6})", shown)
    assert {board.count("O") - board.count("X") for board in boards} == {0, 1}, "the person begins, and the policy does"


def test_the_example_plays_a_game_in_the_terminal(beginner: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connect_four.main(str(beginner))
    assert re.search(r"player_[01] has (won|lost)\n$", capsys.readouterr().out)


def test_games_need_an_environment_with_seats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=12)
    assert policy_eval.main(["--run", str(tmp_path), "--against", str(tmp_path / "best")]) == 2
    assert "--against: expected an environment of PettingZoo (pettingzoo), found gymnasium" in capsys.readouterr().err


class Braked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole with a brake; it notes its steps and stops."""

    opened: ClassVar[list[Braked]] = []

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.calls: list[str] = []
        self.opened.append(self)

    def step(self, action: Any) -> Any:
        self.calls.append("step")
        return super().step(action)

    def halt(self) -> None:
        self.calls.append("halt")


def braked(render_mode: str | None = None) -> Env:
    return Braked(gymnasium.make("CartPole-v1", render_mode=render_mode))


@pytest.mark.parametrize("films", [False, True])
def test_a_robot_plays_alone_and_is_stopped_at_the_end(tmp_path: Path, films: bool) -> None:
    robot = {"target": f"{__name__}:braked", "params": {}, "rate_hz": 500.0, "safe_stop": "halt"}
    env = CONFIG.env.model_copy(update=robot)
    Checkpoints(tmp_path, CONFIG.model_copy(update={"env": env}), "run").save("best", dqn(seed=1), opt_steps=12)
    Braked.opened.clear()
    words = ["--run", str(tmp_path), "--allow", str(robot["target"]), "--episodes", "3"]
    assert policy_eval.main([*words, *(["--record-video"] if films else [])]) == 0
    (played,) = [env.calls for env in Braked.opened if env.calls]
    assert played == ["step"] * (len(played) - 1) + ["halt"]


class LongestEpisodes:
    """A user's evaluator: the score is a number that says how it was built."""

    def __init__(self, env: Env, config: EvaluatorConfig, bonus: float, seed: int) -> None:
        self._config, self._bonus, self._seed = config, bonus, seed

    def evaluate(self, agent: Agent) -> Evaluation:
        score = 100 * self._config.episodes + self._seed + self._bonus
        return Evaluation(score, {"own_key": self._bonus})


def test_a_policy_is_scored_by_the_evaluator_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = "tests.crossborder.policies.test_policy_eval:LongestEpisodes"
    evaluator = EvaluatorConfig(target=target, params={"bonus": 0.5}, episodes=3)
    Checkpoints(tmp_path, CONFIG.model_copy(update={"evaluator": evaluator}), "run").save(
        "best", dqn(seed=1), opt_steps=12
    )
    words = ["--run", str(tmp_path), "--allow", "tests", "--json"]
    assert policy_eval.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "checkpoint": str(tmp_path / "best"),
        "opt_steps": 12,
        "episodes": 3,
        "seed": 1000,
        "score": 1300.5,
        "own_key": 0.5,
    }
    assert policy_eval.main([*words, "--episodes", "7", "--seed", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["score"] == 701.5
    own = [*words, "--set", "evaluator.params.seed=50"]
    assert (policy_eval.main(own), json.loads(capsys.readouterr().out)["seed"]) == (0, 50)
    assert policy_eval.main([*own, "--seed", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seed"], found["score"]) == (2, 302.5)


def test_zero_episodes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=12)
    assert policy_eval.main(["--run", str(tmp_path), "--episodes", "0"]) == 2
    assert "episodes: expected a number greater than 0" in capsys.readouterr().err


def test_an_environment_that_draws_no_pictures_cannot_be_filmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_own_parts(tmp_path)
    assert policy_eval.main(["--run", str(tmp_path), "--allow", "examples", "--record-video"]) == 3
    assert "a video needs an environment that takes render_mode 'rgb_array'" in capsys.readouterr().err


def test_a_run_without_evaluations_gives_its_last_policy_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluator = EvaluatorConfig(episodes=2)
    Checkpoints(tmp_path, CONFIG.model_copy(update={"evaluator": evaluator}), "run").save(
        "final", dqn(seed=1), opt_steps=12
    )
    assert policy_eval.main(["--run", str(tmp_path), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["checkpoint"] == str(tmp_path / "final")
    assert f"{tmp_path} has no best/, so the policy at the end of training, final/, is used" in told.err
    assert policy_eval.main(["--run", str(tmp_path), "--best"]) == 12


def test_a_run_without_that_checkpoint_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert policy_eval.main(["--run", str(tmp_path), "--best"]) == 12
    assert "best: no readable checkpoint" in capsys.readouterr().err
    assert policy_eval.main(["--run", str(tmp_path)]) == 12
    assert "found neither: best/ comes with the first evaluation" in capsys.readouterr().err
