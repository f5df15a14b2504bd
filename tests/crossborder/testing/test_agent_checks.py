"""``check_agent`` passes good agents, and says what is wrong with one that is broken in one way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.dqn import DQN
from common.agents.machinery.lane_states import LaneRandom
from common.agents.network_agent import NetworkAgent
from common.agents.recurrent_agent import LaneMemory
from common.data import Array, Column, Items, Model, Record
from common.interfaces import Agent, EnvSpec, ReplayBuffer, TrainingState
from crossborder.testing import check_agent
from examples.own_parts import Corridor, TabularQ
from tests.crossborder.testing.parts import Broken, broken, fails_saying


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


COMPLEX = torch.zeros(2, dtype=torch.complex64)


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
    "a change without items": ({"opt": opt_that_always_changes}, "opt() returned None, but it changed the model"),
    "patience": ({"opt": opt_when_full}, "opt() returned None with 500 items: if the agent needs more to begin"),
    "a loss that is none": (
        changed("opt", lambda record: record and {"loss": "small"}),
        "opt(): loss: expected a number, found 'small'",
    ),
    "an infinite loss": (
        changed("opt", lambda record: record and {"loss": torch.tensor(torch.inf)}),
        "opt(): loss: expected a finite number, found inf",
    ),
    "a loss by itself": (
        changed("opt", lambda record: record and record["td_error"]),
        "opt(): expected a dict of names and numbers, found Tensor",
    ),
    "a key of the learner": (
        changed("opt", lambda record: record and {"seconds": 1.0}),
        "opt(): expected a name that the learner does not use itself as key, found 'seconds'",
    ),
    "tensors that are replaced": ({"opt": opt_by_replacing}, "model_info() gave other tensors after opt()"),
    "arrays for tensors": (
        changed("model_info", lambda tensors: {name: value.numpy() for name, value in tensors.items()}),
        "agent.model_info: expected dense torch tensors by their names, found {'table': array",
    ),
    "a list for tensors": (
        changed("model_info", lambda tensors: list(tensors.values())),
        "agent.model_info: expected dense torch tensors by their names, found [tensor",
    ),
    "None saved": (
        changed("save_params", lambda tensors: None),
        "agent.save_params: expected dense torch tensors by their names, found None",
    ),
    "a tensor without values": (
        changed("model_info", lambda tensors: {name: value.to("meta") for name, value in tensors.items()}),
        "agent.model_info: expected tensors with values, found 'table': tensor(..., device='meta'",
    ),
    "a name that files use": (
        changed("save_params", lambda tensors: {"__metadata__": tensors["table"]}),
        "agent.save_params: expected other names than ('', '__metadata__'), found '__metadata__': tensor",
    ),
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
        changed("model_info", lambda tensors: tensors | {"phase": COMPLEX}),
        "an actor can represent (ConfigError: model_info 'phase': expected a real dtype that numpy has, or bfloat16",
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
        "policy() gave other actions than sample() after eval(): let sample() use policy()",
    ),
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
        "agent.training_state: values: expected values that JSON can hold",
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
def test_an_agent_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_AGENTS[what]
    with fails_saying(message):
        check_agent(broken(Seeded, attributes), Corridor())


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (Noisy, "two agents of the same seed start with another 'table': draw it from the seed"),
        (Copying, "sync_model() did not change what sample() does: 10 other models gave the same"),
        (Rowwise, "gave other actions than one by one: no row may depend on the others"),
    ],
)
def test_an_agent_is_refused_that_is(agent: type[Agent], message: str) -> None:
    with fails_saying(message):
        check_agent(agent, Corridor())


def test_a_function_that_makes_no_agent_is_found() -> None:
    with fails_saying("expected a crossborder.Agent, found dict: derive from it"):
        check_agent(cast("type[Agent]", dict), Corridor())


def test_an_agent_may_save_a_tensor_twice() -> None:
    check_agent(broken(TabularQ, {"save_params": saved_views}), Corridor())


def test_an_agent_that_begins_late_is_given_more_steps() -> None:
    check_agent(broken(TabularQ, {"opt": opt_when_full}), Corridor(), steps=502)


# Of networks: forgotten optimisers, Python that capturing freezes.


class Annealed(nn.Module):
    """Counts its calls in Python."""

    def __init__(self, in_shape: Sequence[int], out_dim: int) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(in_shape[0], out_dim), 0

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(obs) * min(1.0, self.calls / 100)  # type: ignore[no-any-return]


class Linear(Agent):
    """A greedy linear agent with an optimiser for each of its two parts."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        self.optimizers = [torch.optim.Adam(part.parameters(), 0.1) for part in self.net]

    def sample(self, obs: Array) -> Array:
        with torch.no_grad():
            return self.net(torch.from_numpy(obs)).argmax(dim=1).numpy()  # type: ignore[no-any-return]

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        loss = self.net(torch.from_numpy(buffer.batch(8)["obs"])).square().mean()
        self.net.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return {"loss": loss.detach()}

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.net.state_dict().items()}

    def sync_model(self, model: Model) -> None:
        self.net.load_state_dict({name: torch.from_numpy(value) for name, value in model.params.items()})

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return self.net.state_dict()

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        self.net.load_state_dict(dict(params))


