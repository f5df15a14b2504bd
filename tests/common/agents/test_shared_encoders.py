"""What holds for SAC and TD3 where actor and critics share an encoder, and where encoders are frozen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from common.agents.bootstrapping import Bootstrapping
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.data import Array, Items
from common.errors import CheckpointError, ConfigError
from common.interfaces import EnvSpec
from common.spaces import to_columns
from crossborder.testing import ItemMemory, check_agent
from tests.common.agents.networks.test_frozen import write_weights
from tests.common.agents.parts import Structured, copies, model_of, same

CAMERA = Box(0, 255, (3, 12, 12), np.uint8)
ROBOT = Dict({"front": CAMERA, "joints": Box(-1, 1, (3,), np.float32), "wrist": CAMERA})
FORCES = Box(-2, 2, (2,), np.float32)
SMALL: dict[str, Any] = {"units": (8,), "feature_dim": 5, "batch_size": 8}
RLPD: dict[str, Any] = {"normalization": "layer", "n_critics": 4, "n_target_critics": 2, "n_updates_per_opt": 2}
EACH = pytest.mark.parametrize("kind", [SAC, TD3])
Kind = type[SAC] | type[TD3]
Frozen = Callable[..., dict[str, Any]]


@pytest.fixture
def frozen(tmp_path: Path) -> Frozen:
    """Makes settings of both cameras, encoded by a frozen network whose weights a seed decides."""

    def make_settings(seed: int = 0) -> dict[str, Any]:
        weights = write_weights(tmp_path / f"{seed}.safetensors", seed)
        encoder = {"target": "common.agents.networks:ConvNet", "weights": weights}
        return {"frozen_encoders": {"front": encoder, "wrist": encoder}}

    return make_settings


def make(kind: Kind = SAC, space: Any = ROBOT, *, seed: int = 0, **params: Any) -> Bootstrapping:
    return kind(EnvSpec(space, FORCES), seed=seed, **({"share_encoder": True} | SMALL | params))


def observations(n: int, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    pictures = {path: rng.integers(256, size=(n, 3, 12, 12), dtype=np.uint8) for path in ("front", "wrist")}
    return {"joints": rng.uniform(-1, 1, (n, 3)).astype(np.float32), **pictures}


def memory(n: int = 64) -> ItemMemory:
    rng = np.random.default_rng(2)
    items: Items = {
        **to_columns("obs", observations(n, 0)),
        **to_columns("next_obs", observations(n, 1)),
        "action": rng.uniform(-2, 2, (n, 2)).astype(np.float32),
        "reward": rng.normal(size=n).astype(np.float32),
        "terminated": rng.random(n) < 0.1,
        "truncated": np.zeros(n, np.bool_),
    }
    return ItemMemory(items)


def encoder_of(agent: Bootstrapping) -> torch.nn.Module:
    assert agent.encoder is not None
    return agent.encoder


class Calls:
    """Counts the passes of pictures through an encoder."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        self.seen: list[Any] = []
        encoder.register_forward_pre_hook(lambda _, args: self.seen.append(args[0]))


# Shared encoders.


def test_captured_updates_are_the_eager_ones_bit_for_bit(frozen: Frozen) -> None:
    found = []
    for update in ("eager", "captured"):
        agent, items = make(update=update, random_shift=2, **RLPD, **frozen()), memory()
        agent.train()
        for _ in range(3):
            agent.opt(items)
            agent.sample(observations(5, 3))
        assert agent.is_captured == (update == "captured")
        found.append({name: value.clone() for name, value in agent.training_state().tensors.items()})
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@EACH
def test_the_encoder_is_in_the_model_and_in_checkpoints_once(kind: Kind) -> None:
    agent = make(kind)
    n_encoder = len(encoder_of(agent).state_dict())
    assert len([name for name in agent.model_info() if name.startswith("0.")]) == n_encoder
    assert len([name for name in agent.save_params() if ".leaves." in name]) == n_encoder


@EACH
def test_the_critics_loss_trains_the_encoder_and_the_actors_does_not(kind: Kind) -> None:
    critics_alone, both = make(kind, policy_delay=100), make(kind, policy_delay=1)
    before, actor_before = copies(encoder_of(both)), copies(both.actor)
    for agent in (critics_alone, both):
        agent.opt(memory())
    assert not same(actor_before, copies(both.actor))
    assert same(actor_before, copies(critics_alone.actor))
    assert not same(before, copies(encoder_of(both)))
    assert same(copies(encoder_of(critics_alone)), copies(encoder_of(both)))


