"""Every check passes a good part, and says of a part that is broken in one way what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch

from common.data import Array, Column, Items, Model, Record, Schema
from common.interfaces import Agent, EnvSpec, Evaluation, Evaluator, Recorder, ReplayBuffer, Step, TrainingState
from common.processors import NStep, OneStep
from common.testing import (
    ItemMemory,
    check_agent,
    check_env,
    check_evaluator,
    check_recorder,
    check_replay_buffer,
    check_step_processor,
    items_of,
    play,
)
from examples.own_parts import Corridor, TabularQ

Broken = tuple[dict[str, Any], str]
"""Attributes that replace those of a good part, and what the check must say."""


def broken(part: type[Any], attributes: dict[str, Any]) -> Any:
    return type("Broken", (part,), attributes)


def says(message: str) -> Any:
    return pytest.raises(AssertionError, match=re.escape(message))


# Environments.


class Walk(gymnasium.Env[Array, Any]):
    """A random walk that ends at 3, or after 20 steps."""

    def __init__(self) -> None:
        self.observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-30, 30, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.at, self.steps = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = float(self.np_random.normal()), 0
        return self.obs(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.at += self.move(action)
        self.steps += 1
        return self.obs(), self.at, self.at > 3, self.steps == 20, {}

    def move(self, action: int) -> float:
        return float(self.np_random.normal(action - 0.5))

    def obs(self) -> Array:
        return np.array([self.at], np.float32)


def step_with(**changes: Any) -> Any:
    """A ``step`` that gives something else in one place."""

    def step(self: Walk, action: int) -> tuple[Any, ...]:
        names = ("obs", "reward", "terminated", "truncated", "info")
        given = dict(zip(names, Walk.step(self, action), strict=True))
        return tuple((given | changes).values())

    return step


BROKEN_ENVS: dict[str, Broken] = {
    "a space of many parts": (
        {"action_space": property(lambda self: gymnasium.spaces.Text(3), lambda self, value: None)},
        "action_space must have one dtype and one shape",
    ),
    "no space": (
        {"action_space": property(lambda self: None, lambda self, value: None)},
        "action_space is None: set it to a gymnasium.Space",
    ),
    "an old reset": ({"reset": lambda self: (self.obs(), {})}, "define reset(self, *, seed=None, options=None)"),
    "no info": ({"reset": lambda self, seed=None: self.obs()}, "return observation, info"),
    "an info of another kind": ({"reset": lambda self, seed=None: (self.obs(), None)}, "return a dict, also if empty"),
    "a dtype of its own": (
        {"obs": lambda self: np.array([self.at])},
        "reset() gave observations of float64, the observation space wants float32: return np.array(…, np.float32)",
    ),
    "another shape": (
        {"obs": lambda self: np.array(self.at, np.float32)},
        "reset() gave an observation of shape [], the observation space wants [1]",
    ),
    "outside its space": ({"obs": lambda self: np.full(1, 31, np.float32)}, "outside the observation space"),
    "no number": ({"obs": lambda self: np.full(1, np.nan, np.float32)}, "observation that is not finite"),
    "outside its space later": (
        {"obs": lambda self: np.full(1, 31.0 if self.steps > 5 else 0.0, np.float32)},
        "step() gave an observation outside the observation space",
    ),
    "one flag for both ends": (
        {"step": lambda self, action: Walk.step(self, action)[:4]},
        "return observation, reward, terminated, truncated, info",
    ),
    "a reward that is none": ({"step": step_with(reward=None)}, "step() gave a reward of None: return a number"),
    "an infinite reward": ({"step": step_with(reward=np.inf)}, "step() gave a reward of inf: items must be finite"),
    "a flag that is none": ({"step": step_with(terminated=0)}, "step() gave terminated = 0: return a bool"),
    "a reset that ignores its seed": (
        {"reset": lambda self, seed=None: Walk.reset(self)},
        "reset(seed=…) twice gave different observations: is the seed passed to super().reset(seed=seed)",
    ),
    "steps of another generator": (
        {"move": lambda self, action: np.random.default_rng().normal()},
        "the same actions after the same reset(seed=…) gave something else at step 1: is the seed",
    ),
}


def test_a_good_environment_passes() -> None:
    check_env(Walk())
    check_env(Corridor(length=3))


@pytest.mark.parametrize("what", BROKEN_ENVS)
def test_of_an_environment_with(what: str) -> None:
    attributes, message = BROKEN_ENVS[what]
    with says(message):
        check_env(broken(Walk, attributes)())


def test_something_else_is_no_environment() -> None:
    with says("expected a gymnasium.Env, found OneStep"):
        check_env(cast("Walk", OneStep()))


# Step processors.


def process_with(**columns: Any) -> Any:
    return lambda self, step: OneStep().process(step) | columns


class NeverForgets(NStep):
    def reset(self) -> None: ...


class Carries(OneStep):
    """Adds up rewards, and goes on adding in the next episode."""

    total = 0.0

    def process(self, step: Step) -> Items:
        self.total += step.reward
        return super().process(step) | {"reward": np.array([self.total], np.float32)}


BROKEN_PROCESSORS: dict[str, Broken] = {
    "a schema of another kind": ({"schema": lambda self, spec: ["obs"]}, "schema() gave list: return a common.data"),
    "no schema": ({"schema": lambda self, spec: spec.shape}, "schema() failed: it must return a common.data.Schema"),
    "a schema that changes": (
        {"schema": lambda self, spec: Schema((Column.of(str(np.random.default_rng().random()), np.float32),))},
        "schema() twice gave different columns",
    ),
    "a column too many": (
        {"process": process_with(extra=np.zeros(1))},
        "process() gave columns that schema() does not name: extra",
    ),
    "a column missing": (
        {"process": lambda self, step: {"obs": step.obs[None]}},
        "process() lacks columns that schema() names: action, next_obs, reward, terminated, truncated",
    ),
    "a list of items": (
        {"process": lambda self, step: [step]},
        "process() gave list: return a dict of columns, or None",
    ),
    "another dtype": (
        {"process": process_with(reward=np.zeros(1))},
        "process() gave items that do not fit schema(): column 'reward': expected <f4 [1, *[]], found <f8 [1]",
    ),
    "columns of different lengths": (
        {"process": process_with(reward=np.zeros(2, np.float32))},
        "every column is [n, *shape] with the same n",
    ),
    "an infinite value": (
        {"process": process_with(reward=np.full(1, np.inf, np.float32))},
        "process() gave 'reward' values that are not finite",
    ),
    "nothing at all": ({"process": lambda self, step: None}, "process() gave no item in 300 steps"),
}


@pytest.mark.parametrize("processor", [OneStep(), NStep(1), NStep(5), NStep(50)])
def test_a_good_step_processor_passes(processor: OneStep | NStep) -> None:
    check_step_processor(processor, Walk())


@pytest.mark.parametrize("what", BROKEN_PROCESSORS)
def test_of_a_step_processor_with(what: str) -> None:
    attributes, message = BROKEN_PROCESSORS[what]
    with says(message):
        check_step_processor(broken(OneStep, attributes)(), Walk())


@pytest.mark.parametrize("processor", [NeverForgets(3), Carries()])
def test_a_processor_whose_items_cross_an_episodes_boundary_is_found(processor: OneStep | NStep) -> None:
    with says("an item crosses an episode boundary"):
        check_step_processor(processor, Corridor())


# Agents.


class Noisy(TabularQ):
    """Draws its table from somewhere else than the seed."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self.table += torch.from_numpy(np.random.default_rng().random(self.table.shape))


