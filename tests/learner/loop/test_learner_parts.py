from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.awac import AWAC
from common.agents.dqn import DQN
from common.agents.iql import IQL
from common.agents.iqn import IQN
from common.agents.network_agent import NetworkAgent
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.config.server_config import MESSAGE_BYTES, MOST_MESSAGE_BYTES
from common.config.trainer_config import ComputingPrecision
from common.data import ENVELOPE_BYTES, Array, Column, Record, Schema
from common.errors import ConfigError, FaultError, PluginError
from common.interfaces import Agent, EnvSpec, ReplayBuffer, TrainingState
from crossborder.testing import ItemMemory
from learner.loop.in_turns import train_in_turns
from learner.loop.learner_parts import LOOK_SECONDS, LiveTensors, build_learner_parts, computing_in, message_bytes
from learner.loop.server import LearnerServer
from tests.conftest import MakeConfig
from tests.devices import needs_two_gpus
from tests.parts import CheckingAgent

OBS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
KINDS: list[tuple[type[Agent], gymnasium.Space[Any]]] = [
    (DQN, gymnasium.spaces.Discrete(2)),
    (IQN, gymnasium.spaces.Discrete(2)),
    (SAC, gymnasium.spaces.Box(-1, 1, (2,), np.float32)),
    (TD3, gymnasium.spaces.Box(-1, 1, (2,), np.float32)),
    (AWAC, gymnasium.spaces.Box(-1, 1, (2,), np.float32)),
    (IQL, gymnasium.spaces.Box(-1, 1, (2,), np.float32)),
]
AGENTS = pytest.mark.parametrize(("kind", "actions"), KINDS)
Params = dict[str, torch.Tensor]


def items(actions: gymnasium.Space[Any], n: int = 64) -> ItemMemory:
    rng = np.random.default_rng(0)
    actions.seed(0)
    return ItemMemory(
        {
            "obs": rng.uniform(-1, 1, (n, 4)).astype(np.float32),
            "action": np.stack([actions.sample() for _ in range(n)]),
            "reward": rng.normal(size=n).astype(np.float32),
            "next_obs": rng.uniform(-1, 1, (n, 4)).astype(np.float32),
            "terminated": np.zeros(n, np.bool_),
            "truncated": np.zeros(n, np.bool_),
        }
    )


def learn(
    kind: type[Agent], actions: gymnasium.Space[Any], precision: ComputingPrecision
) -> tuple[Params, Params, list[float]]:
    """Parameters before and after a few opt steps, and all that was recorded."""
    make: Any = kind
    agent: Agent = make(EnvSpec(OBS, actions), seed=0, units=(32,), n_updates_per_opt=2)
    memory, computing, recorded = items(actions), computing_in(precision, "cpu"), []
    before = {name: value.clone() for name, value in agent.save_params().items()}
    for _ in range(4):
        with computing:
            record = agent.opt(memory)
        assert record is not None
        recorded += [float(value) for value in record.values()]
    return before, dict(agent.save_params()), recorded


@cache
def learn_exactly(kind: type[Agent]) -> Params:
    """Parameters after the same opt steps in float32; nobody may change them."""
    return learn(kind, dict(KINDS)[kind], "float32")[1]


@pytest.mark.parametrize("precision", ["bfloat16", "rounded_products"])
@AGENTS
def test_every_agent_learns_nearly_the_same_in_less_precision_and_keeps_its_parameters_in_float32(
    kind: type[Agent], actions: gymnasium.Space[Any], precision: ComputingPrecision
) -> None:
    before, after, recorded = learn(kind, actions, precision)
    exact = learn_exactly(kind)
    assert all(math.isfinite(value) for value in recorded)
    assert {value.dtype for value in after.values()} == {torch.float32}
    moved, apart = (
        torch.cat([(after[name] - other[name]).flatten() for name in after]).norm() for other in (before, exact)
    )
    assert apart < moved / 2
    assert apart > 0 or precision == "rounded_products", "a processor without bfloat16 rounds no products"


def test_products_are_rounded_in_the_context_alone() -> None:
    x = torch.full((64, 64), 1 + 2**-12)
    exact = x @ x
    with computing_in("rounded_products", "cpu"):
        rounded = x @ x
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, exact) or bool((rounded == 64).all()), "this processor may not round"
    assert torch.equal(x @ x, exact)


