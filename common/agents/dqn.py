"""DQN (Mnih et al. 2015), optionally double (arXiv:1509.06461), dueling (arXiv:1511.06581), noisy or Munchausen.

A network learns the expected return of each action: ``Q(s, a) = reward + discount * V(s')``. The value of the next
observation comes from a target network, an older copy of the network, so that targets do not move with every update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import nn

from common.agents.losses.munchausen import munchausen_bonus, soft_value
from common.agents.losses.values import critic_loss, double_q_value, greedy_value, td_target
from common.agents.network_agent import Batch, Results, Update, count_at_once, discount_of, split_batches
from common.agents.networks.encoders import LeafSpaces
from common.agents.networks.heads import DuelingNetwork
from common.agents.q_agent import QAgent, QAgentConfig, QLoss
from common.agents.shared_settings import LossOfCritics
from common.config.replay_config import Unit
from common.interfaces import EnvSpec, ReplayBuffer
from common.settings import Settings
from common.spaces import from_columns

TARGET: Final = "target"
"""The column of a batch for its targets ``[B]``, if they are known before the update."""
NEXT_VALUES: Final = "next_values"
"""The column of a batch for the target network's values ``[B, A]`` of the next observations, if they are known."""


class Munchausen(Settings):
    """Rewards with the log-probability of the action, and targets with the policy's entropy (arXiv:2007.14430)."""

    alpha: Unit = Field(
        0.9, description="The share of the log-probability of the action that is added to the reward; 0: soft DQN."
    )
    temperature: PositiveFloat = Field(
        0.03, description="The temperature of the policy, which is the softmax of action values."
    )
    least: Annotated[float, Field(lt=0)] = Field(
        -1.0, description="The lowest value of the log-probability times the temperature; lower ones are clipped to it."
    )

    def bonus(self, q: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """The term added to rewards, for the target network's values ``[B, A]`` and actions ``[B]``: ``[B]``."""
        return munchausen_bonus(q, action, alpha=self.alpha, temperature=self.temperature, least=self.least)


class MunchausenConfig(QAgentConfig):
    """The settings that DQN and IQN share."""

    munchausen: Munchausen | None = Field(
        None,
        description="Targets of Munchausen DQN, in which double_dqn has no effect; {} takes the paper's values. null: "
        "plain targets.",
    )

    @model_validator(mode="after")
    def _one_target(self) -> MunchausenConfig:
        if self.munchausen is not None and self.double_dqn and "double_dqn" in self.model_fields_set:
            raise ValueError("give munchausen or double_dqn, not both: Munchausen's target chooses no next action")
        return self


class DQNConfig(MunchausenConfig):
    """``agent.params`` of ``common.agents.dqn:DQN``."""

    critic_loss: LossOfCritics = "smooth_l1"


class DQN(QAgent):
    """Q-learning with a network of one value an action.

    Arguments and errors are those of ``QAgent``; params: see ``DQNConfig``.
    """

    Config = DQNConfig
    config: DQNConfig

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(spec, seed=seed, **given)
        config = self.config
        self._evaluate_target = Update(self._see_target, {}, captured=self.captures(config))
        self._n_at_once = 1 if config.noisy else count_at_once(spec, config.batch_size, config.n_updates_per_opt)

    def _make_qnet(self, observations: LeafSpaces) -> nn.Module:
        if self.config.dueling:
            return DuelingNetwork(self._make_network(observations, 1 + self.actions.size))
        return self._make_network(observations, self.actions.size)

    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        """Draw several batches at once; the target network, fixed during an opt step, sees all of them in one pass.

        Larger products take half the time for each row. A noisy target network has other noise in each update.
        """
        n = self._n_at_once if buffer.is_uniform else 1
        if n == 1:
            return super()._draw_batches(buffer)
        drawn = self._draw(buffer, n)
        return split_batches({**drawn, **self._evaluate_target(drawn)}, n)

    @torch.no_grad()
    def _see_target(self, batch: Batch) -> Results:
        """The targets ``[B]``; in double DQN, only the target network's values of the next observations ``[B, A]``."""
        if self.config.double_dqn and self.config.munchausen is None:
            return {NEXT_VALUES: self.qnet_tgt(from_columns("next_obs", batch))}
        return {TARGET: self._target(batch, self.actions.from_env(batch["action"]), self.qnet_tgt)}

    def _loss(self, batch: Batch, target_net: nn.Module) -> QLoss:
        action = self.actions.from_env(batch["action"])
        target = batch[TARGET] if TARGET in batch else self._target(batch, action, target_net)
        prediction = self.qnet(from_columns("obs", batch)).gather(1, action[:, None]).squeeze(1)  # [B]
        loss = critic_loss(self.config.critic_loss, prediction, target, batch.get("weight"))
        return QLoss(loss, prediction, target)

    @torch.no_grad()
    def _target(self, batch: Batch, action: torch.Tensor, target_net: nn.Module) -> torch.Tensor:
        """``reward + discount * V(next_obs)``, ``[B]``."""
        next_obs, reward = from_columns("next_obs", batch), batch["reward"]
        q_next = self.allowed(batch[NEXT_VALUES] if NEXT_VALUES in batch else target_net(next_obs), next_obs)  # [B, A]
        if self.config.munchausen is not None:
            obs = from_columns("obs", batch)
            reward = reward + self.config.munchausen.bonus(self.allowed(target_net(obs), obs), action)
            value = soft_value(q_next, q_next, self.config.munchausen.temperature)
        elif self.config.double_dqn:
            value = double_q_value(self.allowed(self.qnet(next_obs), next_obs), q_next)
        else:
            value = greedy_value(q_next)
        return td_target(reward, batch["terminated"], value, discount_of(batch, self.config.discount_factor))