class Forgetful(Linear):
    """Has a state of training of its own, without the optimisers."""

    def training_state(self) -> TrainingState:
        return TrainingState(self.save_params(), {"kept": "not much"})


class Complete(NetworkAgent, Linear):
    """Keeps what ``NetworkAgent`` finds."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        Linear.__init__(self, spec, **given)
        self.nets = {"net": self.net}


class InBfloat16(Complete):
    """Has weights, moments and actions' values in bfloat16."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self.net.to(torch.bfloat16)
        self.net.register_forward_pre_hook(lambda _, obs: obs[0].to(torch.bfloat16))


class InAnotherOrder(Complete):
    """Has weights and moments whose elements lie in another order than C's, as with ``torch.channels_last``."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        for value in self.net.parameters():
            value.data = value.data.t().contiguous().t()


class Sharing(Complete):
    """Has a critic with the first layer of its actor."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self.nets["critic"] = nn.Sequential(self.net[0], nn.Linear(3, 1))


class Drawing(Linear):
    """Draws its actions, also in eval mode, from a generator without a seed."""

    def sample(self, obs: Array) -> Array:
        return np.random.default_rng().integers(2, size=len(obs))


class Scalar(Linear):
    """Gives one number instead of an array."""

    def sample(self, obs: Array) -> Array:
        return super().sample(obs)[0]  # type: ignore[no-any-return]


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def annealed(**params: Any) -> partial[DQN]:
    return partial(
        DQN, network={"target": "tests.crossborder.testing.test_agent_checks:Annealed"}, batch_size=8, **params
    )


def test_a_network_of_a_users_own_learns_eagerly_unless_it_asks_to_be_captured() -> None:
    agents = [annealed(**params)(spec=spec(), seed=0) for params in ({}, {"update": "captured"})]
    assert [agent.is_captured for agent in agents] == [False, True]
    assert DQN(spec(), seed=0).is_captured
    assert DQN(spec(), seed=0, update="captured").is_captured
    check_agent(annealed(), cartpole())


def spec() -> EnvSpec:
    env = cartpole()
    return EnvSpec(env.observation_space, env.action_space)


def test_a_network_that_is_frozen_by_capturing_is_found() -> None:
    with pytest.raises(AssertionError, match=r"with update: captured the agent learns another 'qnet.*update: eager"):
        check_agent(annealed(update="captured"), cartpole(), steps=100)


