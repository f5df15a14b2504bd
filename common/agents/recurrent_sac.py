"""SAC with a memory, which learns from sequences (soft actor-critic: arXiv:1801.01290 and arXiv:1812.05905).

The actor network has a memory, and the critics share another, as arXiv:2110.05038 recommends. Rows hold the state of
the actor's memory, and a sequence begins in this state. The memory of the critics begins with zeros. The first steps of
a sequence only warm both up; ``burn_in`` of the view ``learner.views.sequences:Sequences`` is their number. Rewards are
no input, since an agent does not know them while it acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar, Final

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from common.agents import agent_settings
from common.agents.configured_agent import NetworkConfig, OffPolicyAgent, OffPolicyConfig
from common.agents.entropy import EntCoefConfig, EntropyCoef, ent_coef_loss, soft_value, squashed_gaussian
from common.agents.losses.sequence_losses import masked_loss, masked_mean, n_step_target, sequence_priority
from common.agents.machinery.gradient_step import Batch, descend, draw, name_td_error, track
from common.agents.machinery.optimizers import build_optimizer
from common.agents.machinery.update import Results, Update
from common.agents.networks.box_actions import ActionScale
from common.agents.networks.critics import Critics
from common.agents.networks.encoders import LeafSpaces, build_encoder, select_leaves
from common.agents.networks.layers import Mlp, Observed, add_time
from common.agents.recurrent_agent import LaneMemory, MemoryConfig, RecurrentAgent, RecurrentEncoder, RecurrentNetwork
from common.data import Array, Leaves
from common.interfaces import EnvSpec, ReplayBuffer
from common.spaces import from_columns, to_columns


class RecurrentCritics(nn.Module):
    """Critics over the features of one ``RecurrentEncoder``, which they share.

    Their memory begins each sequence with zeros, because actors have no critics and cannot record its state.

    Args:
        encoder: gives features ``[B, T, W]``.
        n: number of critics.
        action_dim: size of one action, A.
        units: width of each hidden layer above the memory.
    """

    def __init__(self, encoder: RecurrentEncoder, n: int, action_dim: int, units: Sequence[int]) -> None:
        super().__init__()
        self.encoder = encoder
        self.critics = Critics(n, nn.Identity(), encoder.memory.width, action_dim, units)

    def features(self, obs: Observed, action_before: torch.Tensor) -> torch.Tensor:
        """Observations of ``[B, T]`` rows and the actions before them ``[B, T, A]`` to features ``[B, T, W]``."""
        state = action_before.new_zeros(len(action_before), self.encoder.memory.state_dim)
        return self.encoder(obs, action_before, state)[0]  # type: ignore[no-any-return]

    def forward(self, features: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Features ``[B, T, W]`` and actions ``[B, T, A]`` to values ``[N, B, T]``."""
        values = self.critics(features.flatten(0, 1), action.flatten(0, 1))
        return values.unflatten(1, features.shape[:2])  # type: ignore[no-any-return]


LSTD_LIMITS: Final = (-20.0, 2.0)
"""Limits of the logarithm of the policy's standard deviation, those of SAC's authors."""


class RecurrentSACConfig(EntCoefConfig, NetworkConfig, OffPolicyConfig):
    """``agent.params`` of ``RecurrentSAC``."""

    memory: MemoryConfig = Field(
        MemoryConfig(), description="The recurrent memories, LSTM or GRU: the actor has one, and the critics have one."
    )
    units: tuple[PositiveInt, ...] = Field((256, 256), description="The width of each hidden layer above the memories.")
    network: agent_settings.NetworkBelowMemory = None
    feature_dim: agent_settings.EncoderFeatures = 50
    lr: PositiveFloat = Field(3e-4, description="The learning rate of actor, critics and entropy coefficient.")
    batch_size: agent_settings.BatchSequences = 32
    n_steps: agent_settings.TargetSteps = 1
    n_critics: agent_settings.CriticCount = 2
    reward_scale: agent_settings.RewardScale = 1.0
    random_opts: agent_settings.RandomOpts = 1
    max_share: agent_settings.MaxShare = 0.9