class Copying(TabularQ):
    """Acts from a copy that it makes at the start."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self.copy = self.table.clone()

    def sample(self, obs: Array) -> Array:
        return self.copy[obs[:, 0]].argmax(dim=1).numpy()


class Rowwise(TabularQ):
    """The second row of a batch gets the first row's action turned round."""

    def sample(self, obs: Array) -> Array:
        actions = super().sample(obs)
        return actions if len(obs) == 1 else np.where(np.arange(len(obs)) == 1, 1 - actions[0], actions)


def opt_by_replacing(self: TabularQ, buffer: ReplayBuffer) -> Record | None:
    self.table = self.table.clone()
    return TabularQ.opt(self, buffer)


def opt_when_full(self: TabularQ, buffer: ReplayBuffer) -> Record | None:
    return TabularQ.opt(self, buffer) if len(buffer) > 500 else None


def opt_that_always_changes(self: TabularQ, buffer: ReplayBuffer) -> Record | None:
    self.table += 1
    return TabularQ.opt(self, buffer)


def sample_in_place(self: TabularQ, obs: Array) -> Array:
    actions = TabularQ.sample(self, obs)
    obs[:] = 0
    return actions


def load_by_replacing(self: TabularQ, params: Mapping[str, torch.Tensor]) -> None:
    self.table = params["table"]