def test_an_agent_that_can_be_captured_passes() -> None:
    check_agent(partial(DQN, units=(8,), batch_size=8), cartpole(), steps=100)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (Drawing, "is not deterministic after eval"),
        (Forgetful, r"leaves out the tensors of the optimiser 'optimizers\.0'"),
        (Scalar, r"of shape \[\]: return a numpy array of shape \[1\]"),
    ],
)
def test_an_agent_of_networks_is_refused_that_is(agent: type[Agent], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_agent(agent, cartpole(), steps=100)


def test_an_agent_without_a_state_of_training_is_warned_of_its_optimisers() -> None:
    with pytest.warns(UserWarning, match=r"the optimiser 'optimizers\.[01]', so it begins again at --resume"):
        check_agent(Linear, cartpole(), steps=100)


@pytest.mark.parametrize("agent", [InBfloat16, InAnotherOrder, Sharing])
def test_an_agent_that_learns_with_actors_passes(agent: type[Agent]) -> None:
    check_agent(agent, cartpole(), steps=100)


def test_optimisers_in_a_list_are_kept_by_a_network_agent() -> None:
    check_agent(Complete, cartpole())


# Of agents with a memory, and with extra columns.


class Recurrent(Complete):
    """Adds a share of what it has seen before to each observation, and records that memory."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self.memory = LaneMemory(4)

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        self.memory.begin(begins, lanes, is_train=self.is_train)

    def sample(self, obs: Array) -> Array:
        self.before = self.memory.read(is_train=self.is_train)
        after = torch.from_numpy(obs) + 0.9 * self.before
        self.memory.write(after, is_train=self.is_train)
        return super().sample(after.numpy())

    def extra_columns(self) -> Sequence[Column]:
        return [Column.of("state/seen", np.float32, (4,))]

    def extras(self) -> Items:
        return {"state/seen": self.before.numpy()}


def begin_never(self: Recurrent, lanes: Array) -> None:
    self.memory.begin(np.zeros_like(lanes), is_train=self.is_train)


def begin_everywhere(self: Recurrent, lanes: Array) -> None:
    self.memory.begin(np.ones_like(lanes), is_train=self.is_train)


def begin_all_or_none(self: Recurrent, lanes: Array) -> None:
    self.memory.begin(np.full_like(lanes, lanes.all()), is_train=self.is_train)


def begin_for_both_modes(self: Recurrent, lanes: Array) -> None:
    for is_train in (False, True):
        self.memory.begin(lanes, is_train=is_train)


BROKEN_MEMORIES: dict[str, Broken] = {
    "a memory that is never cleared": (
        {"begin": begin_never},
        "although begin() said that an episode begins: an agent with a memory overrides begin(begins)",
    ),
    "a memory that other lanes clear": (
        {"begin": begin_everywhere},
        "begin() for some lanes cleared the memory of another, whose episode goes on",
    ),
    "a memory that only all lanes clear": (
        {"begin": begin_all_or_none},
        "begin() for some lanes kept the memory of one of them",
    ),
    "one memory for both modes": (
        {"begin": begin_for_both_modes},
        "extras() gave another recurrent state after an evaluation between two steps",
    ),
    "a begin of other arguments": ({"begin": lambda self: None}, "begin() failed: it is given [n] bool, all True"),
    "extras that it does not declare": (
        {"extra_columns": lambda self: ()},
        "extras() gave the columns ['state/seen'], extra_columns() declares []",
    ),
    "extras that it forgets": (
        {"extras": lambda self: {}},
        "extras() gave the columns [], extra_columns() declares ['state/seen']",
    ),
    "extras in a list": ({"extras": lambda self: {"state/seen": [0.0]}}, "extras() gave 'state/seen' as list"),
    "extras of another shape": (
        {"extras": lambda self: {"state/seen": self.before.numpy()[:, :2]}},
        "extras() of 64 observations gave 'state/seen' as float32 [64, 2], expected float32 [64, 4]",
    ),
    "extras of another dtype": (
        {"extras": lambda self: {"state/seen": self.before.numpy().astype(np.float64)}},
        "extras() of 64 observations gave 'state/seen' as float64 [64, 4], expected float32 [64, 4]",
    ),
    "extras that are not finite": (
        {"extras": lambda self: {"state/seen": self.before.numpy() + np.nan}},
        "extras() gave 'state/seen' values that are not finite: the learner refuses them",
    ),
}


def test_an_agent_with_a_memory_passes() -> None:
    check_agent(Recurrent, cartpole(), steps=100)


@pytest.mark.parametrize("what", BROKEN_MEMORIES)
def test_an_agent_with_a_memory_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_MEMORIES[what]
    with fails_saying(message):
        check_agent(broken(Recurrent, attributes), cartpole(), steps=100)


# Of agents that act for some of their lanes.


class OfLanes(Recurrent):
    """Acts for some of its lanes too, and explores with the random numbers of each lane."""

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(spec, seed=seed, **given)
        self.rng, self.lane_random = np.random.default_rng(seed), LaneRandom(seed)

    def sample(self, obs: Array, lanes: Array | None = None) -> Array:
        self.before = self.memory.read(lanes, is_train=self.is_train)
        after = torch.from_numpy(obs) + 0.9 * self.before
        self.memory.write(after, lanes, is_train=self.is_train)
        explores = self.draw(len(obs), lanes) < (0.8 if self.is_train else 0.0)
        return np.where(explores, 1, Linear.sample(self, after.numpy()))

    def draw(self, n: int, lanes: Array | None) -> Array:
        return self.rng.random(n) if lanes is None else self.lane_random.of(lanes).random(1)[:, 0]


def read_the_first(self: OfLanes, obs: Array, lanes: Array | None = None) -> Array:
    """Keep the memory by the place in the call."""
    return OfLanes.sample(self, obs, None if lanes is None else np.arange(len(lanes)))


def sample_for_all_or_none(self: OfLanes, obs: Array, lanes: Array | None = None) -> Array:
    actions = OfLanes.sample(self, obs, lanes)
    return actions if lanes is None else np.repeat(actions, 2)


def begin_beside(self: OfLanes, begins: Array, lanes: Array | None = None) -> None:
    """Begin an episode in all of five lanes as soon as one begins."""
    if lanes is not None and begins.any():
        begins, lanes = np.ones(5, np.bool_), np.arange(5)
    self.memory.begin(begins, lanes, is_train=self.is_train)


ACTING_FOR_SOME = "sample(obs, lanes) gave lane 2 other actions or extras beside the lanes [4, 0] than alone"
BROKEN_FOR_LANES: dict[str, Broken] = {
    "a memory by the place in the call": ({"sample": read_the_first}, ACTING_FOR_SOME),
    "a memory that other lanes clear": (
        {"begin": begin_beside},
        ACTING_FOR_SOME,
    ),
    "one random generator for all lanes": (
        {"draw": lambda self, n, lanes: self.rng.random(n)},
        f"of train mode, {ACTING_FOR_SOME}",
    ),
    "a begin without lanes": (
        {"begin": lambda self, begins: self.memory.begin(begins, is_train=self.is_train)},
        "Broken.begin acts for all lanes at once: expected a parameter 'lanes'",
    ),
    "more actions than lanes": ({"sample": sample_for_all_or_none}, "returned [6], expected [3]: one action a row"),
}


def test_an_agent_that_acts_for_some_of_its_lanes_passes() -> None:
    check_agent(OfLanes, cartpole(), steps=100)


@pytest.mark.parametrize("what", BROKEN_FOR_LANES)
def test_an_agent_that_acts_for_some_of_its_lanes_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_FOR_LANES[what]
    with fails_saying(message):
        check_agent(broken(OfLanes, attributes), cartpole(), steps=100)


# Of structured spaces.


class Cells(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """A walk to the right, whose observations and actions are Dicts."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            {"at": gymnasium.spaces.Discrete(5), "map": gymnasium.spaces.Box(0, 255, (9, 9), np.uint8)}
        )
        self.action_space = gymnasium.spaces.Dict({"go": gymnasium.spaces.Discrete(2)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self.obs(), {}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.at += int(action["go"])
        return self.obs(), float(self.at), self.at == 4, False, {}

    def obs(self) -> dict[str, Any]:
        return {"at": self.at, "map": np.full((9, 9), self.at, np.uint8)}


class Going(TabularQ):
    """Acts by the cell it is at."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        line = gymnasium.spaces.Box(0, 4, (1,), np.int64)
        super().__init__(EnvSpec(line, gymnasium.spaces.Discrete(2)), **given)

    def sample(self, obs: Any) -> Any:
        return {"go": super().sample(obs["at"][:, None])}

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        at = buffer.batch(8)["obs/at"]
        self.table[at, 1] += torch.from_numpy(0.1 * (5 - at)).to(self.table.dtype)
        return {"mean": self.table.mean()}


def test_an_agent_of_structured_observations_and_actions_passes() -> None:
    check_agent(Going, Cells())


def test_actions_that_lack_a_leaf_of_their_space_are_found() -> None:
    with fails_saying("sample() returned ndarray, expected an array for each of ['go'] by path"):
        check_agent(broken(Going, {"sample": lambda self, obs: obs["at"]}), Cells())
    with fails_saying("sample() returned ['at'], expected an array for each of ['go'] by path"):
        check_agent(broken(Going, {"sample": lambda self, obs: {"at": obs["at"]}}), Cells())