class Probe(CheckingAgent):
    """An agent of one's own, which looks at the dtype of a product while it learns and while it is evaluated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, in_turns=True, **kwargs)
        self.net = nn.Linear(2, 1)

    def _bits(self) -> float:
        return float(torch.finfo(self.net(torch.ones(1, 2)).dtype).bits)

    def sample(self, obs: Any) -> Any:
        assert self._bits() == 32
        return super().sample(obs)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        record = super().opt(buffer)
        return record and {**record, "bits": self._bits()}


@pytest.mark.parametrize(("precision", "bits"), [("float32", 32), ("bfloat16", 16)])
def test_an_agent_of_ones_own_learns_in_the_precision_asked_for_and_acts_in_float32(
    make_config: MakeConfig, precision: str, bits: int
) -> None:
    config = make_config(
        agent={"target": f"{__name__}:Probe"},
        trainer={"max_opts": 10, "record_interval": 5, "eval_interval": 5, "precision": precision},
        evaluator={"episodes": 1},
    )
    result = train_in_turns(config)
    with (result.run_dir / "metrics.csv").open(newline="") as file:
        assert {float(row["bits"]) for row in csv.DictReader(file)} == {bits}


def test_within_one_opt_a_changed_parameter_is_seen_by_the_next_product() -> None:
    net, ones = nn.Linear(1, 1, bias=False), torch.ones(1, 1)
    with computing_in("bfloat16", "cpu"):
        for value in (1.0, 2.0):
            with torch.no_grad():
                net.weight.fill_(value)
            assert net(ones).item() == value


def test_a_device_without_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^trainer\.precision: meta cannot compute in bfloat16: "):
        computing_in("bfloat16", "meta")


class Unsavable(CheckingAgent):
    """An agent of which one method gives no tensors."""

    def __init__(self, *args: Any, method: str, given: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        setattr(self, method, lambda: given)


@pytest.mark.parametrize("method", ["model_info", "save_params", "training_state"])
@pytest.mark.parametrize("given", [None, [1.0], {"w": 1.0}], ids=["None", "list", "dict"])
def test_what_cannot_be_published_or_saved_is_found_before_training(
    make_config: MakeConfig, method: str, given: Any
) -> None:
    agent = {"target": f"{__name__}:Unsavable", "params": {"method": method, "given": given}}
    expected = "a crossborder.TrainingState" if method == "training_state" else "dense torch tensors by their names"
    with pytest.raises(PluginError) as caught:
        build_learner_parts(make_config(agent=agent))
    assert str(caught.value) == f"agent.{method}: expected {expected}, found {given}"


class NoNetworks(NetworkAgent):
    """Has no ``nets``, or a network whose state is not only of tensors."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str, net: nn.Module | None = None) -> None:
        self.nets = {} if net is None else {"net": net}

    def sample(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        return None


class Counted(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"steps": 1}


def lazy(**arguments: Any) -> NoNetworks:
    return NoNetworks(**arguments, net=nn.LazyLinear(2))


def counted(**arguments: Any) -> NoNetworks:
    return NoNetworks(**arguments, net=Counted(2, 2))


@pytest.mark.parametrize(
    ("target", "error"), [("NoNetworks", "StopIteration"), ("lazy", "ValueError"), ("counted", "AttributeError")]
)
def test_an_agent_whose_networks_give_no_tensors_is_named(make_config: MakeConfig, target: str, error: str) -> None:
    with pytest.raises(FaultError, match=rf"^agent: model_info\(\), save_params\(\) .* failed: {error}"):
        build_learner_parts(make_config(agent={"target": f"{__name__}:{target}"}))


def test_training_values_that_json_cannot_hold_are_found_before_training(make_config: MakeConfig) -> None:
    given = TrainingState({}, {"seen": {1, 2}})
    agent = {"target": f"{__name__}:Unsavable", "params": {"method": "training_state", "given": given}}
    with pytest.raises(PluginError, match=r"^agent\.training_state: values: expected values that JSON can hold: .*set"):
        build_learner_parts(make_config(agent=agent))


@needs_two_gpus
def test_calls_that_name_no_gpu_mean_the_one_of_the_configuration(make_config: MakeConfig) -> None:
    with torch.cuda.device(0):
        build_learner_parts(make_config(trainer={"device": "cuda:1"}))
        assert torch.ones(1, device="cuda").device == torch.device("cuda:1")


@pytest.mark.parametrize(
    ("row_bytes", "expected"), [(1, MESSAGE_BYTES), (1 << 20, (20 << 20) + ENVELOPE_BYTES), (13 << 20, None)]
)
def test_a_message_has_room_for_a_batch_unless_it_would_be_too_large(
    make_config: MakeConfig, row_bytes: int, expected: int | None
) -> None:
    config, schema = make_config(push={"n_buffer": 20}), Schema((Column("picture", "|u1", (row_bytes,)),))
    if expected is not None:
        assert message_bytes(config, schema) == expected
        return
    found = 20 * row_bytes + ENVELOPE_BYTES
    problem = f"push.n_buffer: 20 rows of {row_bytes} bytes take messages of up to {found} bytes"
    with pytest.raises(ConfigError, match=rf"^{problem}, expected at most {MOST_MESSAGE_BYTES}$"):
        message_bytes(config, schema)


def test_an_agent_that_replaces_its_tensors_after_a_while_ends_the_run_and_not_only_its_models(
    host: LearnerServer,
) -> None:
    """The trial opt step of the start has not seen it; actors would act with the former tensors for ever."""
    host.learner.publish(1, wait=True)
    agent: Any = host.run.parts.agent
    former, agent._steps = agent._steps, agent._steps.clone()
    with pytest.raises(PluginError, match=r"CheckingAgent: 'steps': model_info\(\) gave other tensors after opt"):
        host.learner.publish(2, wait=True)
    agent._steps = former
    host.learner.publish(3, wait=True)
    assert host.publisher.slots.header.published == 3  # One of them is of the start.


class RebindingAgent(CheckingAgent):
    """Takes the tensors that it is to load in the place of its own."""

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        self._steps = params["steps"]


def test_an_agent_that_replaces_its_tensors_by_those_of_a_checkpoint_is_told_so(make_config: MakeConfig) -> None:
    config = make_config(agent={"target": f"{__name__}:RebindingAgent"}, server={"grace_seconds": 0.1})
    with LearnerServer(config):
        pass
    with pytest.raises(PluginError, match=r"RebindingAgent: 'steps': model_info\(\) gave other tensors after load_par"):
        LearnerServer(config, resume=True)


def test_a_look_at_the_tensors_is_taken_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    agent = CheckingAgent(EnvSpec(OBS, KINDS[0][1]), seed=0, epsilon=0.0, device="cpu")
    live = LiveTensors(agent, "ours")
    live.require()
    agent._steps = torch.zeros(1)
    live.require()
    now += LOOK_SECONDS
    with pytest.raises(PluginError, match="agent: ours: '"):
        live.require()
