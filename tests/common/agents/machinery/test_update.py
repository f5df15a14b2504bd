"""Captured updates are the eager ones, bit for bit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from common.agents.averaging import average, average_by
from common.agents.awac import AWAC
from common.agents.bc import BC
from common.agents.c51 import C51
from common.agents.discrete_sac import DiscreteSAC
from common.agents.dqn import DQN
from common.agents.iql import IQL
from common.agents.iqn import IQN
from common.agents.machinery.update import Inference, Update
from common.agents.qr_dqn import QRDQN
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.config.run_config import RunConfig
from common.config.trainer_config import ComputingPrecision
from common.data import Array, Items
from common.errors import ConfigError, PluginError, RankLostError
from common.interfaces import Agent, EnvSpec, acting_for_lanes
from common.settings import validate
from crossborder.testing import ItemMemory
from crossborder.testing.agent_checks import MakeAgent
from learner.loop.in_turns import train_in_turns
from learner.loop.learner_parts import computing_in
from learner.loop.server import train_async
from tests.common.agents.parts import CHECKED_CRITICS, CRITICS, CROSSQ, model_of

OBS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
PICTURES = gymnasium.spaces.Box(0, 255, (4, 36, 36), np.uint8)
DISCRETE, BOX = gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (2,), np.float32)
CNN: dict[str, Any] = {"network": {"target": "common.agents.networks:NatureCnn"}}
SPECTRAL: dict[str, Any] = {
    "network": {"target": "common.agents.networks:ImpalaCnn", "params": {"sections": (2,), "spectral_norm": True}}
}
SMALL: dict[str, Any] = {"units": (8,), "batch_size": 8}
Kind = tuple[MakeAgent, gymnasium.Space[Any], gymnasium.spaces.Box]
KINDS: dict[str, Kind] = {
    "DQN": (partial(DQN, **SMALL, soft_update_interval=2), DISCRETE, OBS),
    "dueling DQN, squared loss, no clipping": (
        partial(DQN, **SMALL, dueling=True, critic_loss="mse", max_grad_norm=None, double_dqn=False),
        DISCRETE,
        OBS,
    ),
    "double DQN in a burst": (partial(DQN, **SMALL, n_updates_per_opt=4), DISCRETE, OBS),
    "Munchausen DQN in a burst": (partial(DQN, **SMALL, n_updates_per_opt=3, munchausen={}), DISCRETE, OBS),
    "DQN of pictures": (partial(DQN, **CNN, batch_size=4), DISCRETE, PICTURES),
    "IQN": (partial(IQN, **SMALL, feature_dim=8), DISCRETE, OBS),
    "noisy, dueling Munchausen IQN": (
        partial(IQN, **SMALL, feature_dim=8, noisy=0.5, dueling=True, munchausen={}),
        DISCRETE,
        OBS,
    ),
    "noisy, dueling C51": (partial(C51, **SMALL, noisy=0.5, dueling=True), DISCRETE, OBS),
    "QR-DQN": (partial(QRDQN, **SMALL), DISCRETE, OBS),
    "Munchausen DQN with spectral norms": (partial(DQN, **SPECTRAL, batch_size=4, munchausen={}), DISCRETE, PICTURES),
    "SAC": (partial(SAC, **SMALL, n_updates_per_opt=2), BOX, OBS),
    "TD3": (partial(TD3, **SMALL, policy_delay=2, max_grad_norm=1.0), BOX, OBS),
    "AWAC": (partial(AWAC, **SMALL), BOX, OBS),
    "IQL": (partial(IQL, **SMALL), BOX, OBS),
    "BC": (partial(BC, **SMALL), BOX, OBS),
    **{f"SAC: {name}": (partial(SAC, **(SMALL | params)), BOX, OBS) for name, params in CRITICS.items()},
    "SAC: conservative (CQL)": (partial(SAC, **(SMALL | {"conservatism": 5.0})), BOX, OBS),
    "discrete SAC": (partial(DiscreteSAC, **SMALL), DISCRETE, OBS),
    "SAC with state-dependent noise": (partial(SAC, **SMALL, state_dependent_noise={"features": 4}), BOX, OBS),
    "TD3 with AdamW and a schedule": (
        partial(TD3, **SMALL, optimizer={"kind": "adamw", "schedule": {"kind": "cosine", "steps": 5, "warmup": 2}}),
        BOX,
        OBS,
    ),
    "TD3 without targets": (partial(TD3, **SMALL, **CROSSQ), BOX, OBS),
    "SAC of normalised observations": (partial(SAC, **SMALL, normalize_observations=True), BOX, OBS),
}

CHECKED = {
    *("dueling DQN, squared loss, no clipping", "QR-DQN", "SAC", "TD3", "AWAC", "IQL", "BC", "discrete SAC"),
    *("SAC with state-dependent noise", "TD3 without targets", *(f"SAC: {name}" for name in CHECKED_CRITICS)),
}
"""Those that ``check_agent`` compares with eager ones elsewhere, in test_conformance, test_noise and test_q_agent."""
ACTING = [
    *("DQN", "DQN of pictures", "IQN", "noisy, dueling Munchausen IQN", "noisy, dueling C51"),
    *("Munchausen DQN with spectral norms", "SAC", "TD3", "BC", "discrete SAC", "SAC with state-dependent noise"),
    *("SAC of normalised observations", "SAC: no targets (CrossQ)"),
]
"""Those that act differently: critics, losses and optimisers do not act."""


class WeightedMemory(ItemMemory):
    """Gives weights as a prioritised replay does, and keeps what it is told."""

    is_uniform = False

    def __init__(self, items: Items) -> None:
        super().__init__(items)
        self.told: list[np.ndarray[Any, Any]] = []

    def batch(self, size: int) -> Items:
        items, index = super().batch(size), np.arange(size)
        return {**items, "index": index, "weight": np.linspace(0.1, 1, size, dtype=np.float32)}

    def update_priority(self, index: np.ndarray[Any, Any], td_error: np.ndarray[Any, Any]) -> None:
        assert len(index) == len(td_error)
        self.told.append(td_error)


def items(actions: gymnasium.Space[Any], obs: gymnasium.spaces.Box, n: int = 32) -> Items:
    rng = np.random.default_rng(0)
    actions.seed(0)
    obs.seed(0)
    return {
        "obs": np.stack([obs.sample() for _ in range(n)]),
        "action": np.stack([actions.sample() for _ in range(n)]),
        "reward": rng.normal(size=n).astype(np.float32),
        "next_obs": np.stack([obs.sample() for _ in range(n)]),
        "terminated": rng.random(n) < 0.3,
        "truncated": np.zeros(n, np.bool_),
    }


def learn(
    kind: Kind, memory: ItemMemory, update: str, precision: ComputingPrecision = "float32", device: str = "cpu"
) -> list[Any]:
    """All that six opt steps record and leave behind."""
    make, actions, obs = kind
    agent = make(spec=EnvSpec(obs, actions), seed=0, update=update, device=device)
    computing, kept = computing_in(precision, device), []
    for _ in range(6):
        with computing:
            record = agent.opt(memory)
        assert record is not None
        kept.append({name: float(value) for name, value in record.items()})
    tensors = agent.training_state().tensors
    return [*kept, {name: tensor.tolist() for name, tensor in tensors.items()}]


@pytest.mark.parametrize("name", [name for name in KINDS if name not in CHECKED])
def test_a_captured_update_is_the_eager_one_bit_for_bit(name: str, caplog: pytest.LogCaptureFixture) -> None:
    kind = KINDS[name]
    columns = items(*kind[1:])
    assert learn(kind, ItemMemory(columns), "captured") == learn(kind, ItemMemory(columns), "eager")
    assert not caplog.records, "it was captured"


@pytest.mark.parametrize("name", ["DQN", "IQN", "noisy, dueling C51", "QR-DQN", "SAC"])
def test_a_captured_update_is_the_eager_one_also_with_weights_and_reports_the_same_errors(name: str) -> None:
    kind = KINDS[name]
    captured, eager = (WeightedMemory(items(*kind[1:])) for _ in range(2))
    assert learn(kind, captured, "captured") == learn(kind, eager, "eager")
    np.testing.assert_array_equal(captured.told, eager.told)


@pytest.mark.parametrize("precision", ["bfloat16", "rounded_products"])
@pytest.mark.parametrize("name", ["DQN", "noisy, dueling C51", "TD3"])
def test_a_captured_update_is_the_eager_one_also_in_less_precision(name: str, precision: ComputingPrecision) -> None:
    kind = KINDS[name]
    memory = items(*kind[1:])
    captured = learn(kind, ItemMemory(memory), "captured", precision)
    assert captured == learn(kind, ItemMemory(memory), "eager", precision)


def test_an_agent_that_has_learnt_takes_over_a_restored_state() -> None:
    make, actions, obs = KINDS["DQN"]
    agents = [
        make(spec=EnvSpec(obs, actions), seed=seed, update=update) for seed, update in enumerate(("captured", "eager"))
    ]
    columns = items(actions, obs)
    for agent in agents:
        for _ in range(3):
            agent.opt(ItemMemory(columns))
    captured, eager = agents
    captured.load_training_state(eager.training_state())
    for agent in agents:
        memory = ItemMemory(columns)
        for _ in range(4):
            agent.opt(memory)
    for name, tensor in eager.training_state().tensors.items():
        assert torch.equal(tensor, captured.training_state().tensors[name]), name


def double(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"twice": batch["x"] * 2}


class Watched(TorchDispatchMode):
    """Keeps the names of the operations that are computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.computed: list[str] = []

    def __torch_dispatch__(self, operation: Any, _: object, args: Any = (), kwargs: Any = None) -> Any:
        self.computed.append(operation._opname)
        return operation(*args, **kwargs or {})


