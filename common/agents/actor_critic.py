"""The part that agents with a continuous policy and n critics share: SAC, TD3, AWAC and IQL.

The critics learn the value of an action by Q-learning, the actor learns to take actions that they value highly, and
target networks follow both slowly.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar, Final

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents import agent_settings
from common.agents.configured_agent import NetworkConfig, OffPolicyAgent, TransitionConfig
from common.agents.machinery.gradient_step import Batch, count_at_once, draw_transitions, split_batches
from common.agents.machinery.optimizers import build_optimizer
from common.agents.machinery.update import Results, Update
from common.agents.networks.blocks import LayersConfig, keep_unit
from common.agents.networks.box_actions import ActionScale, GreedyActor
from common.agents.networks.critics import Critics
from common.agents.networks.encoders import LeafSpaces, build_encoder, is_own_network, select_leaves
from common.agents.networks.frozen import FrozenEncoderConfig, load_frozen_networks
from common.agents.networks.layers import Observed
from common.agents.networks.picture_networks import RandomShift
from common.data import Array, Leaves
from common.interfaces import EnvSpec, ReplayBuffer
from common.plugins.part_config import PluginConfig

FEATURES: Final = "shared features"
"""A result of the critics' update: the features ``[B, F]`` from which the actor learns if both share an encoder."""


class ActorCriticConfig(LayersConfig, NetworkConfig, TransitionConfig):
    """The settings that these agents share."""

    units: tuple[PositiveInt, ...] = Field(
        (256, 256), description="The width of each hidden layer of actor and critics."
    )
    critic_units: tuple[PositiveInt, ...] | None = Field(
        None, description="The width of each hidden layer of the critics; null: as in units."
    )
    network: PluginConfig | None = Field(
        None,
        description="Your own network for observations, below the layers of units, one for the actor and one for all "
        "critics; it is called with in_shape, out_dim=feature_dim and params. null: a picture has convolutions, other "
        "observations are flattened; in a Dict or Tuple, each part is encoded.",
    )
    feature_dim: agent_settings.EncoderFeatures = 50
    frozen_encoders: dict[str, FrozenEncoderConfig] = Field(
        {},
        description="Pretrained networks for pictures, by the path of the observation's part. They are not trained, "
        "and not sent to actors.",
    )
    actor_keys: agent_settings.ActorKeys = None
    critic_keys: agent_settings.CriticKeys = None
    max_return: PositiveFloat | None = Field(
        None,
        description="With normalize_rewards, the greatest size of a discounted return so far: rewards are divided by "
        "more than its standard deviation where a return would be larger. Use it as v_max of categorical critics, and "
        "minus it as v_min. null: no limit.",
    )
    lr: PositiveFloat = Field(3e-4, description="The learning rate of actor and critics.")
    batch_size: agent_settings.BatchItems = 256
    n_critics: agent_settings.CriticCount = 2
    critic_loss: agent_settings.LossOfCritics = "mse"
    reward_scale: agent_settings.RewardScale = 1.0

    @property
    def units_of_critics(self) -> tuple[int, ...]:
        """Width of each hidden layer of the critics."""
        return self.units if self.critic_units is None else self.critic_units

    def has_own_network(self) -> bool:
        return super().has_own_network() or any(map(is_own_network, self.frozen_encoders.values()))

    @model_validator(mode="after")
    def _networks_fit(self) -> ActorCriticConfig:
        if self.network is not None and self.frozen_encoders:
            raise ValueError("give network or frozen_encoders, not both: a network encodes all observations itself")
        for key, units in (("units", self.units), ("critic_units", self.units_of_critics)):
            if self.architecture != "mlp" and len(set(units)) != 1:
                raise ValueError(
                    f"{key}: the blocks of {self.architecture} are all of one width, such as [256, 256]; found {units}"
                )
        if self.has_batch_norms and self.batch_size == 1:
            raise ValueError("batch normalization needs a batch_size of at least 2: one item has no spread")
        if self.max_return is not None and not self.normalize_rewards:
            raise ValueError("max_return is a limit of normalised rewards; set normalize_rewards: true too")
        return self


