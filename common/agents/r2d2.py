"""R2D2 (Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning, 2019).

DQN with a memory, https://openreview.net/forum?id=r1lyTjAqYX. It learns from sequences that begin in the state which
the actor had there. An older network computed that state, so the first steps of a sequence only warm it up:
``burn_in`` of the view ``learner.views.sequences:Sequences`` is their number. Targets are returns over several steps,
values are rescaled, and a sequence has one priority.

Two things differ from the paper. The reward before an observation is no input of the network, because an agent does
not know it while it acts. And gradients pass through the burn-in, so that warming up is learnt too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import nn
from torch.nn import functional

from common.agents import agent_settings
from common.agents.dqn import DuelingNetwork, QAgent, QAgentConfig, QLoss
from common.agents.losses.sequence_losses import (
    masked_loss,
    masked_mean,
    n_step_target,
    rescale,
    sequence_priority,
    undo_rescaling,
)
from common.agents.machinery.gradient_step import Batch, draw, name_td_error
from common.agents.machinery.update import Results
from common.agents.networks.encoders import LeafSpaces, build_encoder
from common.agents.networks.layers import Mlp, add_time
from common.agents.recurrent_agent import LaneMemory, MemoryConfig, RecurrentAgent, RecurrentEncoder, RecurrentNetwork
from common.data import Array, Leaves
from common.interfaces import EnvSpec, ReplayBuffer
from common.spaces import from_columns, to_columns


class R2D2Config(QAgentConfig):
    """``agent.params`` of ``R2D2``."""

    units_above_network: ClassVar = True

    memory: MemoryConfig = Field(
        MemoryConfig(), description="The recurrent memory, an LSTM or GRU, between the network and the layers of units."
    )
    units: tuple[PositiveInt, ...] = Field((128,), description="The width of each hidden layer above the memory.")
    network: agent_settings.NetworkBelowMemory = None
    feature_dim: agent_settings.EncoderFeatures = 256
    random_shift: Literal[0] = Field(0, description="Must be 0: R2D2 does not shift the pictures of sequences.")
    dueling: agent_settings.Dueling = True
    batch_size: agent_settings.BatchSequences = 32
    n_steps: agent_settings.TargetSteps = 5
    value_rescaling: bool = Field(
        True,
        description="Whether values are learned on the scale of their square roots, for returns of very different "
        "sizes.",
    )
    max_share: agent_settings.MaxShare = 0.9
    critic_loss: agent_settings.LossOfCritics = "smooth_l1"


class R2D2(RecurrentAgent, QAgent):
    """Double Q-learning by a network with an LSTM or GRU, from sequences.

    Arguments and errors are those of ``QAgent``; params: see ``R2D2Config``.

    Raises:
        ConfigError: by ``opt``, if batches do not hold sequences within one episode.
    """

    Config = R2D2Config
    config: R2D2Config
    keeps_to_episodes: ClassVar = True

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self._act_over(self._step)
        self._numbers = torch.arange(1, self.actions.size + 1, device=self.device)
        # The previous action is kept as its number, counted from 1; 0 says that there was none.
        self.lane_memory = LaneMemory(self.config.memory.state_dim + 1)

    def _make_qnet(self, observations: LeafSpaces) -> nn.Module:
        """Make a network from observations, previous actions and states to action values ``[B, T, A]`` and states."""
        config, n_actions = self.config, self.actions.size
        below, n_features = build_encoder(config.network, observations, config.feature_dim)
        encoder = RecurrentEncoder(below, n_features, n_actions, config.memory)
        head = self._add_noise(Mlp((config.memory.width,), n_actions + config.dueling, config.units))
        return RecurrentNetwork(encoder, DuelingNetwork(head) if config.dueling else head)

    def _step(self, given: Batch) -> torch.Tensor:
        """The action values and the next states of n lanes in one tensor ``[n, A + M]``."""
        obs, (state, before) = add_time(from_columns("obs", given)), self.config.memory.split(given["state"])
        obs = self.normalizer(obs)
        values, after = self.qnet(obs, self._one_hot(before), state)
        return torch.cat((self.allowed(values, obs)[:, 0], after), dim=1)

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        found = self._infer({**to_columns("obs", obs), "state": self._recall(lanes)}, lanes)
        values, memory = found[:, : self.actions.size], found[:, self.actions.size :]
        index = self._choose(values, lanes)
        self._remember(memory, index[:, None] + 1, lanes)
        return self.actions.to_env(index)

    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        batch = self._normalize(draw(buffer, self.config.batch_size, self.device))
        self._require_sequences(batch)
        return (batch,)

    def _loss(self, batch: Batch, target_net: nn.Module) -> QLoss:
        """The loss of a batch; predictions and targets are ``[B, L]``, rescaled if the settings say so."""
        obs, (state, before) = from_columns("obs", batch), self.config.memory.split(batch["state"])
        chosen = self.actions.from_env(batch["action"].flatten(0, 1)).view(batch["reward"].shape)  # [B, L]
        action_before = self._one_hot(torch.cat((before, chosen + 1), dim=1))  # [B, L + 1, A]
        values = self.qnet(obs, action_before, state)[0]  # [B, L + 1, A]
        prediction = values[:, :-1].gather(2, chosen[..., None]).squeeze(2)
        with torch.no_grad():
            values_tgt = target_net(obs, action_before, state)[0]
            chooser = values if self.config.double_dqn else values_tgt
            best = self.allowed(chooser, obs)[:, 1:].argmax(dim=2, keepdim=True)
            target = self._target(batch, values_tgt[:, 1:].gather(2, best).squeeze(2))
        kind = functional.smooth_l1_loss if self.config.critic_loss == "smooth_l1" else functional.mse_loss
        losses = kind(prediction, target, reduction="none")
        return QLoss(masked_loss(losses, batch["warm"], batch.get("weight")), prediction, target)

    def _target(self, batch: Batch, next_value: torch.Tensor) -> torch.Tensor:
        """``h(r + … + g^k h^-1(V))`` for the values V of the next observations, both ``[B, L]``."""
        config = self.config
        target = n_step_target(
            batch["reward"],
            batch["terminated"],
            batch["mask"],
            self._in_rewards(next_value),
            discount=config.discount_factor,
            n=config.n_steps,
        )
        return rescale(target) if config.value_rescaling else target

    def _in_rewards(self, value: torch.Tensor) -> torch.Tensor:
        """Outputs of the network as sums of rewards."""
        return undo_rescaling(value) if self.config.value_rescaling else value

    def _compare(self, batch: Batch, prediction: torch.Tensor, target: torch.Tensor) -> Results:
        counts = batch["warm"]
        means = (masked_mean(self._in_rewards(values), counts) for values in (prediction, target))
        priority = sequence_priority(target - prediction, counts, self.config.max_share)
        return dict(zip(("pred_mean", "tgt_mean"), means, strict=True)) | name_td_error(batch, priority)

    def _one_hot(self, number: torch.Tensor) -> torch.Tensor:
        """Numbers of actions from 1 on ``[B, T]`` as ``[B, T, A]``; all zeros for 0."""
        return (number[..., None] == self._numbers).float()