@pytest.mark.parametrize("captured", [False, True])
def test_a_call_that_is_not_for_the_record_learns_the_same_and_returns_no_scalars(captured: bool) -> None:
    learnt = torch.zeros(3)

    def learn(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        learnt.add_(batch["x"])
        return {"mean": batch["x"].mean(), "td_error": batch["x"].abs()}

    update, x = Update(learn, {}, captured=captured), torch.tensor([1.0, -2.0, 3.0])
    for _ in range(3):
        assert update({"x": x}, recorded=False).keys() == {"td_error"}
    with Watched() as watched:
        assert update({"x": x}, recorded=False)["td_error"].tolist() == [1, 2, 3]
    assert learnt.tolist() == [4, -8, 12]
    assert ("mean" in watched.computed) == (not captured)
    assert update({"x": x}).keys() == {"mean", "td_error"}


def test_a_loss_that_no_record_shows_is_not_computed() -> None:
    weight = torch.ones(3, requires_grad=True)

    def learn(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        loss = nn.functional.smooth_l1_loss(weight * batch["x"], batch["y"])
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight.sub_(gradient)
        return {"loss": loss.detach()}

    update, batch = Update(learn, {}, captured=True), {"x": torch.ones(3), "y": torch.zeros(3)}
    for _ in range(2):
        update(batch, recorded=False)
    with Watched() as watched:
        update(batch, recorded=False)
    assert "smooth_l1_loss_backward" in watched.computed
    assert "smooth_l1_loss" not in watched.computed


def test_an_update_without_results_whose_capture_fails_at_the_end_learns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt = torch.zeros(())

    def learn(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        learnt.add_(batch["x"])
        return {"loss": batch["x"].sum()}

    def fail(_: object) -> None:
        raise RuntimeError("the graph cannot be simplified")

    monkeypatch.setattr("common.agents.machinery.capturing.simplify", fail)
    update = Update(learn, {}, captured=True)
    for _ in range(3):
        assert update({"x": torch.ones(())}, recorded=False) == {}
    assert float(learnt) == 3


def test_a_batch_of_another_size_or_dtype_is_traced_anew() -> None:
    update = Update(double, {}, captured=True)
    for _ in range(3):
        for x in (torch.ones(3), torch.ones(5), torch.ones(3, dtype=torch.float64)):
            assert torch.equal(update({"x": x})["twice"], 2 * x)


def test_an_update_that_cannot_be_captured_stays_eager_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    def sign(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sign": torch.tensor(1.0 if batch["x"].sum() > 0 else -1.0)}

    update = Update(sign, {}, captured=True)
    with caplog.at_level(logging.WARNING):
        found = [float(update({"x": torch.full((2,), value)})["sign"]) for value in (1.0, 1.0, -1.0, 1.0, -1.0)]
    assert found == [1, 1, -1, 1, -1]
    assert [record.getMessage() for record in caplog.records] == ["updates stay eager, as they cannot be captured:"]


def test_a_captured_update_uses_the_parameters_loaded_last() -> None:
    net = nn.Linear(1, 1, bias=False)
    update = Update(lambda batch: {"y": net(batch["x"]).detach()}, {"net": net}, captured=True)
    for weight in (1.0, 2.0, 3.0, 4.0):
        net.load_state_dict({"weight": torch.tensor([[weight]])})
        assert float(update({"x": torch.ones(1)})["y"]) == weight


@pytest.mark.parametrize("captured", [False, True])
def test_denormal_numbers_count_as_zero_in_an_update_and_nowhere_else(captured: bool) -> None:
    update = Update(lambda batch: {"y": batch["x"] * 0.5}, {}, captured=captured)
    smallest = torch.full((8,), torch.finfo(torch.float32).tiny)
    for _ in range(3):
        assert not update({"x": smallest})["y"].any()
    assert (smallest * 0.5).all()


@pytest.fixture
def averaged() -> Iterator[list[int]]:
    """How many values each average over ranks had; the second one finds that a rank has ended."""
    sizes = list[int]()

    def average_values(tensor: torch.Tensor) -> None:
        sizes.append(tensor.numel())
        if len(sizes) == 2:
            raise RankLostError("another rank has ended")

    average_by(average_values, 2)
    yield sizes
    average_by(None)


def test_a_rank_that_is_lost_while_an_update_is_captured_ends_training(averaged: list[int]) -> None:
    update = Update(lambda batch: {"mean": average(batch["x"])}, {}, captured=True)
    update({"x": torch.ones(3)})
    with pytest.raises(RankLostError):
        update({"x": torch.ones(3)})
    assert averaged == [3, 3], "the update is not computed again"


def test_updates_stay_eager_without_a_warning_where_averages_cannot_be_captured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = list[int]()

    def learn(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"mean": average(batch["x"])}

    update = Update(learn, {}, captured=True)
    average_by(lambda _: None, 2, can_be_captured=False)
    try:
        for _ in range(4):
            update({"x": torch.ones(3)})
    finally:
        average_by(None)
    assert len(calls) == 4
    assert not caplog.records


# A real run: observations of other units, and rewards of another size.


def run_config(run_dir: Path, **more: Any) -> RunConfig:
    values = {
        "run_dir": str(run_dir),
        "env": {
            "target": "gymnasium:make",
            "params": {"id": "CartPole-v1"},
            "wrappers": [{"target": "common.envs.wrappers:discounted_return", "params": {"discount_factor": 0.9}}],
            "info": {"discounted_return": "float32"},
        },
        "agent": {
            "target": "common.agents.dqn:DQN",
            "params": {
                "units": [8],
                "batch_size": 16,
                "discount_factor": 0.9,
                "normalize_observations": True,
                "normalize_rewards": True,
            },
        },
        "replay": {"capacity": 1000},
        "trainer": {"max_opts": 60, "warmup_period": 50, "eval_interval": 30, "record_interval": 20},
        "evaluator": {"episodes": 1},
        "server": {"listen": "127.0.0.1:0", "grace_seconds": 0.5},
        "metrics": {"listen": "127.0.0.1:0"},
    }
    return validate(RunConfig, values | more)


def saved_statistics(path: Path) -> dict[str, torch.Tensor]:
    params = safetensors.torch.load_file(path / "model.safetensors")
    return {name: value for name, value in params.items() if name.startswith("normalizer.")}


def test_the_statistics_of_a_run_are_those_of_the_rows_that_it_drew(tmp_path: Path) -> None:
    result = train_in_turns(run_config(tmp_path / "run"))
    found = saved_statistics(result.run_dir / "final")
    assert found["normalizer.count"] == 60 * 16
    returns = [sum(0.9**i for i in range(k)) for k in range(1, 21)]  # CartPole pays 1 a step; about 20 steps at first.
    assert found["normalizer.return_mean"].item() == pytest.approx(np.mean(returns), rel=0.3)
    assert found["normalizer.return_var"].item() == pytest.approx(np.var(returns), rel=0.6)


def test_actors_act_and_give_first_priorities_by_the_statistics_of_the_learner(tmp_path: Path) -> None:
    replay, push = {"capacity": 1000, "prioritized": {}}, {"initial_priorities": True, "n_buffer": 8}
    result = train_async(run_config(tmp_path / "run", replay=replay, push=push), 1)
    assert result.opt_steps == 60
    assert saved_statistics(result.run_dir / "final")["normalizer.count"] == 60 * 16


def test_a_run_whose_rows_lack_the_return_is_refused_by_name(tmp_path: Path) -> None:
    config = run_config(tmp_path / "run")
    env = config.env.model_copy(update={"info": {}})
    with pytest.raises(ConfigError, match=r"agent\.params\.normalize_rewards: needs a column info/discounted_return"):
        train_in_turns(config.model_copy(update={"env": env}))


CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ACTING)
def test_replayed_actions_are_the_eager_ones_bit_for_bit_also_after_another_model(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, actions, space = KINDS[name]
    spec = EnvSpec(space, actions)
    replayed, eager = (make(spec=spec, seed=0, epsilon=0.5, update=update) for update in ("captured", "eager"))
    other = make(spec=spec, seed=1)
    space.seed(0)
    model = model_of(other)
    for _ in range(2):
        for n in (1, 8, 1, 8):
            obs = np.stack([space.sample() for _ in range(n)])
            for switch in (Agent.train, Agent.eval):
                for agent in (replayed, eager):
                    switch(agent)
                    agent.begin(np.zeros(n, bool))
                np.testing.assert_array_equal(replayed.sample(obs), eager.sample(obs), strict=True)
        for agent in (replayed, eager):
            agent.sync_model(model)
    assert not caplog.records, "they were replayed"


@pytest.mark.parametrize("name", ACTING)
def test_replayed_actions_for_some_lanes_are_the_eager_ones_bit_for_bit(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, actions, space = KINDS[name]
    spec = EnvSpec(space, actions)
    replayed, eager = (
        acting_for_lanes(make(spec=spec, seed=0, epsilon=0.5, update=update)) for update in ("captured", "eager")
    )
    space.seed(0)
    for switch in (Agent.train, Agent.eval):
        for agent in (replayed, eager):
            switch(cast("Agent", agent))
        for lanes in (np.array([4]), np.array([2, 4, 0]), np.array([0, 1, 2, 7]), np.array([7, 4, 2])):
            obs = np.stack([space.sample() for _ in lanes])
            for agent in (replayed, eager):
                agent.begin(lanes == 7, lanes)
            np.testing.assert_array_equal(replayed.sample(obs, lanes), eager.sample(obs, lanes), strict=True)
    assert not caplog.records, "they were replayed"


def test_any_number_of_lanes_has_one_of_a_few_traces() -> None:
    rows: list[int] = []

    def double(obs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        rows.append(len(obs))
        return 2 * obs + noise

    act = Inference(double, CPU, captured=True, noise=lambda lanes: lanes[:, None].astype(np.float32))
    for k in [*range(1, 18), *range(17, 0, -1)]:
        obs, lanes = np.random.default_rng(k).random((k, 1), np.float32), np.arange(k)[::-1]
        np.testing.assert_array_equal(act(obs, lanes), 2 * obs + lanes[:, None].astype(np.float32))
    assert rows == [1, 2, 4, 8, 16, 32]


def test_observations_of_another_number_of_lanes_are_refused() -> None:
    with pytest.raises(PluginError, match="expected observations for 3 lanes, one row each, found 2 rows"):
        Inference(nn.Identity(), CPU)(np.zeros((2, 1), np.float32), np.arange(3))


def test_actions_follow_from_the_parameters_loaded_last() -> None:
    net = nn.Linear(1, 1, bias=False)
    act = Inference(net, CPU, captured=True)
    for weight in (1.0, 2.0, 3.0):
        net.load_state_dict({"weight": torch.tensor([[weight]])})
        assert act(np.ones((2, 1), np.float32)).tolist() == [[weight], [weight]]


@pytest.mark.parametrize("captured", [True, False])
def test_actions_follow_from_what_an_array_holds_at_the_call(*, captured: bool) -> None:
    act = Inference(lambda obs: 2 * obs, CPU, captured=captured)
    lanes, other = np.zeros((2, 1), np.float32), np.full((2, 1), 5, np.float32)
    for value in (1.0, 2.0, 3.0):
        lanes[:] = value
        assert act(lanes).tolist() == [[2 * value], [2 * value]]
        assert act(other).tolist() == [[10], [10]]
        assert act(lanes[:1]).tolist() == [[2 * value]]


def test_an_array_in_another_order_has_the_same_actions() -> None:
    """``contiguous`` does nothing for the first array, so its trace has only the view, which suits no other order."""
    infer = Inference(lambda obs: cast("torch.Tensor", obs).contiguous().view(-1, 12).sum(1), CPU, captured=True)
    rows = np.random.default_rng(0).random((2, 3, 4), np.float32)
    turned = np.ascontiguousarray(rows.transpose(0, 2, 1)).transpose(0, 2, 1)
    assert not turned.flags.c_contiguous
    for obs in (rows, turned, rows.copy(), turned.copy("K")):
        np.testing.assert_allclose(infer(obs), rows.sum((1, 2)), rtol=1e-6)


def test_later_actions_do_not_overwrite_earlier_ones() -> None:
    act = Inference(nn.Identity(), CPU, captured=True)
    kept: list[Array] = [act(np.full((2, 1), value, np.float32)) for value in (1, 2, 3)]
    assert [array.tolist() for array in kept] == [[[value]] * 2 for value in (1, 2, 3)]


def test_actions_that_cannot_be_captured_stay_eager_and_the_log_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    act = Inference(lambda obs: torch.tensor(1.0 if obs.sum() > 0 else -1.0), CPU, captured=True)
    with caplog.at_level(logging.WARNING):
        found = [float(act(np.full(n, sign, np.float32))) for sign in (1.0, -1.0, 1.0) for n in (2, 3)]
    assert found == [1, 1, -1, -1, 1, 1]
    assert [record.getMessage() for record in caplog.records] == [
        "actions are computed eagerly, as they cannot be replayed:"
    ]
