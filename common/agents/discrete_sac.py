"""Soft actor-critic for discrete actions (arXiv:1910.07207).

The policy is a softmax. SAC estimates expectations over the policy's actions by draws; here they are sums over all
actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from common.agents import agent_settings
from common.agents.configured_agent import OffPolicyAgent, OneNetworkConfig, TransitionConfig
from common.agents.entropy import EntCoefConfig, EntropyCoef, discrete_soft_value, ent_coef_loss
from common.agents.losses.values import critic_loss, td_target
from common.agents.machinery.gradient_step import Batch, descend, discount_of, draw_transitions, measure_td_error, track
from common.agents.machinery.optimizers import build_optimizer
from common.agents.machinery.update import Results, Update
from common.agents.networks.discrete_actions import ActionIndex, AllowedActions, GreedyQ
from common.agents.networks.layers import Observed
from common.agents.networks.picture_networks import RandomShift
from common.agents.networks.policies import CategoricalPolicy
from common.config.replay_config import Unit
from common.data import Array, Leaves
from common.interfaces import EnvSpec, ReplayBuffer
from common.plugins.part_config import PluginConfig
from common.spaces import from_columns


class QNetworks(nn.Module):
    """Independent values of all discrete actions.

    Args:
        nets: the critics, each from observations of B rows to ``[B, A]``.
    """

    def __init__(self, nets: Iterable[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of B rows to values ``[N, B, A]``."""
        return torch.stack([net(obs) for net in self.nets])


class DiscreteSACConfig(EntCoefConfig, OneNetworkConfig, TransitionConfig):
    """``agent.params`` of ``DiscreteSAC``."""

    units: tuple[PositiveInt, ...] = Field(
        (256, 256), description="The width of each hidden layer of actor and critics."
    )
    network: PluginConfig | None = Field(
        None,
        description="Your own networks, one for the actor and one for each critic; each is called with in_shape, "
        "out_dim and params. null: networks with the layers of units.",
    )
    feature_dim: agent_settings.PictureFeatures = 256
    lr: PositiveFloat = Field(3e-4, description="The learning rate of actor, critics and entropy coefficient.")
    batch_size: agent_settings.BatchItems = 64
    n_critics: agent_settings.CriticCount = 2
    critic_loss: agent_settings.LossOfCritics = "mse"
    target_entropy: Unit = Field(
        0.98,
        description="The entropy that the policy keeps, as a share of the entropy of uniformly random actions, of "
        "those that are allowed.",
    )