def sync_a_half(self: TabularQ, model: Model) -> None:
    self.table[0] = torch.from_numpy(model.params["table"][0])


def saved_views(self: TabularQ) -> dict[str, torch.Tensor]:
    return {"table": self.table, "first": self.table[:1]}


def sample_in_train_mode_for_good(self: TabularQ, obs: Array) -> Array:
    self.ever = getattr(self, "ever", False) or self.is_train  # type: ignore[attr-defined]
    return np.where(self.ever, 1, TabularQ.sample(self, obs))  # type: ignore[attr-defined]


HALF = torch.zeros(2, dtype=torch.bfloat16)


def changed(method: str, change: Any) -> dict[str, Any]:
    """``method`` with its result changed."""
    good = getattr(TabularQ, method)
    return {method: lambda self, *given: change(good(self, *given))}


BROKEN_AGENTS: dict[str, Broken] = {
    "one error for all items": (
        {"td_error": lambda self, items: np.zeros(1, np.float32)},
        "td_error() of 3 items returned [1], expected [3]: one error an item",
    ),
    "errors that are not finite": (
        {"td_error": lambda self, items: np.full(3, np.nan)},
        "td_error() returned [nan nan nan]: errors must be finite",
    ),
    "other arguments": ({"__init__": lambda self, spec, config: None}, "must be built by keywords: spec=…, seed=…"),
    "actions of floats": (
        changed("sample", lambda actions: actions.astype(np.float64)),
        "sample() returned float64 actions, the action space wants int64",
    ),
    "actions of another shape": (
        changed("sample", lambda actions: actions[:, None]),
        "sample() of 1 observations returned [1, 1], expected [1]: one action a row",
    ),
    "actions beyond the space": (
        changed("sample", lambda actions: actions + 5),
        "which is not in the action space Discrete(2)",
    ),
    "actions in a list": (
        changed("sample", list),
        "returned list of shape [1]: return a numpy array",
    ),
    "observations overwritten": ({"sample": sample_in_place}, "sample() changed the observations it was given"),
    "chance in eval mode": (
        {"sample": lambda self, obs: self._rng.integers(2, size=len(obs))},
        "sample() is not deterministic after eval(): act greedily there",
    ),
    "a train mode of its own": (
        {"train": lambda self: None},
        "train() did not make is_train True: call super().train()",
    ),
    "an eval mode of its own": (
        {"is_train": True, "eval": lambda self: None},
        "eval() did not make is_train False: call super().eval()",
    ),
    "exploration that stays": ({"sample": sample_in_train_mode_for_good}, "train() and eval() do not switch back"),
    "a failure without items": (
        {"opt": lambda self, buffer: self.opt(buffer.batch(1))},
        "opt() on an empty buffer must return None, but it failed (IndexError: nothing to draw from)",
    ),
    "a record without items": (
        {"opt": lambda self, buffer: {"loss": 0.0}},
        "opt() on an empty buffer must return None, found {'loss': 0.0}",
    ),
    "a change without items": ({"opt": opt_that_always_changes}, "opt() returned None and changed the model"),
    "patience": ({"opt": opt_when_full}, "opt() returned None with 500 items: if the agent needs more to begin"),
    "a loss that is none": (
        changed("opt", lambda record: record and {"loss": "small"}),
        "opt() gave a record whose 'loss' is no number",
    ),
    "an infinite loss": (
        changed("opt", lambda record: record and {"loss": torch.tensor(torch.inf)}),
        "opt() gave a record whose 'loss' is inf: every value must be finite",
    ),
    "a loss by itself": (
        changed("opt", lambda record: record and record["td_error"]),
        "opt() gave Tensor, expected a dict of names and numbers",
    ),
    "tensors that are replaced": ({"opt": opt_by_replacing}, "model_info() gave other tensors after opt()"),
    "copies for tensors": (
        changed("model_info", lambda tensors: {name: value.clone() for name, value in tensors.items()}),
        "model_info() gave other tensors after opt(): it must return live tensors",
    ),
    "names that change": (
        changed("model_info", lambda tensors: {f"table {tensors['table'].sum():f}": tensors["table"]}),
        "model_info() gave other tensors after opt(): it must return live tensors, always of the same names",
    ),
    "nothing learnt": (
        {"opt": lambda self, buffer: {"loss": 0.0} if len(buffer) else None},
        "model_info() is the same after 20 calls of opt(): it must return the live tensors, not copies",
    ),
    "a dtype that cannot travel": (
        changed("model_info", lambda tensors: tensors | {"half": HALF}),
        "model_info() must hold tensors that safetensors and numpy can represent (TypeError",
    ),
    "a model that is not adopted": ({"sync_model": lambda self, model: None}, "sync_model() did not adopt 'table'"),
    "a model half adopted": ({"sync_model": sync_a_half}, "sync_model() did not adopt 'table'"),
    "a model by another name": (
        {"sync_model": lambda self, model: model.params["weights"]},
        "sync_model() failed on the tensors of model_info() (KeyError: 'weights')",
    ),
    "an actor that is not the learner": (
        {"sample": lambda self, obs: np.full(len(obs), int(self.seed))},
        "sync_model() did not change what sample() does: an actor with the learner's model must act",
    ),
    "a policy that is none": (
        {"policy": lambda self: self.table},
        "policy() returned Tensor: return a torch.nn.Module",
    ),
    "a policy of other arguments": (
        {"policy": lambda self: torch.nn.Bilinear(1, 1, 1)},
        "policy() failed on a tensor of observations (TypeError",
    ),
    "another policy": (
        {"policy": lambda self: torch.nn.Identity()},
        "policy() gave other actions than sample() after eval(): let sample() call it",
    ),
    "saved views": ({"save_params": saved_views}, "of tensors that share storage save one or clone"),
    "nothing restored": (
        {"load_params": lambda self, params: None},
        "save_params() and load_params() do not round-trip: 'table' is not what was saved",
    ),
    "other names loaded": (
        {"load_params": lambda self, params: params["q"]},
        "load_params() failed on what save_params() gave (KeyError: 'q')",
    ),
    "nothing saved": (
        {"save_params": lambda self: {}, "load_params": lambda self, params: None},
        "save_params() and load_params() do not round-trip: the restored agent acts differently",
    ),
    "tensors that loading replaces": ({"load_params": load_by_replacing}, "model_info() gave other tensors after load"),
    "a state that JSON cannot hold": (
        {"training_state": lambda self: TrainingState(self.save_params(), {"rng": self._rng})},
        "training_state() gave what cannot be saved",
    ),
    "a state that is not restored": (
        {"training_state": lambda self: TrainingState(self.save_params(), {"seed": self.seed})},
        'do not round-trip: expected {"seed": 0}, found',
    ),
    "nothing learnt once restored": (
        {"opt": lambda self, buffer: None if self.seed == 2 else TabularQ.opt(self, buffer)},
        "the restored agent cannot go on learning",
    ),
}