class ActorCritic(OffPolicyAgent):
    """An actor, n critics and their targets; the subclass defines exploration, and the updates of critics and actor.

    The actor's actions are in ``[-1, 1]``; they are rescaled to the bounds of the action space for the environment.

    It takes ``gymnasium.spaces.Box`` actions of any shape with finite bounds. Arguments and errors are those of
    ``ConfiguredAgent``.

    Raises:
        ConfigError: also if the space lacks a leaf that a setting names, or pretrained weights cannot be read.
    """

    Config: ClassVar[type[ActorCriticConfig]]
    config: ActorCriticConfig

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(seed=seed, **given)
        config = self.config
        self.action_scale = ActionScale(type(self).__name__, spec.action_space, self.device)
        n_dims = self.action_scale.size
        observations = spec.observation_space
        self._actor_leaves = select_leaves(observations, config.actor_keys, "agent.params.actor_keys")
        self._critic_leaves = select_leaves(observations, config.critic_keys, "agent.params.critic_keys")
        self._shift = RandomShift(observations, config.random_shift, seed, self.device)
        self._shift_generator = self._shift.generator
        self._frozen = load_frozen_networks(config.frozen_encoders, select_leaves(observations), config.feature_dim)
        self.encoder: nn.Module | None = None
        if self._shares_encoder():
            self.encoder, self._n_features = self._make_encoder(self._critic_leaves)
            self.encoder.to(self.device).eval()
        self.actor = self._make_actor(n_dims).to(self.device).eval()  # Updates switch to train mode.
        self.critics = self._make_critics(n_dims).to(self.device).eval()
        self.critics_tgt = deepcopy(self.critics)
        leaves, max_return = select_leaves(observations), config.max_return
        self._normalize_batches(leaves, rewards=config.normalize_rewards, max_return=max_return)
        acting = self.actor if self.encoder is None else nn.Sequential(self.encoder, self.actor)
        self._policy = nn.Sequential(self.normalizer, GreedyActor(acting, self.action_scale))
        self.nets = {"actor": acting, "critics": self.critics, "critics_tgt": self.critics_tgt}
        self.nets["normalizer"] = self.normalizer
        self._actor_optimizer = self._optimize(self.actor)
        self._critics_optimizer = self._optimize(self.critics, *(() if self.encoder is None else (self.encoder,)))
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._n_at_once = count_at_once(spec, config.batch_size, config.n_updates_per_opt)
        self.learn = Update(self._improve_critics, self.nets, captured=self._captured)
        self._update_actor = Update(self._improve_actor, self.nets, captured=self._captured)
        self._act_by(
            self._policy,
            lambda obs, *noise: self.action_scale.to_env(self._explore(self._encode(self.normalizer(obs)), *noise)),
            self._draw_noise,
        )

    def _optimize(self, *nets: nn.Module) -> torch.optim.Optimizer:
        """Make the optimiser of all parameters of these networks."""
        config = self.config
        parameters = [parameter for net in nets for parameter in net.parameters()]
        optimizer = build_optimizer(parameters, config.lr, config.optimizer)
        if config.unit_weights:
            keep_unit(optimizer, nets)
        return optimizer

    def _shares_encoder(self) -> bool:
        """Whether the actor and the critics have one encoder, which the critics train; networks then take features."""
        return False

    @abc.abstractmethod
    def _make_actor(self, n_dims: int) -> nn.Module:
        """Make the actor, for actions of ``n_dims`` dimensions."""

    def _make_encoder(self, leaves: LeafSpaces) -> tuple[nn.Module, int]:
        """Make the part of a network below its hidden layers, to ``[B, F]``; return it with F."""
        if self.encoder is not None:
            return nn.Flatten(), self._n_features
        return build_encoder(self.config.network, leaves, self.config.feature_dim, self._frozen)

    def _make_network(self, leaves: LeafSpaces, outputs: int) -> nn.Module:
        """Make a network from the leaves of B observations to ``[B, outputs]``, as the settings ask for it."""
        config = self.config
        encoder, n_features = self._make_encoder(leaves)
        return nn.Sequential(encoder, config.build(n_features, outputs, config.units))

    def _make_critics(self, n_dims: int) -> Critics:
        """Make the critics, for actions of ``n_dims`` dimensions."""
        config = self.config
        encoder, n_features = self._make_encoder(self._critic_leaves)
        return Critics(config.n_critics, encoder, n_features, n_dims, config.units_of_critics, layers=config)

    @abc.abstractmethod
    def _explore(self, obs: Observed, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Exploring actions ``[n, A]`` in ``[-1, 1]``, for n observations that ``normalizer`` has normalised.

        ``noise`` is that of ``_draw_noise``; None: this function draws the noise of all lanes.
        """

    def _draw_noise(self, lanes: Array) -> Array:
        """Draw the noise of ``_explore`` for these lanes, ``[n]``: by default standard normal, ``[n, A]`` float32."""
        return self._lane_random.of(lanes).standard_normal(self.action_scale.size)

    @abc.abstractmethod
    def _improve_critics(self, batch: Batch) -> Results:
        """Take a gradient step of the critics."""

    @abc.abstractmethod
    def _improve_actor(self, batch: Batch) -> Results:
        """Take a gradient step of the actor."""

    def _is_actors_turn(self) -> bool:
        """Whether the actor learns after this update of the critics; asked once after each."""
        return True

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        return self._infer(obs, lanes)

    def _finish_update(self, batch: Batch, results: Results) -> Results:
        """The actor's part of an update, if it is its turn."""
        if FEATURES in results:
            batch = {**batch, FEATURES: results.pop(FEATURES)}
        return results | self._update_actor(batch) if self._is_actors_turn() else results

    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        """Draw several batches at once from a uniform buffer; actions are in [-1, 1]."""
        n = self._n_at_once if buffer.is_uniform else 1
        drawn = draw_transitions(type(self).__name__, buffer, n * self.config.batch_size, self.device)
        batches = self._normalize(self._shift(drawn))
        for name in {"action", "next_action"} & batches.keys():
            batches[name] = self.action_scale.from_env(batches[name])  # [n * B, A]
        return split_batches(batches, n)

    def _encode(self, obs: Observed) -> Observed:
        """The inputs of actor and critics: the observations of B rows, or the shared encoder's features ``[B, F]``."""
        return obs if self.encoder is None else self.encoder(obs)

    def _noise(self, like: torch.Tensor) -> torch.Tensor:
        """Standard normal noise of the shape of ``like``, from this agent's own generator."""
        return torch.randn(like.shape, generator=self._generator, device=self.device)

    def policy(self) -> nn.Module:
        return self._policy