@EACH
def test_pictures_pass_the_encoder_once_for_actor_and_critics_and_each_camera_is_shifted(kind: Kind) -> None:
    agent, items = make(kind, update="eager", policy_delay=1, random_shift=3, batch_size=64), memory()
    calls = Calls(encoder_of(agent))
    agent.opt(items)
    obs, next_obs = calls.seen
    given = {path: torch.from_numpy(leaf) for path, leaf in observations(64, 0).items()}
    drawn = (obs["joints"][:, None] == given["joints"]).all(dim=2).int().argmax(dim=1)
    for path in ("front", "wrist"):
        assert not torch.equal(obs[path], given[path][drawn]), f"{path} was not shifted"
        assert obs[path].shape == next_obs[path].shape
    assert torch.equal(obs["joints"], given["joints"][drawn])


def test_actors_act_as_the_learner_does() -> None:
    learner, actor, obs = make(), make(seed=5), observations(6, 4)
    learner.opt(memory())
    actor.sync_model(model_of(learner))
    learner.eval()
    actor.eval()
    np.testing.assert_array_equal(actor.sample(obs), learner.sample(obs))
    tensors = {path: torch.from_numpy(leaf) for path, leaf in obs.items()}
    np.testing.assert_array_equal(learner.policy()(tensors).detach().numpy(), learner.sample(obs))


def test_an_encoder_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"share_encoder: expected a network, or observations with pictures"):
        make(space=Box(-1, 1, (3,), np.float32))
    with pytest.raises(ConfigError, match="share_encoder: actor and critics can share an encoder only if they see the"):
        make(actor_keys=("front",), critic_keys=("front", "joints"))
    assert make(actor_keys=("wrist", "joints"), critic_keys=("joints", "wrist")).encoder is not None


# Frozen encoders.


@pytest.mark.parametrize(("kind", "shared"), [(SAC, True), (TD3, False)])
def test_the_whole_check_passes(kind: Kind, shared: bool, frozen: Frozen) -> None:
    settings = {**SMALL, "share_encoder": shared, **frozen()}
    check_agent(partial(kind, **settings), Structured(ROBOT, FORCES), steps=60)


def test_frozen_weights_are_neither_sent_nor_saved_nor_optimised(frozen: Frozen) -> None:
    agent = make(**frozen())
    weights = {value.data_ptr() for value in agent._frozen["front"].net.state_dict().values()}
    state = agent.training_state().tensors
    assert len(weights) == 6
    for tensors in (agent.model_info(), state):
        assert not weights & {value.data_ptr() for value in tensors.values()}
    assert [name for name in agent.model_info() if "sha256" in name] == ["0.leaves.0.sha256", "0.leaves.2.sha256"]
    before = copies(agent._frozen["front"].net)
    for _ in range(3):
        agent.opt(memory())
    assert same(before, copies(agent._frozen["front"].net))


def test_actor_critics_and_targets_have_one_frozen_network(frozen: Frozen) -> None:
    agent = make(share_encoder=False, **frozen())
    found = {id(part._frozen) for net in agent.nets.values() for part in net.modules() if hasattr(part, "_frozen")}
    assert found == {id(agent._frozen["front"])}


def test_an_actor_with_other_weights_than_the_learners_refuses_the_model(frozen: Frozen) -> None:
    learner, actor, stranger = make(**frozen()), make(**frozen(), seed=3), make(**frozen(seed=1))
    actor.sync_model(model_of(learner))
    with pytest.raises(CheckpointError, match=r"frozen_encoders\.front: expected the weights with which the model was"):
        stranger.sync_model(model_of(learner))
    with pytest.raises(CheckpointError, match="every host needs the same weights"):
        stranger.load_training_state(learner.training_state())


def test_a_single_camera_may_have_a_frozen_encoder(tmp_path: Path) -> None:
    encoder = {"target": "common.agents.networks:ConvNet", "weights": write_weights(tmp_path / "net")}
    agent = make(space=CAMERA, frozen_encoders={"": encoder})
    assert agent.sample(observations(2, 0)["front"]).shape == (2, 2)


def test_a_users_own_frozen_network_is_not_captured_unless_the_settings_say_so() -> None:
    own = {"wrist": {"target": "tests.common.agents.networks.test_frozen:scaled_pictures"}}
    assert not make(frozen_encoders=own).is_captured
    assert make(frozen_encoders=own, update="captured").is_captured


def test_a_network_and_frozen_encoders_are_refused_together(frozen: Frozen) -> None:
    with pytest.raises(ConfigError, match="give network or frozen_encoders, not both"):
        make(network={"target": "common.agents.networks:NatureCnn"}, **frozen())
