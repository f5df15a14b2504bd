"""PPO, RecurrentPPO and IMPALA in Dict and Tuple spaces of actions; other agents refuse such spaces."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from hypothesis import given
from hypothesis import strategies as st

from common.action_masks import find_masks
from common.agents.bc import BC
from common.agents.discrete_sac import DiscreteSAC
from common.agents.dqn import DQN
from common.agents.impala import IMPALA
from common.agents.ppo import PPO
from common.agents.r2d2 import R2D2
from common.agents.recurrent_ppo import RecurrentPPO
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.config.run_config import RunConfig
from common.data import Leaves
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.parts import row_schema
from common.settings import validate
from crossborder.testing import check_agent
from learner.loop.in_turns import train_in_turns
from learner.views.rollouts import Rollouts
from learner.views.sequences import Sequences
from tests.common.agents.parts import Structured
from tests.conftest import merged

OBS = Box(-1, 1, (2,), np.float32)
HYBRID = Dict({"aim": Box(-2, 2, (2, 1), np.float32), "gear": Discrete(3, start=5), "keys": MultiDiscrete([2, 3])})
NESTED = Tuple([Dict({"turn": Box(0, 10, (1,), np.float64)}), Discrete(2)])
SPACES = pytest.mark.parametrize("actions", [HYBRID, NESTED], ids=["Dict", "Tuple"])
SMALL: dict[str, Any] = {"units": (8,), "batch_size": 4}
PPO_SMALL: dict[str, Any] = SMALL | {"minibatches": 2, "epochs": 2}
AGENTS: dict[str, tuple[Any, Any]] = {
    "PPO": (partial(PPO, **PPO_SMALL), partial(Rollouts, length=6)),
    "recurrent PPO": (partial(RecurrentPPO, memory={"width": 8}, **PPO_SMALL), partial(Rollouts, length=6)),
    "IMPALA": (partial(IMPALA, **SMALL), partial(Sequences, length=5, period=5)),
}
EACH = pytest.mark.parametrize("name", AGENTS)


def test_an_agent_with_actions_in_a_tuple_fits_and_its_captured_updates_are_the_eager_ones() -> None:
    """Those with actions in a Dict, for each agent, are checked with masks."""
    make, view = AGENTS["PPO"]
    check_agent(make, Structured(OBS, NESTED), view=view, steps=150)


OF_LEAVES = Dict({"gear": MultiBinary(3), "keys": Box(0, 1, (5,), np.int8)})


@pytest.mark.parametrize(
    ("name", "mask"), [("PPO", OF_LEAVES), ("recurrent PPO", MultiBinary(8)), ("IMPALA", OF_LEAVES)]
)
def test_it_fits_with_masks_of_the_discrete_leaves(name: str, mask: Space[Any]) -> None:
    make, view = AGENTS[name]
    check_agent(make, Masked(mask), view=view, steps=150)


class Masked(Structured):
    """Random masks that allow one value of each component only."""

    def __init__(self, mask: Space[Any]) -> None:
        super().__init__(Dict({"action_mask": mask, "x": OBS}), HYBRID)
        self._is_one = isinstance(mask, MultiBinary)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**given)
        return self._mask(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return self._mask(obs), reward, terminated, truncated, info

    def _mask(self, obs: Any) -> Any:
        gear, key, other = (np.eye(n, dtype=np.int8)[int(abs(obs["x"][0]) * n) % n] for n in (3, 2, 3))
        keys = np.concatenate([key, other])
        return obs | {"action_mask": np.concatenate([gear, keys]) if self._is_one else {"gear": gear, "keys": keys}}


@EACH
@given(seed=st.integers(0, 1 << 30), is_train=st.booleans())
def test_an_action_that_is_not_allowed_is_never_taken(name: str, seed: int, is_train: bool) -> None:
    spec = EnvSpec(Dict({"action_mask": MultiBinary(8), "x": OBS}), HYBRID)
    agent, masks, rng = made_once(name, spec), find_masks(spec), np.random.default_rng(seed)
    assert masks is not None
    agent.train() if is_train else agent.eval()
    allowed = rng.random((16, 8)) < 0.3
    for first, n in ((0, 3), (3, 2), (5, 3)):
        allowed[np.arange(16), first + rng.integers(n, size=16)] = True
    obs: Leaves = {"action_mask": allowed.astype(np.int8), "x": rng.uniform(-1, 1, (16, 2)).astype(np.float32)}
    agent.begin(np.ones(16, bool))
    taken = agent.sample(obs)
    assert masks.are_allowed(obs, taken).all()
    assert np.isfinite(agent.extras()["log_prob"]).all()
    read = agent.allowed.read({"action_mask": torch.from_numpy(allowed)})
    assert read[:, :2].all(), "no mask is about a Box leaf"


MADE: dict[str, Any] = {}


def made_once(name: str, spec: EnvSpec) -> Any:
    if name not in MADE:
        MADE[name] = AGENTS[name][0](spec, seed=0, update="eager")
        for parameter in next(iter(MADE[name].nets.values())).parameters():
            parameter.data *= 3
    return MADE[name]


@EACH
@SPACES
def test_rows_hold_a_column_for_each_leaf_and_choices_within_its_bounds(name: str, actions: Space[Any]) -> None:
    spec = EnvSpec(OBS, actions)
    schema = row_schema(spec, AGENTS[name][0](spec, seed=0))
    paths, inside, outside = {
        id(HYBRID): (["aim", "gear", "keys"], [9.0, -9, 2, 1, 2], [0.0, 0, 3, 0, 0]),
        id(NESTED): (["0/turn", "1"], [9.0, 1], [0.0, -1]),
    }[id(actions)]
    assert [column.name for column in schema.named("action")] == [f"action/{path}" for path in paths]
    domain = schema.by_name["choice"].domain
    assert domain is not None
    assert domain.holds(np.array(inside, np.float32))
    assert not domain.holds(np.array(outside, np.float32)), "the learner must not look such a value up"


def test_the_steps_beyond_the_end_of_a_sequence_may_hold_any_choice() -> None:
    """The final row of an episode, where the sequence ends, holds what was in memory."""
    agent = IMPALA(EnvSpec(OBS, HYBRID), seed=0, **SMALL)
    batch = {
        "choice": torch.tensor([[[0.5, 0.5, 1, 0, 2], [1e9, float("nan"), 77, -5, 1e9]]]),
        "mask": torch.tensor([[True, False]]),
    }
    assert agent._choice(batch).tolist() == [[0.5, 0.5, 1, 0, 2], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (DQN, "DQN: expected a Discrete or MultiDiscrete action space"),
        (R2D2, "R2D2: expected a Discrete or MultiDiscrete action space"),
        (DiscreteSAC, "DiscreteSAC: expected a Discrete or MultiDiscrete action space"),
        (BC, "BC: expected a Discrete or MultiDiscrete action space"),
        (SAC, "SAC: expected a Box action space of floats"),
        (TD3, "TD3: expected a Box action space of floats"),
    ],
)
def test_other_agents_name_the_agents_that_can(kind: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{expected}, found Dict.*; PPO, RecurrentPPO and IMPALA act in Dict"):
        kind(EnvSpec(OBS, HYBRID), seed=0)


@pytest.mark.parametrize("kind", [PPO, RecurrentPPO, IMPALA])
@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (MultiBinary(2), r"expected a Discrete, MultiDiscrete or Box action space.*, found MultiBinary\(2\)"),
        (Box(-np.inf, np.inf, (2,)), "expected an action space with finite bounds"),
        (Box(0, 9, (2,), np.int64), "expected a Box action space of floats"),
    ],
)
def test_a_leaf_that_they_cannot_act_in_is_refused_by_its_path(kind: Any, leaf: Space[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{kind.__name__}: action leaf 'arm/hand': {message}"):
        kind(EnvSpec(OBS, Dict({"arm": Dict({"hand": leaf}), "gear": Discrete(2)})), seed=0)


def test_a_space_without_leaves_is_refused() -> None:
    with pytest.raises(ConfigError, match="space: expected at least one leaf, found Dict"):
        PPO(EnvSpec(OBS, Dict({})), seed=0)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (MultiBinary(7), "expected 8 elements, .*found 7 elements"),
        (Dict({"gear": MultiBinary(3)}), "expected 3 elements in 'action_mask/gear', 5 elements in 'action_mask/keys'"),
        (Dict({"gear": MultiBinary(5), "keys": MultiBinary(3)}), "found 5 elements in 'action_mask/gear', 3 elements"),
    ],
)
def test_a_mask_of_other_leaves_is_refused(mask: Space[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"observation: leaf 'action_mask': .*{message}"):
        PPO(EnvSpec(Dict({"action_mask": mask, "x": OBS}), HYBRID), seed=0)


def test_in_turns_it_solves_a_task_that_needs_both_leaves(tmp_path: Path) -> None:
    result = train_in_turns(throwing(tmp_path / "run"))
    assert result.best_score is not None
    assert result.best_score >= THROWN_WELL
    assert_that_every_ratio_is_1(tmp_path / "run")


def test_in_turns_an_agent_with_a_memory_finds_the_log_probabilities_that_it_recorded(tmp_path: Path) -> None:
    agent = {"target": "common.agents.recurrent_ppo:RecurrentPPO"}
    trainer = {"max_opts": 4, "eval_interval": 4, "record_interval": 2}
    train_in_turns(throwing(tmp_path / "run", agent=agent, trainer=trainer, evaluator={"episodes": 1}))
    assert_that_every_ratio_is_1(tmp_path / "run")


def assert_that_every_ratio_is_1(run_dir: Path) -> None:
    with (run_dir / "metrics.csv").open(newline="") as file:
        ratios = [float(row["ratio_mean"]) for row in csv.DictReader(file) if row.get("ratio_mean")]
    assert ratios
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-5)


THROWN_WELL = 8.5
"""A score on ``Throws``: with one of the two leaves alone, the best is 5."""


def throwing(run_dir: Path, **settings: Any) -> RunConfig:
    """A run of PPO on ``Throws`` until it throws well; ``settings`` are laid over its sections."""
    found = {
        "run_dir": str(run_dir),
        "env": {"target": "tests.parts:Throws"},
        "agent": {"target": "common.agents.ppo:PPO", "params": {"lr": 0.003, "discount_factor": 0.5}},
        "envs_per_actor": 8,
        "push": {"n_buffer": 33, "window": 2},
        "replay": {
            "capacity": 20_000,
            "target": "learner.replay.queue:QueueReplay",
            "samples_per_insert": 1,
            "view": {"target": "learner.views.rollouts:Rollouts", "params": {"length": 32}},
        },
        "trainer": {"max_opts": 400, "target_score": THROWN_WELL, "eval_interval": 20, "sync_interval": 1},
        "evaluator": {"episodes": 10},
        "metrics": {"listen": None},
        "server": {"listen": "127.0.0.1:0"},
    }
    return validate(RunConfig, merged(found, settings))
