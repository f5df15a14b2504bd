"""The part that agents with a continuous policy and n critics share: SAC, TD3, AWAC and IQL.

The critics learn the value of an action by Q-learning, the actor learns to take actions that they value highly, and
target networks follow both slowly.
"""

from __future__ import annotations

import abc
from copy import deepcopy
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents.actions import ActionScale
from common.agents.losses.values import CriticLoss
from common.agents.network_agent import (
    Batch,
    Inference,
    NetworkAgent,
    NormalizeBatch,
    Results,
    Update,
    build_optimizer,
    draw,
    report_td_error,
)
from common.agents.networks.blocks import LayersConfig
from common.agents.networks.critics import Critics
from common.agents.networks.encoders import LeafSpaces, build_encoder, select_leaves
from common.agents.networks.layers import Observed
from common.agents.networks.normalization import build_normalizer
from common.agents.networks.pictures import RandomShift
from common.agents.networks.policies import GreedyActor
from common.agents.shared_settings import NetworkConfig, NormalizeObservations, NormalizeRewards, ShiftPixels
from common.config.replay_config import Unit
from common.data import Array, Leaves, Record
from common.interfaces import EnvSpec, ReplayBuffer
from common.plugins.part_config import PluginConfig


class ActorCriticConfig(LayersConfig, NetworkConfig):
    """The settings that these agents share."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="Width of each hidden layer, actor and critics.")
    critic_units: tuple[PositiveInt, ...] | None = Field(
        None, description="Width of each hidden layer of the critics; null: that of units."
    )
    network: PluginConfig | None = Field(
        None,
        description="A network below those layers, called with in_shape, out_dim=feature_dim and params, one for the "
        "actor and one for all critics; null flattens observations, and encodes each part of Dict and Tuple ones.",
    )
    feature_dim: PositiveInt = Field(
        50, description="Outputs of the network, where there is one; features of each picture in Dict and Tuple ones."
    )
    actor_keys: tuple[str, ...] | None = Field(
        None, description="Parts of a Dict or Tuple observation that the policy sees, by path; null: all."
    )
    critic_keys: tuple[str, ...] | None = Field(
        None,
        description="Parts that the critics see, such as a simulator's state that no robot can measure; null: all.",
    )
    random_shift: ShiftPixels = 0
    normalize_observations: NormalizeObservations = False
    normalize_rewards: NormalizeRewards = False
    lr: PositiveFloat = Field(3e-4, description="Learning rate, actor and critics.")
    batch_size: PositiveInt = Field(256, description="Items in one update.")
    n_updates_per_opt: PositiveInt = Field(1, description="Updates in one opt step, each with a batch of its own.")
    discount_factor: Unit = Field(0.99, description="Gamma, the discount of later rewards.")
    n_critics: PositiveInt = Field(2, description="Critics; the least of their targets counts.")
    critic_loss: CriticLoss = Field("mse", description="smooth_l1 (Huber) or mse.")
    tau: Annotated[float, Field(gt=0, le=1)] = Field(
        0.005, description="Share of the online networks moved into the targets at an update of them; 1 copies."
    )
    reward_scale: PositiveFloat = Field(1.0, description="Rewards are multiplied by this before they are learned from.")
    max_grad_norm: PositiveFloat | None = Field(None, description="Gradients are clipped to this norm; null does not.")

    @property
    def units_of_critics(self) -> tuple[int, ...]:
        """Width of each hidden layer of the critics."""
        return self.units if self.critic_units is None else self.critic_units

    @model_validator(mode="after")
    def _layers_fit(self) -> ActorCriticConfig:
        for key, units in (("units", self.units), ("critic_units", self.units_of_critics)):
            if self.architecture == "simba" and len(set(units)) != 1:
                raise ValueError(f"{key}: the blocks of simba are all of one width, such as [256, 256]; found {units}")
        if self.normalization == "batch" and self.batch_size == 1:
            raise ValueError("normalization: batch needs a batch_size of at least 2: one item has no spread")
        return self


class ActorCritic(NetworkAgent):
    """An actor, n critics and their targets; the subclass explores and says how critics and actor learn.

    The actor's actions are in ``[-1, 1]``; they are rescaled to the bounds of the action space for the environment.

    Args:
        spec: observations of any space, see ``common.agents.networks.encoders``; ``gymnasium.spaces.Box`` actions of
            any shape with finite bounds.
        seed: of the initial weights and of all noise.
        epsilon: not used; the policy explores by itself, each actor with a seed of its own.
        device: where the networks live.
        params: see the subclass's ``Config``.

    Raises:
        ConfigError: the action space is no Box of floats with finite bounds, a leaf of the observation space cannot be
            stored, or it has no leaf of a path in ``actor_keys`` or ``critic_keys``.
        PluginError: the user's own network cannot be built or gives something else than its features.
    """

    Config: ClassVar[type[ActorCriticConfig]]
    config: ActorCriticConfig

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        epsilon: float = 0.0,  # noqa: ARG002 - every agent is given one
        device: str = "cpu",
        **params: Any,
    ) -> None:
        self.config = config = self.Config(**params)
        self.device = torch.device(device)
        self.action_scale = ActionScale(type(self).__name__, spec.action_space, self.device)
        n_dims = self.action_scale.size
        observations = spec.observation_space
        self._actor_leaves = select_leaves(observations, config.actor_keys, "agent.params.actor_keys")
        self._critic_leaves = select_leaves(observations, config.critic_keys, "agent.params.critic_keys")
        self._shift = RandomShift(observations, config.random_shift, seed, self.device)
        self._shift_generator = self._shift.generator
        torch.manual_seed(seed)
        self.actor = self._make_actor(n_dims).to(self.device).eval()  # Updates switch to train mode.
        self.critics = self._make_critics(n_dims).to(self.device).eval()
        self.critics_tgt = deepcopy(self.critics)
        self.normalizer = build_normalizer(
            select_leaves(observations), enabled=config.normalize_observations, rewards=config.normalize_rewards
        ).to(self.device)
        self._policy = nn.Sequential(self.normalizer, GreedyActor(self.actor, self.action_scale))
        self.nets = {"actor": self.actor, "critics": self.critics, "critics_tgt": self.critics_tgt}
        self.nets["normalizer"] = self.normalizer
        self._actor_optimizer = build_optimizer(self.actor.parameters(), config.lr, config.optimizer)
        self._critics_optimizer = build_optimizer(self.critics.parameters(), config.lr, config.optimizer)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        captured = self.captures(config)
        self._update_critics = Update(self._improve_critics, self.nets, captured=captured)
        self._update_actor = Update(self._improve_actor, self.nets, captured=captured)
        self._normalize = NormalizeBatch(self.normalizer, captured=captured)
        self._act_greedily = Inference(self._policy, self.device, captured=captured)
        self._act_exploring = Inference(
            lambda obs: self.action_scale.to_env(self._explore(self.normalizer(obs))), self.device, captured=captured
        )

    @abc.abstractmethod
    def _make_actor(self, n_dims: int) -> nn.Module:
        """Make the actor, for actions of ``n_dims`` dimensions."""

    def _make_network(self, leaves: LeafSpaces, outputs: int) -> nn.Sequential:
        """Make a network from the leaves of B observations to ``[B, outputs]``, as the settings ask for it."""
        config = self.config
        encoder, n_features = build_encoder(config.network, leaves, config.feature_dim)
        return nn.Sequential(encoder, config.build(n_features, outputs, config.units))

    def _make_critics(self, n_dims: int) -> Critics:
        """Make the critics, for actions of ``n_dims`` dimensions."""
        config = self.config
        encoder, n_features = build_encoder(config.network, self._critic_leaves, config.feature_dim)
        return Critics(config.n_critics, encoder, n_features, n_dims, config.units_of_critics, layers=config)

    @abc.abstractmethod
    def _explore(self, obs: Observed) -> torch.Tensor:
        """Actions ``[n, A]`` in ``[-1, 1]`` that explore, for n observations, normalised if the agent does so."""

    @abc.abstractmethod
    def _improve_critics(self, batch: Batch) -> Results:
        """Take a gradient step of the critics."""

    @abc.abstractmethod
    def _improve_actor(self, batch: Batch) -> Results:
        """Take a gradient step of the actor."""

    def _is_actors_turn(self) -> bool:
        """Whether the actor learns after this update of the critics; asked once after each."""
        return True

    def sample(self, obs: Leaves) -> Array:
        return self._act_exploring(obs) if self.is_train else self._act_greedily(obs)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        record: Record = {}
        for _ in range(self.config.n_updates_per_opt):
            batch = self._normalize(self._shift(draw(buffer, self.config.batch_size, self.device)))
            batch["action"] = self.action_scale.from_env(batch["action"])  # [B, A], in [-1, 1] from here on.
            results = self._update_critics(batch)
            report_td_error(buffer, batch, results)
            record |= results
            if self._is_actors_turn():
                record |= self._update_actor(batch)
        return record

    def _noise(self, like: torch.Tensor) -> torch.Tensor:
        """Standard normal noise of the shape of ``like``, from this agent's own generator."""
        return torch.randn(like.shape, generator=self._generator, device=self.device)

    def policy(self) -> nn.Module:
        return self._policy