class Seeded(TabularQ):
    """Remembers its seed, and starts out of it."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str) -> None:
        super().__init__(spec, seed=seed, epsilon=epsilon, device=device)
        self.seed = seed
        self.table.copy_(torch.from_numpy(np.random.default_rng(seed).normal(size=self.table.shape)))


def test_a_good_agent_passes() -> None:
    check_agent(TabularQ, Corridor())
    check_agent(Seeded, Corridor())


@pytest.mark.parametrize("what", BROKEN_AGENTS)
def test_of_an_agent_with(what: str) -> None:
    attributes, message = BROKEN_AGENTS[what]
    with says(message):
        check_agent(broken(Seeded, attributes), Corridor())


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (Noisy, "two agents of the same seed start with another 'table': draw it from the seed"),
        (Copying, "sync_model() did not change what sample() does: 10 other models, the same actions"),
        (Rowwise, "gave other actions than one by one: no row may depend on the others"),
    ],
)
def test_an_agent_is_found_that_is(agent: type[Agent], message: str) -> None:
    with says(message):
        check_agent(agent, Corridor())


def test_a_function_that_makes_no_agent_is_found() -> None:
    with says("expected a common.interfaces.Agent, found dict: derive from it"):
        check_agent(cast("type[Agent]", dict), Corridor())


def test_an_agent_that_begins_late_is_given_more_steps() -> None:
    check_agent(broken(TabularQ, {"opt": opt_when_full}), Corridor(), steps=501)


# Replay buffers.


def items() -> Items:
    return items_of(OneStep(), play(Walk(), 50))


def batch_with(change: Any) -> Any:
    """A ``batch`` with its result changed."""
    return lambda self, size: change(ItemMemory.batch(self, size))


def only_once(self: ItemMemory, size: int) -> Items:
    if size > len(self):
        raise ValueError("not so many")
    return ItemMemory.batch(self, size)


def the_first(self: ItemMemory, size: int) -> Items:
    ItemMemory.batch(self, size)
    return {name: column[np.zeros(size, np.int64)] for name, column in items().items()}


def uncounted(self: ItemMemory, size: int) -> Items:
    drawn = ItemMemory.batch(self, size)
    self.sampled = 0
    return drawn


def growing(self: ItemMemory, size: int) -> Items:
    drawn = ItemMemory.batch(self, size)
    self.inserted += 1
    self._items = {name: np.concatenate([column, column[:1]]) for name, column in self._items.items()}
    return drawn


BROKEN_BUFFERS: dict[str, Broken] = {
    "nothing counted in": (
        {"inserted": property(lambda self: 0, lambda self, value: None)},
        "inserted is 0 after 50 items: count every item, forever",
    ),
    "a length of its own": ({"__len__": lambda self: 51}, "len() is 51 after 50 items"),
    "no more than it has": ({"batch": only_once}, "batch(256) failed with 50 items: draw with replacement"),
    "a missing column": (
        {"batch": batch_with(lambda batch: {"obs": batch["obs"]})},
        "batch() lacks the columns action, next_obs, reward, terminated, truncated",
    ),
    "too few rows": (
        {"batch": batch_with(lambda batch: batch | {"reward": batch["reward"][:1]})},
        "batch(256) gave 'reward' as [1], expected [256]",
    ),
    "another dtype": (
        {"batch": batch_with(lambda batch: batch | {"reward": batch["reward"].astype(np.float64)})},
        "batch() gave 'reward' as float64, inserted was float32",
    ),
    "mixed rows": (
        {"batch": batch_with(lambda batch: batch | {"reward": batch["reward"][::-1]})},
        "batch() gave a row that was never inserted: take all columns of a row from one item",
    ),
    "the same row": ({"batch": the_first}, "batch() gave the same row 356 times: draw at random"),
    "nothing counted out": ({"batch": uncounted}, "sampled grew by 0 at batch(1): count every draw"),
    "what comes in and what goes out counted together": ({"batch": growing}, "inserted changed while items were drawn"),
}


def test_a_good_buffer_passes_also_with_columns_of_its_own() -> None:
    check_replay_buffer(ItemMemory(items()), items())
    check_replay_buffer(ItemMemory(items() | {"age": np.ones(50)}), items())
    check_replay_buffer(ItemMemory(items() | {"weight": np.ones(50)}), items() | {"weight": np.ones(50)})
    check_replay_buffer(PrioritizedMemory(items()), items())


@pytest.mark.parametrize("what", BROKEN_BUFFERS)
def test_of_a_buffer_with(what: str) -> None:
    attributes, message = BROKEN_BUFFERS[what]
    with says(message):
        check_replay_buffer(broken(ItemMemory, attributes)(items()), items())


class PrioritizedMemory(ItemMemory):
    """A prioritised buffer as plain as can be; batches are made by ``items_at``, so that they can be spoilt."""

    def __init__(self, items: Items) -> None:
        super().__init__(items)
        self._priority = np.ones(len(self))

    def items_at(self, index: Array) -> Items:
        priority = self._priority[index]
        weight = (self._priority.min() / priority).astype(np.float32)
        return {**{name: column[index] for name, column in self._items.items()}, "index": index, "weight": weight}

    def batch(self, size: int) -> Items:
        self.sampled += size
        return self.items_at(self._rng.choice(len(self), size, p=self._priority / self._priority.sum()))

    def update_priority(self, index: Array, td_error: Array) -> None:
        self._priority[index] = td_error + 1e-3


def items_with(change: Any) -> Any:
    """An ``items_at`` with its result changed."""
    return lambda self, index: change(PrioritizedMemory.items_at(self, index))


BROKEN_PRIORITIES: dict[str, Broken] = {
    "weights alone": (
        {"items_at": items_with(lambda batch: {k: v for k, v in batch.items() if k != "index"})},
        "batch() gave 'weight' alone: a prioritised buffer gives both index and weight",
    ),
    "double weights": (
        {"items_at": items_with(lambda batch: batch | {"weight": batch["weight"].astype(np.float64)})},
        "batch() gave 'weight' as float64, expected float32",
    ),
    "weights in a column": (
        {"items_at": items_with(lambda batch: batch | {"weight": batch["weight"][:, None]})},
        "batch() gave 'weight' as [1, 1], expected one number an item",
    ),
    "weights above 1": (
        {"items_at": items_with(lambda batch: batch | {"weight": batch["weight"] * 2})},
        "batch() gave weights from 2.0 to 2.0, expected above 0 and at most 1: divide by the largest",
    ),
    "slots beyond what there is": (
        {"items_at": items_with(lambda batch: batch | {"index": batch["index"] + 50})},
        "number items 0, 1, 2, … as they come in",
    ),
    "other items' indices": (
        {"items_at": items_with(lambda batch: batch | {"index": (batch["index"] + 1) % 50})},
        "batch() gave an index whose item has another 'obs'",
    ),
    "priorities that fail": (
        {"update_priority": lambda self, index, td_error: td_error.missing},
        "update_priority() failed on the items of a batch",
    ),
    "priorities that nobody heeds": (
        {"update_priority": lambda self, index, td_error: None},
        "update_priority() changed nothing: the item with by far the largest error was drawn",
    ),
}


@pytest.mark.parametrize("what", BROKEN_PRIORITIES)
def test_of_a_prioritised_buffer_with(what: str) -> None:
    attributes, message = BROKEN_PRIORITIES[what]
    with says(message):
        check_replay_buffer(broken(PrioritizedMemory, attributes)(items()), items())


# Evaluators.


class FirstAction:
    """Scores the action at the start of a corridor."""

    def evaluate(self, agent: Agent) -> Evaluation:
        return Evaluation(float(agent.sample(np.array([[0]]))[0]), {"eval_reward": torch.tensor(1.0)})


def evaluate_in_train_mode(self: FirstAction, agent: Agent) -> Evaluation:
    agent.train()
    return FirstAction.evaluate(self, agent)


def evaluate_and_train(self: FirstAction, agent: TabularQ) -> Evaluation:
    agent.table += 1
    return FirstAction.evaluate(self, agent)


def evaluate_by_chance(self: FirstAction, agent: Agent) -> Evaluation:
    return Evaluation(np.random.default_rng().random(), {})


BROKEN_EVALUATORS: dict[str, Broken] = {
    "a score by itself": (
        {"evaluate": lambda self, agent: 1.0},
        "evaluate() gave float: return Evaluation(score, record)",
    ),
    "no score": (
        {"evaluate": lambda self, agent: Evaluation(None, {})},  # type: ignore[arg-type]
        "evaluate() gave a record whose 'score' is no number",
    ),
    "a score that is not finite": (
        {"evaluate": lambda self, agent: Evaluation(np.nan, {})},
        "evaluate() gave a record whose 'score' is nan",
    ),
    "a record of text": (
        {"evaluate": lambda self, agent: Evaluation(1.0, {"eval_reward": "good"})},  # type: ignore[dict-item]
        "evaluate() gave a record whose 'eval_reward' is no number",
    ),
    "another mode": ({"evaluate": evaluate_in_train_mode}, "evaluate() left the agent in train mode"),
    "training": ({"evaluate": evaluate_and_train}, "evaluate() left 'table' of the agent changed"),
    "chance": ({"evaluate": evaluate_by_chance}, "start the episodes from the same seeds every time"),
}


def corridor_agent() -> TabularQ:
    env = Corridor()
    return TabularQ(EnvSpec(env.observation_space, env.action_space), seed=0, epsilon=1.0, device="cpu")


def test_a_good_evaluator_passes() -> None:
    check_evaluator(FirstAction(), corridor_agent())


@pytest.mark.parametrize("what", BROKEN_EVALUATORS)
def test_of_an_evaluator_with(what: str) -> None:
    attributes, message = BROKEN_EVALUATORS[what]
    evaluator: Evaluator = broken(FirstAction, attributes)()
    with says(message):
        check_evaluator(evaluator, corridor_agent())


def test_an_evaluator_may_say_that_its_scores_differ() -> None:
    check_evaluator(broken(FirstAction, {"evaluate": evaluate_by_chance})(), corridor_agent(), repeatable=False)


# Recorders.


class ListRecorder:
    """Keeps records in a list, and shows them when they are flushed."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.shown: Sequence[tuple[int, dict[str, float]]] = ()

    def write(self, opt_steps: int, record: dict[str, float]) -> None:
        self.rows.append((opt_steps, dict(record)))

    def flush(self) -> None:
        self.shown = tuple(self.rows)

    def close(self) -> None:
        self.flush()