class RecurrentSAC(RecurrentAgent, OffPolicyAgent):
    """A squashed Gaussian policy whose entropy is rewarded, and n critics; all of them have a memory.

    It takes ``gymnasium.spaces.Box`` actions of any shape with finite bounds. Arguments and errors are those of
    ``ConfiguredAgent``; params: see ``RecurrentSACConfig``.

    Raises:
        ConfigError: also by ``opt``, if batches do not hold sequences within one episode.
    """

    Config: ClassVar = RecurrentSACConfig
    config: RecurrentSACConfig
    counters: ClassVar = ("_opt_steps",)
    keeps_to_episodes: ClassVar = True

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(seed=seed, **given)
        config = self.config
        self.action_scale = ActionScale(type(self).__name__, spec.action_space, self.device)
        self._size = n_dims = self.action_scale.size
        observations = select_leaves(spec.observation_space)
        head = Mlp((config.memory.width,), 2 * n_dims, config.units)
        self.actor = RecurrentNetwork(self._make_encoder(observations), head).to(self.device)
        encoder = self._make_encoder(observations)
        self.critics = RecurrentCritics(encoder, config.n_critics, n_dims, config.units).to(self.device)
        self.critics_tgt = deepcopy(self.critics)
        self.ent_coef = EntropyCoef(config.ent_coef, learned=config.auto_ent_coef).to(self.device)
        self.target_entropy = -float(n_dims) if config.target_entropy is None else config.target_entropy
        self._normalize_batches(observations)
        self.nets = {"actor": self.actor, "critics": self.critics, "critics_tgt": self.critics_tgt}
        self.nets |= {"ent_coef": self.ent_coef, "normalizer": self.normalizer}
        self._actor_optimizer, self._critics_optimizer, self._ent_coef_optimizer = (
            build_optimizer(net.parameters(), config.lr, config.optimizer)
            for net in (self.actor, self.critics, self.ent_coef)
        )
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self.learn = Update(self._learn_from, self.nets, captured=self._captured)
        self._act_by(  # [n, A + M]
            self._step_greedily, self._step_exploring, lambda lanes: self._lane_random.of(lanes).standard_normal(n_dims)
        )
        self.lane_memory = LaneMemory(config.memory.state_dim + n_dims)

    def _make_encoder(self, observations: LeafSpaces) -> RecurrentEncoder:
        """Make a memory over an encoder of observations."""
        config = self.config
        below, n_features = build_encoder(config.network, observations, config.feature_dim)
        return RecurrentEncoder(below, n_features, self._size, config.memory)

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        found = self._infer({**to_columns("obs", obs), "state": self._recall(lanes)}, lanes)
        unit, memory = torch.from_numpy(found[:, : self._size]), found[:, self._size :]
        if self.is_train and self._opt_steps < self.config.random_opts:
            if lanes is None:
                share = torch.rand(unit.shape, generator=self._generator, device=self.device).cpu()
            else:
                share = torch.from_numpy(self._lane_random.of(lanes).random(self._size)).float()
            unit = 2 * share - 1
        self._remember(memory, unit.numpy(), lanes)
        actions: Array = self.action_scale.to_env(unit.to(self.device)).numpy(force=True)
        return actions

    def _step_greedily(self, given: Batch) -> torch.Tensor:
        """The likeliest actions in ``[-1, 1]`` and the next states of n lanes in one tensor ``[n, A + M]``."""
        outputs, after = self._run_actor(given)
        return torch.cat((outputs[:, : self._size].tanh(), after), dim=1)

    def _step_exploring(self, given: Batch, noise: torch.Tensor | None = None) -> torch.Tensor:
        """As ``_step_greedily``, with random actions of the policy; ``noise`` ``[n, A]`` is standard normal."""
        outputs, after = self._run_actor(given)
        return torch.cat((self._sample_policy(outputs, noise)[0], after), dim=1)

    def _run_actor(self, given: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs of the actor ``[n, 2 A]`` and its next states ``[n, M]``, for one step of n lanes."""
        obs = self.normalizer(add_time(from_columns("obs", given)))
        memory, before = self.config.memory.split(given["state"])
        outputs, after = self.actor(obs, before[:, None], memory)
        return outputs[:, 0], after

    def _sample_policy(
        self, outputs: torch.Tensor, noise: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Random actions ``[N, A]`` of the policy and their log-probabilities ``[N]``."""
        mean, log_std = outputs.chunk(2, dim=1)
        if noise is None:
            noise = torch.randn(mean.shape, generator=self._generator, device=self.device)
        return squashed_gaussian(mean, log_std.clamp(*LSTD_LIMITS), noise)

    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        batch = draw(buffer, self.config.batch_size, self.device)
        self._require_sequences(batch)
        return (self._normalize(batch),)

    def _learn_from(self, batch: Batch) -> Results:
        """One gradient step of the critics, of the actor and of the entropy coefficient, and one of the targets."""
        config, counts, weight = self.config, batch["warm"], batch.get("weight")
        obs, (memory, before) = from_columns("obs", batch), self.config.memory.split(batch["state"])
        taken = self.action_scale.from_env(batch["action"].flatten(0, 1)).view(*counts.shape, -1)  # [B, L, A]
        action_before = torch.cat((before[:, None], taken), dim=1)  # [B, L + 1, A]
        outputs = self.actor(obs, action_before, memory)[0]  # [B, L + 1, 2 A]
        action, log_prob = self._sample_policy(outputs.flatten(0, 1))
        action, log_prob = action.view(action_before.shape), log_prob.view(action_before.shape[:2])  # [B, L + 1, …]
        ent_coef = self.ent_coef().detach()

        with torch.no_grad():
            q_next = self.critics_tgt(self.critics_tgt.features(obs, action_before), action)[:, :, 1:]  # [N, B, L]
            target = self._target(batch, soft_value(q_next, log_prob[:, 1:], ent_coef))  # [B, L]
        q = self.critics(self.critics.features(obs, action_before)[:, :-1], taken)  # [N, B, L]
        error = q - target
        loss_critic = masked_loss(error.square().mean(dim=0), counts, weight)
        descend(loss_critic, self._critics_optimizer, config.max_grad_norm)

        with torch.no_grad():
            features = self.critics.features(obs, action_before)[:, :-1]
        log_prob = log_prob[:, :-1]
        soft = soft_value(self.critics(features, action[:, :-1]), log_prob, ent_coef)  # [B, L]
        loss_actor = -masked_loss(soft, counts)
        descend(loss_actor, self._actor_optimizer, config.max_grad_norm)
        entropy = -masked_loss(log_prob.detach(), counts)
        if config.auto_ent_coef:
            descend(ent_coef_loss(self.ent_coef.log, -entropy, self.target_entropy), self._ent_coef_optimizer)
        track(self.critics_tgt, self.critics, config.tau)

        priority = sequence_priority(error.detach().abs().mean(dim=0), counts, config.max_share)
        results = {"loss_critic": loss_critic.detach(), "q_mean": masked_mean(q.detach().mean(dim=0), counts)}
        results |= {"loss_actor": loss_actor.detach(), "ent_coef": ent_coef, "entropy": entropy}
        return results | name_td_error(batch, priority)

    def _target(self, batch: Batch, next_value: torch.Tensor) -> torch.Tensor:
        """Sums of rewards and the value after them, ``[B, L]``."""
        config = self.config
        reward, terminated, mask = batch["reward"] * config.reward_scale, batch["terminated"], batch["mask"]
        return n_step_target(reward, terminated, mask, next_value, discount=config.discount_factor, n=config.n_steps)
