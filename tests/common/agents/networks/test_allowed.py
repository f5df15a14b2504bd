"""What holds for all agents of discrete actions: an action that the mask does not allow is never chosen."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st

from common.agents.bc import BC
from common.agents.c51 import C51
from common.agents.discrete_sac import DiscreteSAC
from common.agents.dqn import DQN
from common.agents.impala import IMPALA
from common.agents.iqn import IQN
from common.agents.network_agent import NetworkAgent
from common.agents.networks.layers import Head
from common.agents.ppo import PPO
from common.agents.qr_dqn import QRDQN
from common.agents.r2d2 import R2D2
from common.agents.recurrent_ppo import RecurrentPPO
from common.data import Array
from common.errors import ConfigError
from common.interfaces import EnvSpec, ReplayBuffer
from common.parts import row_schema
from crossborder.testing import RowMemory, check_agent, play, rows_of
from learner.views.rollouts import Rollouts
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions

N = 4
"""Actions."""
SMALL: dict[str, Any] = {"units": (8,), "update": "eager"}
RAINBOW: dict[str, Any] = {"noisy": 0.5, "dueling": True, "explorer": {"kind": "greedy"}}
AGENTS: dict[str, Any] = {
    "DQN": partial(DQN, epsilon=1.0),
    "DQN, plain": partial(DQN, double_dqn=False, explorer={"start": 0.0}),
    "DQN, softmax": partial(DQN, explorer={"kind": "softmax"}, eval_epsilon=0.5),
    "DQN, Munchausen": partial(DQN, munchausen={}),
    "C51": partial(C51),
    "C51, Rainbow": partial(C51, **RAINBOW),
    "QR-DQN": partial(QRDQN),
    "QR-DQN, plain": partial(QRDQN, double_dqn=False),
    "IQN": partial(IQN, feature_dim=7),
    "IQN, Munchausen": partial(IQN, feature_dim=7, munchausen={}),
    "R2D2": partial(R2D2, dueling=False, memory={"width": 8}),
    "R2D2, dueling": partial(R2D2, memory={"width": 8}),
    "PPO": partial(PPO, minibatches=1, epochs=1, batch_size=4),
    "PPO, one network": partial(PPO, minibatches=1, epochs=1, batch_size=4, share_layers=True, entropy_cost=0.1),
    "recurrent PPO": partial(
        RecurrentPPO, minibatches=1, epochs=1, batch_size=4, memory={"width": 8}, feature_dim=7, share_layers=True
    ),
    "IMPALA": partial(IMPALA),
    "discrete SAC": partial(DiscreteSAC),
    "BC": partial(BC),
}
EACH = pytest.mark.parametrize("name", AGENTS)
OBSERVATION = Box(-1, 1, (3,), np.float32)
MASKS: dict[str, tuple[Any, Any]] = {
    "Discrete": (Discrete(N), Box(0, 1, (N,), np.int8)),
    "Discrete from 5, of bits": (Discrete(N, start=5), MultiBinary(N)),
    "MultiDiscrete": (MultiDiscrete([2, 3]), Box(0, 1, (5,), np.int8)),
    "MultiDiscrete, a tuple": (MultiDiscrete([2, 3], start=[1, -1]), Tuple([MultiBinary(2), Box(0, 1, (3,), bool)])),
}


def spec_of(actions: Any = MASKS["Discrete"][0], mask: Any = MASKS["Discrete"][1]) -> EnvSpec:
    return EnvSpec(Dict(action_mask=mask, observation=OBSERVATION), actions)


def make(name: str, spec: EnvSpec, **params: Any) -> Any:
    return AGENTS[name](spec, seed=0, **(SMALL | params))


def observe(masks: list[Array], seed: int) -> dict[str, Array]:
    """Random observations with masks ``[n, k]``: one, or those of several leaves."""
    found = np.random.default_rng(seed).uniform(-1, 1, (len(masks[0]), 3)).astype(np.float32)
    paths = ["action_mask"] if len(masks) == 1 else [f"action_mask/{i}" for i in range(len(masks))]
    return {**dict(zip(paths, masks, strict=True)), "observation": found}


def random_masks(rng: np.random.Generator, n: int, size: int) -> Array:
    """Masks ``[n, size]`` int8, each with an allowed action, and often with one only."""
    masks = rng.random((n, size)) < rng.random((n, 1))
    masks[np.arange(n), rng.integers(size, size=n)] = True
    return masks.astype(np.int8)


@EACH
@given(kind=st.sampled_from(list(MASKS)), seed=st.integers(0, 1 << 30), is_train=st.booleans(), is_some=st.booleans())
def test_an_action_that_is_not_allowed_is_never_taken(
    name: str, kind: str, seed: int, is_train: bool, is_some: bool
) -> None:
    actions, mask = MASKS[kind]
    agent, rng = made_once(name, kind), np.random.default_rng(seed)
    agent.train() if is_train else agent.eval()
    sizes = [N] if isinstance(actions, Discrete) else [2, 3]
    parts = [random_masks(rng, 16, size) for size in sizes]
    leaves = mask.spaces if isinstance(mask, Tuple) else [mask]
    masks = [part.astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)] if len(leaves) > 1 else None
    obs = observe(masks or [np.concatenate(parts, axis=1).astype(leaves[0].dtype)], seed)
    lanes = np.arange(16) if is_some else None
    agent.begin(np.ones(16, bool), lanes)
    taken = agent.sample(obs, lanes).reshape(16, -1) - actions.start
    for i, part in enumerate(parts):
        assert part[np.arange(16), taken[:, i]].all()


MADE: dict[tuple[str, str], Any] = {}


def made_once(name: str, kind: str) -> Any:
    """An agent whose outputs are large, so that it prefers some actions much."""
    if (name, kind) not in MADE:
        agent = MADE[name, kind] = make(name, spec_of(*MASKS[kind]))
        for parameter in next(iter(agent.nets.values())).parameters():
            parameter.data *= 3
    return MADE[name, kind]


class Doors(gymnasium.Env[Any, Any]):
    """Random observations and masks, which never allow action 0; episodes of 7 steps, some of which are truncated.

    After the last step of an episode that is terminated, nothing is allowed.
    """

    observation_space = spec_of().observation_space
    action_space = Discrete(N)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert self._mask[action], f"action {action} is not allowed by {self._mask}"
        self._steps += 1
        ends, is_cut = self._steps == 7, self.np_random.random() < 0.5
        obs = self._observe()
        if ends and not is_cut:
            obs["action_mask"] = np.zeros(N, np.int8)
        return obs, float(self.np_random.normal()), ends and not is_cut, ends and is_cut, {}

    def _observe(self) -> Any:
        self._mask = np.append(np.int8(0), random_masks(self.np_random, 1, N - 1)[0])
        return {"action_mask": self._mask, "observation": self.np_random.uniform(-1, 1, 3).astype(np.float32)}


def replay_of(agent: NetworkAgent, action: int | None = None) -> ReplayBuffer:
    """100 steps in ``Doors`` by random allowed actions, as the agent draws them; rows have ``action`` if given."""
    schema = row_schema(spec_of(), agent)
    episodes = play(Doors(), 100)
    extras = []
    for episode in episodes:
        recorded = []
        for step in episode:
            assert isinstance(step.obs, dict)
            agent.begin(np.ones(1, bool))
            agent.sample({path: leaf[None] for path, leaf in step.obs.items()})
            recorded.append({key: column.copy() for key, column in agent.extras().items()})
        extras.append(recorded)
    rows = rows_of(schema, episodes, extras)
    if action is not None:
        rows = {**rows, "action": np.full_like(rows["action"], action)}
    return RowMemory(schema, rows, view_of(type(agent))(schema))


def view_of(kind: Any) -> Any:
    """What makes the view that an agent draws from."""
    if kind in (R2D2, IMPALA):
        return partial(Sequences, length=4, period=4)
    return partial(Rollouts, length=4) if issubclass(kind, PPO) else Transitions


@torch.no_grad()
def prefer_first(agent: NetworkAgent) -> None:
    """Have all networks give a very large output for action 0: of several outputs of the action, for the last one."""
    heads = [layer for net in agent.nets.values() for layer in net.modules() if isinstance(layer, Head)]
    of_actions = [head.bias for head in heads if len(head.bias) >= N and len(head.bias) % N < 2]
    assert of_actions
    for bias in of_actions:
        bias[len(bias) // N - 1] += 1000


PLAINER = {"DQN", "DQN, plain", "DQN, Munchausen", "C51", "QR-DQN, plain", "IQN", "R2D2", "PPO"}
"""The agents beside which ``AGENTS`` has another of the same class, with more that may go wrong."""
SEPARATE = [name for name in AGENTS if name not in {"C51, Rainbow", "R2D2, dueling", "BC"}]
"""The agents whose outputs for one action do not depend on those for others, and that learn from outcomes."""


@pytest.mark.parametrize("name", SEPARATE)
def test_what_is_learnt_does_not_depend_on_an_action_that_is_not_allowed(name: str) -> None:
    """Action 0 is never allowed: targets, policies and losses are the same whatever networks say of it."""
    records = []
    for is_preferred in (False, True):
        agent = make(name, spec_of())
        replay = replay_of(agent)
        if is_preferred:
            prefer_first(agent)
        agent.train()
        record = agent.opt(replay)
        assert record is not None
        records.append({key: float(value) for key, value in record.items()})
    assert all(np.isfinite(value) for value in records[0].values())
    assert records[1] == pytest.approx(records[0], rel=1e-4, abs=1e-5)


@EACH
def test_an_executed_action_that_is_not_allowed_does_no_harm(name: str) -> None:
    """A person may have done what the mask forbids, and a dataset may hold anything."""
    agent = make(name, spec_of())
    replay = replay_of(agent, action=0)
    agent.train()
    for _ in range(3):
        record = agent.opt(replay)
        assert record is not None
        assert all(abs(float(value)) < 1e6 for value in record.values()), record


@pytest.mark.parametrize("name", [name for name in AGENTS if name not in PLAINER])
def test_the_whole_check_passes(name: str) -> None:
    kind, params = AGENTS[name].func, SMALL | AGENTS[name].keywords
    usual = {key: value for key, value in params.items() if key not in {"epsilon", "eval_epsilon"}}
    check_agent(partial(kind, **usual), Doors(), view=view_of(kind), steps=60)


class Blind(DQN):
    def sample(self, obs: Any, lanes: Array | None = None) -> Array:
        return super().sample({**obs, "action_mask": np.ones_like(obs["action_mask"])}, lanes)


def test_the_check_names_an_agent_that_does_not_obey() -> None:
    with pytest.raises(AssertionError, match=r"sample\(\) took an action that action_mask does not allow"):
        check_agent(partial(Blind, **SMALL), Doors(), steps=60)


def test_networks_do_not_see_the_mask() -> None:
    agent = make("DQN", spec_of())
    obs = {"observation": torch.zeros(2, 3), "action_mask": torch.tensor([[1] * N, [0] * N])}
    assert torch.equal(*agent.nets["qnet"](obs))


def test_the_entropy_that_discrete_sac_keeps_is_a_share_of_that_of_allowed_actions() -> None:
    agent = DiscreteSAC(spec_of(), seed=0, target_entropy=0.5)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 0]])
    found = agent._target_entropy({"observation": torch.zeros(3, 3), "action_mask": mask})
    assert torch.as_tensor(found).tolist() == pytest.approx([0.5 * np.log(4), 0.5 * np.log(2), 0])


def test_of_stacked_frames_the_newest_mask_counts() -> None:
    space = Dict(action_mask=Box(0, 1, (3, N), np.int8), observation=Box(-1, 1, (3, 3), np.float32))
    for name in ("DQN", "PPO"):
        agent = make(name, EnvSpec(space, Discrete(N)))
        agent.eval()
        mask = np.ones((8, 3, N), np.int8)
        mask[:, -1] = np.arange(N) == 2
        assert (agent.sample({"action_mask": mask, "observation": np.zeros((8, 3, 3), np.float32)}) == 2).all()


@pytest.mark.parametrize(
    ("actions", "mask", "message"),
    [
        (
            Discrete(3),
            MultiBinary(4),
            r"leaf 'action_mask': expected 3 elements, .* of Discrete\(3\), found 4 elements",
        ),
        (MultiDiscrete([2, 3]), MultiBinary(6), r"expected 5 elements.* found 6"),
        (
            MultiDiscrete([2, 3]),
            Tuple([MultiBinary(3), MultiBinary(2)]),
            "expected 2 elements in .*/0', 3 .* found 3 ",
        ),
        (Discrete(3), Box(0, 255, (3,), np.uint8), "leaf 'action_mask': expected a mask of actions"),
        (Discrete(3), Discrete(3), "leaf 'action_mask': expected a mask of actions"),
    ],
)
@pytest.mark.parametrize("kind", [DQN, PPO, DiscreteSAC, BC])
def test_a_mask_that_does_not_fit_is_refused_by_name(kind: Any, actions: Any, mask: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(spec_of(actions, mask), seed=0)


def test_observations_of_a_mask_alone_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected another leaf beside 'action_mask'"):
        DQN(EnvSpec(Dict(action_mask=MultiBinary(3)), Discrete(3)), seed=0)


def test_continuous_actions_have_no_mask() -> None:
    agent = PPO(EnvSpec(Dict(action_mask=MultiBinary(3), x=OBSERVATION), Box(-1, 1, (2,), np.float32)), seed=0)
    assert set(agent.allowed.leaves) == {"action_mask", "x"}