def write_known_keys(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    ListRecorder.write(self, opt_steps, {name: {"loss": value}[name] for name, value in record.items()})


def write_finite(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    if not np.isfinite(list(record.values())).all():
        raise ValueError("not finite")
    ListRecorder.write(self, opt_steps, record)


def write_into(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    record["opt_steps"] = opt_steps
    ListRecorder.write(self, opt_steps, record)


def write_32_bits(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    ListRecorder.write(self, opt_steps % 2**32, record)


def write_forwards(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    if self.rows and opt_steps < self.rows[-1][0]:
        raise ValueError("backwards")
    ListRecorder.write(self, opt_steps, record)


BROKEN_RECORDERS: dict[str, Broken] = {
    "known keys only": (
        {"write": write_known_keys},
        "failed: keys come and go, opt_steps takes 64 bits and may go back (KeyError: 'eval_reward')",
    ),
    "rising steps only": ({"write": write_forwards}, "opt_steps takes 64 bits and may go back (ValueError: backwards)"),
    "finite values only": ({"write": write_finite}, "write() failed on a value that is not finite"),
    "what it adds": ({"write": write_into}, "write() changed the record it was given"),
    "few bits": ({"write": write_32_bits}, "after flush() others can read"),
    "no flush": ({"flush": lambda self: None}, "after flush() others can read [], expected"),
    "no flush at the end": ({"close": lambda self: None}, "after close() others can read"),
}


def test_a_good_recorder_passes() -> None:
    recorder = ListRecorder()
    check_recorder(cast("Recorder", recorder), lambda: recorder.shown)
    assert len(recorder.shown) == 5


@pytest.mark.parametrize("what", BROKEN_RECORDERS)
def test_of_a_recorder_with(what: str) -> None:
    attributes, message = BROKEN_RECORDERS[what]
    recorder = broken(ListRecorder, attributes)()
    with says(message):
        check_recorder(recorder, lambda: recorder.shown)