class DiscreteSAC(OffPolicyAgent):
    """A softmax policy whose entropy is rewarded, n critics of all actions, and their targets.

    It takes ``Discrete`` or ``MultiDiscrete`` actions. Arguments and errors are those of ``ConfiguredAgent``; params:
    see ``DiscreteSACConfig``.
    """

    Config = DiscreteSACConfig
    config: DiscreteSACConfig

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(seed=seed, **given)
        config = self.config
        self.actions = ActionIndex(type(self).__name__, spec.action_space, self.device)
        self.allowed = AllowedActions(spec, self.actions.components).to(self.device)
        observations = self.allowed.leaves
        # 1. The networks. They are built in this order, since each takes from torch's random numbers.
        self._shift = RandomShift(spec.observation_space, config.random_shift, seed, self.device)
        self._shift_generator = self._shift.generator
        actor, *critics = (config.build(observations, self.actions.size) for _ in range(1 + config.n_critics))
        self.actor = CategoricalPolicy(actor, self.allowed).to(self.device)
        self.critics = QNetworks(critics).to(self.device)
        self.critics_tgt = deepcopy(self.critics)
        self.ent_coef = EntropyCoef(config.ent_coef, learned=config.auto_ent_coef).to(self.device)
        self._normalize_batches(observations, rewards=config.normalize_rewards)
        self.nets: dict[str, nn.Module] = {"actor": self.actor, "critics": self.critics}
        self.nets |= {"critics_tgt": self.critics_tgt, "ent_coef": self.ent_coef, "normalizer": self.normalizer}
        self._actor_optimizer, self._critics_optimizer, self._ent_coef_optimizer = (
            build_optimizer(net.parameters(), config.lr, config.optimizer)
            for net in (self.actor, self.critics, self.ent_coef)
        )
        # 2. How it learns and acts; both may run as captured operations.
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self.learn = Update(self._learn_from, self.nets, captured=self._captured)
        greedy = GreedyQ(self.actor, torch.from_numpy(self.actions.table).to(self.device))
        self._policy = nn.Sequential(self.normalizer, greedy)
        self._act_by(
            self._policy,
            self._explore,
            lambda lanes: self._lane_random.of(lanes).standard_exponential(self.actions.size),
        )

    def _explore(self, obs: Observed, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Random actions of the policy, as their numbers ``[n]``, for n observations."""
        return self.actor.sample(self.normalizer(obs), self._generator, noise)

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        found = self._infer(obs, lanes)
        return self.actions.to_env(found) if self.is_train else found

    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        drawn = draw_transitions(type(self).__name__, buffer, self.config.batch_size, self.device)
        batch = self._normalize(self._shift(drawn))
        batch["action"] = self.actions.from_env(batch["action"])  # [B], numbers from here on.
        return (batch,)

    def _learn_from(self, batch: Batch) -> Results:
        results = self._improve_critics(batch) | self._improve_actor(batch)
        track(self.critics_tgt, self.critics, self.config.tau)
        return results

    def _improve_critics(self, batch: Batch) -> Results:
        """Take a gradient step of the critics."""
        config, next_obs = self.config, from_columns("next_obs", batch)
        with torch.no_grad():
            log_prob = self.actor(next_obs).log_softmax(dim=1)  # [B, A]
            value = discrete_soft_value(self.critics_tgt(next_obs), log_prob, self.ent_coef())
            discount = discount_of(batch, config.discount_factor)
            target = td_target(batch["reward"], batch["terminated"], value, discount)  # [B]
        q = self.critics(from_columns("obs", batch))  # [N, B, A]
        taken = q.take_along_dim(batch["action"][None, :, None], dim=2).squeeze(2)  # [N, B]
        loss = critic_loss(config.critic_loss, taken, target.expand_as(taken), batch.get("weight"))
        descend(loss, self._critics_optimizer, config.max_grad_norm)
        results = {"loss_critic": loss.detach(), "q_mean": taken.detach().mean()}
        return results | measure_td_error(batch, taken, target)

    def _improve_actor(self, batch: Batch) -> Results:
        """Take a gradient step of the actor, and one of the entropy coefficient if it is automatic."""
        obs, ent_coef = from_columns("obs", batch), self.ent_coef().detach()
        with torch.no_grad():
            q = self.critics(obs)
        log_prob = self.actor(obs).log_softmax(dim=1)
        loss = -discrete_soft_value(q, log_prob, ent_coef).mean()  # arXiv:1910.07207, 12
        descend(loss, self._actor_optimizer, self.config.max_grad_norm)
        expected = (log_prob.exp() * log_prob).sum(dim=1).detach()  # [B]
        if self.config.auto_ent_coef:
            descend(ent_coef_loss(self.ent_coef.log, expected, self._target_entropy(obs)), self._ent_coef_optimizer)
        return {"loss_actor": loss.detach(), "ent_coef": ent_coef, "entropy": -expected.mean()}

    def _target_entropy(self, obs: Observed) -> float | torch.Tensor:
        """The entropy that the policy keeps, in nats; with a mask ``[B]``, by the number of allowed actions."""
        share = self.config.target_entropy
        if not self.allowed.has_mask:
            return share * math.log(self.actions.size)
        return share * self.allowed.read(obs).sum(dim=1).log()

    def policy(self) -> nn.Module:
        return self._policy
