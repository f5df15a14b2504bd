"""Parts that prove things: an environment that counts, an agent that checks what it is given."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from common.data import Array, Column, Items, Model, Record, Schema
from common.errors import CheckpointError, PluginError
from common.interfaces import Agent, EnvSpec, Evaluation, ReplayBuffer
from common.lanes.building import Env
from common.process import ending
from common.spaces import columns_of

EPISODE = 7


def counting_action(obs: Array) -> int:
    """What ``CountingEnv`` expects to be answered."""
    return int(obs[1] + obs[2]) % 3


class CountingEnv(gymnasium.Env[Array, Any]):
    """Observations ``[tag, step, episode]`` that name their place in the life of one environment; never the same twice.

    The tag is the seed of a reset, which begins another life. Episodes have 7 steps and end in turn by termination and
    truncation.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self._tag, self._step, self._episode = -1, 0, -1

    def _obs(self) -> Array:
        return np.array([self._tag, self._step, self._episode], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:
            self._tag, self._step, self._episode = seed, 0, -1
        self._episode += 1
        self._step += 1
        return self._obs(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert action == counting_action(self._obs()), "the agent acted on another observation"
        reward = float(self._step)
        self._step += 1
        done = (self._step - self._episode) % EPISODE == 0
        return self._obs(), reward, done and self._episode % 2 == 0, done and self._episode % 2 == 1, {}


class PacedEnv(CountingEnv):
    """Takes some time for a step, so that a test's actors leave the cores to the processes that it waits for."""

    def __init__(self, seconds: float = 0.01) -> None:
        super().__init__()
        self._seconds = seconds

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return super().step(action)


class Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes two milliseconds more for each step of an environment, as ``PacedEnv`` does for its own."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(0.002)
        return super().step(action)


PACED: dict[str, Any] = {"wrappers": [{"target": "tests.parts:Paced"}]}
"""The settings of a section ``env`` whose steps leave the cores to others."""


class LingeringEnv(CountingEnv):
    """Starts a thread that never ends; the process does not wait for it for as long as for users'."""

    def __init__(self) -> None:
        super().__init__()
        ending.TOLD_SECONDS = ending.END_SECONDS = 0  # type: ignore[misc]
        threading.Thread(target=threading.Event().wait, name="client").start()


class SignalTakingEnv(PacedEnv):
    """Ignores a signal from each reset on; the signal comes once, in the middle of the fifth episode."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def reset(self, **given: Any) -> tuple[Array, dict[str, Any]]:
        signal.signal(self._number, signal.SIG_IGN)
        return super().reset(**given)

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self._step == 27:
            os.kill(os.getpid(), self._number)
        return super().step(action)


class NanEnv(CountingEnv):
    """Its fifth reward is not a number."""

    fifth = np.nan

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, self.fifth if reward == 5 else reward, terminated, truncated, info


class InfiniteEnv(NanEnv):
    """Its fifth reward is infinite."""

    fifth = np.inf


class FailingEnv(CountingEnv):
    """Fails at step ``at`` of a life; once only, and then writes that it did."""

    def __init__(self, marker: str, at: int = 300) -> None:
        super().__init__()
        self._marker, self._at = Path(marker), at

    def fail(self) -> None:
        raise ValueError("once only")

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self._step == self._at and self._is_first():
            self.fail()
        return super().step(action)

    def _is_first(self) -> bool:
        # Two actors may reach the step in the same instant: the one that makes the file fails, the other goes on.
        try:
            self._marker.open("x").close()
        except FileExistsError:
            return False
        return True


class DyingEnv(FailingEnv):
    """Ends its own process by a segfault."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class InterruptedEnv(FailingEnv):
    """Gets Ctrl-C twice in one step; writes how often it has gone on after one."""

    def fail(self) -> None:
        for found in ("one interrupt", "two interrupts"):
            signal.raise_signal(signal.SIGINT)
            self._marker.write_text(found)


class SlowlyBuiltEnv(CountingEnv):
    """Takes until there is no file ``busy`` any more to be built."""

    def __init__(self, busy: str) -> None:
        super().__init__()
        while Path(busy).exists():
            time.sleep(0.01)


class HangingEnv(FailingEnv):
    """Does not return."""

    def fail(self) -> None:
        threading.Event().wait()


class UncloseableEnv(CountingEnv):
    """Waits in ``close`` for a simulator that never answers."""

    def close(self) -> None:
        threading.Event().wait()


class ExitingEnv(FailingEnv):
    """Ends the process as no environment should."""

    def __init__(self, marker: str, at: int, error: str) -> None:
        super().__init__(marker, at)
        self._error: BaseException = {"exit": SystemExit(3), "interrupt": KeyboardInterrupt()}[error]

    def fail(self) -> None:
        raise self._error


class PausingEnv(FailingEnv):
    """Takes three seconds for a step."""

    def fail(self) -> None:
        time.sleep(3.0)


class Goals(gymnasium.Env[Any, Any]):
    """From the middle of five places two steps to the goal at either end; a step costs 1, the last nothing."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict(
        {
            name: gymnasium.spaces.Box(-2, 2, (1,), np.float64)
            for name in ("observation", "achieved_goal", "desired_goal")
        }
    )

    def _obs(self) -> dict[str, Array]:
        at, goal = np.array([self._at], np.float64), np.array([self._goal], np.float64)
        return {"observation": at, "achieved_goal": at, "desired_goal": goal}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._steps, self._goal = 0, 0, int(self.np_random.choice([-2, 2]))
        return self._obs(), {}

    def step(self, action: int) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        self._at = int(np.clip(self._at + (1 if action else -1), -2, 2))
        self._steps += 1
        there = self._at == self._goal
        return self._obs(), 0.0 if there else -1.0, there, self._steps == 10, {}


class Throws(gymnasium.Env[Any, Any]):
    """Throw with the hand on the side of the target, and so far: a step earns at most 1, with the other hand nothing.

    Episodes have 10 steps. Of all policies that always throw with one hand, or always equally far, the best earns 5.
    """

    action_space = gymnasium.spaces.Dict(
        {"hand": gymnasium.spaces.Discrete(2, start=1), "far": gymnasium.spaces.Box(0, 4, (1,), np.float32)}
    )
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def _obs(self) -> Array:
        self._target = self.np_random.choice([-1.0, 1.0], 2).astype(np.float32)
        return self._target

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        side, place = self._target
        miss = abs(float(action["far"][0]) - (2 + place))
        reward = max(0.0, 1 - miss) if action["hand"] == (2 if side > 0 else 1) else 0.0
        self._steps += 1
        return self._obs(), reward, self._steps == 10, False, {}


def counting_schema(*extras: Column) -> Schema:
    """The schema of the rows of ``CountingEnv``, with further columns before the last four."""
    obs, action = columns_of("obs", CountingEnv.observation_space), columns_of("action", CountingEnv.action_space)
    flags = [Column.of(name, np.bool_) for name in ("terminated", "truncated")]
    return Schema.of_rows((*obs, *action, Column.of("reward", np.float32), *flags, *extras))


def expected_rows(tag: int, steps: int, *, lane: int = 0, version: int = 0) -> Items:
    """The rows of the first ``steps`` steps of the environment that was seeded with ``tag``, final rows included."""
    env, rows = CountingEnv(), []
    obs, first = env.reset(seed=tag)[0], True
    for _ in range(steps):
        action = counting_action(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, terminated, truncated, version, first, False, lane))
        obs, first = next_obs, False
        if terminated or truncated:
            rows.append((obs, action, 0.0, False, False, version, False, True, lane))
            obs, first = env.reset()[0], True
    columns = list(zip(*rows, strict=True)) or [()] * len(counting_schema().columns)
    pairs = zip(counting_schema().columns, columns, strict=True)
    return {c.name: np.array(values, c.dtype).reshape(len(rows), *c.shape) for c, values in pairs}


def expected_transitions(tag: int, steps: int) -> Items:
    """The first ``steps`` transitions of the environment that was seeded with ``tag``."""
    rows = expected_rows(tag, steps)
    taken = np.flatnonzero(~rows["final"])
    obs = np.concatenate([rows["obs"], _next_of(rows["obs"][-1:])])
    names = ("obs", "action", "reward", "terminated", "truncated", "version")
    return {**{name: rows[name][taken] for name in names}, "next_obs": obs[taken + 1]}


def _next_of(obs: Array) -> Array:
    """The observation that follows within an episode."""
    return obs + np.array([0, 1, 0], np.float32)


def check_transitions(items: Mapping[str, Array]) -> None:
    """Every item of a batch is one whole transition of one environment."""
    obs, next_obs = items["obs"], items["next_obs"]
    np.testing.assert_array_equal(next_obs, _next_of(obs))
    np.testing.assert_array_equal(items["action"], (obs[:, 1] + obs[:, 2]) % 3)
    np.testing.assert_array_equal(items["reward"], obs[:, 1].astype(np.float32))
    done = (next_obs[:, 1] - next_obs[:, 2]) % EPISODE == 0
    np.testing.assert_array_equal(items["terminated"], done & (obs[:, 2] % 2 == 0))
    np.testing.assert_array_equal(items["truncated"], done & (obs[:, 2] % 2 == 1))


def check_rows(rows: Mapping[str, Array]) -> None:
    """Every stored row is whole: what it says of its step, its episode's beginning and end fits its observation."""
    _, step, episode = rows["obs"].T
    begin = episode + np.maximum(1, EPISODE * episode)
    end = EPISODE * (episode + 1) + episode
    final = rows["final"]
    np.testing.assert_array_equal(final, step == end)
    np.testing.assert_array_equal(rows["first"], (step == begin) & ~final)
    np.testing.assert_array_equal(rows["reward"], np.where(final, 0, step))
    np.testing.assert_array_equal(rows["action"], (step - final + episode) % 3)
    done = (step + 1 == end) & ~final
    np.testing.assert_array_equal(rows["terminated"], done & (episode % 2 == 0))
    np.testing.assert_array_equal(rows["truncated"], done & (episode % 2 == 1))


def assert_complete(rows: Mapping[str, Array], steps_by_tag: dict[int, int]) -> None:
    """Each environment's rows are exactly those of its first steps, in order, and there are no others.

    The final row after an environment's very last step may be missing: its actor may have died in between.
    """
    assert sorted(set(rows["obs"][:, 0].astype(int))) == sorted(tag for tag, steps in steps_by_tag.items() if steps)
    for tag, steps in steps_by_tag.items():
        mine, expected = rows["obs"][:, 0] == tag, expected_rows(tag, steps)
        count = len(expected["final"])
        if steps and expected["final"][-1] and mine.sum() == count - 1:
            count -= 1
        for name in ("obs", "action", "reward", "terminated", "truncated", "first", "final"):
            np.testing.assert_array_equal(
                rows[name][mine], expected[name][:count], err_msg=f"environment {tag}, {name}"
            )


def assert_linked(rows: Mapping[str, Array], previous: Array) -> None:
    """Every row but its environment's first is linked to the row before of its environment.

    Args:
        rows: all rows of a replay, oldest first.
        previous: by how many rows the row before lies back, ``[n]``; 0: there is none.
    """
    tags = rows["obs"][:, 0].astype(int)
    for tag in set(tags):
        mine = np.flatnonzero(tags == tag)
        np.testing.assert_array_equal(previous[mine], np.diff(mine, prepend=mine[0]), err_msg=f"environment {tag}")


class CheckingAgent(Agent):
    """Acts as ``CountingEnv`` expects, and checks every row it is given to learn from.

    Its model is one number, the opt steps; an actor that adopts an older one fails.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        epsilon: float,
        device: str,
        batch_size: int = 32,
        ready_at: int = 1,
        in_turns: bool = False,
    ) -> None:
        self.seed, self.epsilon = seed, epsilon
        self._batch_size, self._ready_at, self._in_turns = batch_size, ready_at, in_turns
        self._steps = torch.zeros(1)
        self._version: tuple[int, int] = (0, -1)

    def sample(self, obs: Array) -> Array:
        # An actor explores with a model it has adopted; a learner adopts none, and acts in evaluations only.
        adopted = self._version > (0, -1)
        assert self._in_turns or self.is_train == adopted, f"train {self.is_train}, model {self._version}"
        actions: Array = ((obs[:, 1] + obs[:, 2]) % 3).astype(np.int64)
        return actions

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) < self._ready_at:
            return None
        self.check(buffer.batch(self._batch_size))
        self._steps += 1
        return {"loss": 1 / float(self._steps)}

    def check(self, items: Mapping[str, Array]) -> None:
        check_transitions(items)

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {"steps": self._steps}

    def sync_model(self, model: Model) -> None:
        assert model.version > self._version, f"adopted {model.version} after {self._version}"
        assert float(model.params["steps"][0]) == model.version.opt_steps, "the model is not the one of its version"
        self._version = model.version
        self._steps.fill_(model.version.opt_steps)

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {"steps": self._steps}

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        self._steps.copy_(params["steps"])


class CheckingLaneAgent(CheckingAgent):
    """A ``CheckingAgent`` that can act for some of its lanes."""

    def sample(self, obs: Array, lanes: Array | None = None) -> Array:
        return super().sample(obs)


class RatingAgent(CheckingAgent):
    """Says of each transition that its reward is its error, and of those it has learned from that there is none."""

    def td_error(self, items: Items) -> Array:
        return -items["reward"]

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if not len(buffer):
            return None
        batch = buffer.batch(self._batch_size)
        check_transitions(batch)
        assert ((batch["weight"] > 0) & (batch["weight"] <= 1)).all()
        buffer.update_priority(batch["index"], np.zeros(self._batch_size, np.float32))
        self._steps += 1
        return {"newest": batch["index"].max()}


class FailingAgent(CheckingAgent):
    """Fails at its fourth opt step, as a user's agent might."""

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if self._steps == 3:
            raise ZeroDivisionError("the user's own mistake")
        return super().opt(buffer)


class DivergingAgent(CheckingAgent):
    """Its losses are no numbers while there is a file ``ill``."""

    def __init__(self, spec: EnvSpec, *, ill: str, **given: Any) -> None:
        super().__init__(spec, **given)
        self._ill = Path(ill)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        record = super().opt(buffer)
        return {"loss": math.nan} if record and self._ill.exists() else record


class StepsEvaluator:
    """Scores ``CheckingAgent`` by the opt steps it has learnt for, so that a score names its model.

    Args:
        env: not used.
        config: not used.
        begun: made at the beginning of each evaluation.
        gate: an evaluation waits until there is this file.
    """

    def __init__(self, env: object, config: object, begun: str | None = None, gate: str | None = None) -> None:
        self._begun, self._gate = begun, gate

    def evaluate(self, agent: Agent) -> Evaluation:
        if self._begun:
            Path(self._begun).touch()
        while self._gate and not Path(self._gate).exists():
            time.sleep(0.01)
        score = float(agent.save_params()["steps"][0])
        return Evaluation(score, {"eval_reward": score, "eval_reward_min": score, "eval_reward_max": score})


class BuiltOnceEvaluator(StepsEvaluator):
    """Can be built once only: there it makes a file."""

    def __init__(self, env: object, config: object, marker: str) -> None:
        super().__init__(env, config)
        if Path(marker).exists():
            raise PluginError("the user's simulator is gone")
        Path(marker).touch()


class EndlessEvaluator:
    """Goes on for ever, whatever goes wrong; makes a file when it begins."""

    def __init__(self, env: Env, config: object, begun: str) -> None:
        self._env, self._begun = env, Path(begun)

    def evaluate(self, agent: Agent) -> Evaluation:
        self._begun.touch()
        while True:
            with contextlib.suppress(Exception):
                obs, _ = self._env.reset(seed=0)
                self._env.step(agent.sample(obs[None])[0])


class DyingEvaluator(StepsEvaluator):
    """Kills its own process as long as the agent has learnt for no more than ``until`` opt steps."""

    def __init__(self, env: object, config: object, until: int) -> None:
        super().__init__(env, config)
        self._until = until

    def evaluate(self, agent: Agent) -> Evaluation:
        if float(agent.save_params()["steps"][0]) <= self._until:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().evaluate(agent)


class FailingEvaluator:
    """Fails, as a user's evaluator might."""

    def __init__(self, env: object, config: object, typed: bool = False) -> None:
        self._typed = typed

    def evaluate(self, agent: Agent) -> Evaluation:
        raise CheckpointError("the user's own reference is missing") if self._typed else ZeroDivisionError("a mistake")
