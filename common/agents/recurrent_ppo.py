"""PPO with a memory, whose rollouts go through the ends of episodes (arXiv:1707.06347; see ``ppo``).

Policy and baseline share one memory, an LSTM or GRU. Rows hold its state before each step, and a rollout begins in the
state of its first step. Where an episode begins inside a rollout, the memory begins with zeros. Minibatches are made of
whole rollouts, so gradients go back to the beginning of a rollout. The value of an episode's true last observation is
computed from the state after its last step.

In the first gradient step of training in turns, the learner computes the states that the actor had, so every ratio is
1, as without a memory. In later gradient steps only the state at the beginning of a rollout is that of an older policy.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt, model_validator
from torch import nn
from torch.nn import functional

from common.agents import agent_settings
from common.agents.machinery.gradient_step import Batch
from common.agents.machinery.update import Results
from common.agents.networks.discrete_actions import AllowedActions
from common.agents.networks.encoders import LeafSpaces, build_encoder
from common.agents.networks.layers import Mlp, Observed, add_time, flatten_time
from common.agents.networks.policies import PolicyAndBaseline, PolicyBesideBaseline, make_orthogonal
from common.agents.ppo import PPO, PPOConfig
from common.agents.recurrent_agent import LaneMemory, MemoryConfig, RecurrentAgent, RecurrentEncoder
from common.data import Array, Leaves
from common.interfaces import EnvSpec
from common.spaces import from_columns, to_columns


class RecurrentPolicy(nn.Module):
    """A ``RecurrentEncoder``, and a policy and a baseline over its features, through the ends of episodes.

    Args:
        encoder: gives features ``[B, T, W]``.
        head: turns N rows of them, ``[N, W]``, into the policy's outputs ``[N, K]`` and values ``[N]``.
        allowed: which of the K values are.
    """

    def __init__(
        self, encoder: RecurrentEncoder, head: PolicyAndBaseline | PolicyBesideBaseline, allowed: AllowedActions
    ) -> None:
        super().__init__()
        self.encoder, self.head, self._allowed = encoder, head, allowed

    def forward(
        self, obs: Observed, action_before: torch.Tensor, state: torch.Tensor, begins: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs ``[B T, K]``, values ``[B T]`` and the states after each step ``[B, T, S]``.

        Args:
            obs: of ``[B, T]`` rows.
            action_before: the action before each of them, ``[B, T, A]``.
            state: before the first of them, ``[B, S]``.
            begins: which of them begin an episode, ``[B, T]`` bool; there, state and action before count as zeros.
        """
        inputs = self.encoder.join(obs, action_before.masked_fill(begins[..., None], 0.0))
        states = self.encoder.memory.unroll(inputs, state, begins)
        outputs, value = self.head(states[..., : self.encoder.memory.width].flatten(0, 1))
        return self._allowed(outputs, flatten_time(obs)), value, states


class RecurrentPPOConfig(PPOConfig):
    """``agent.params`` of ``RecurrentPPO``."""

    units_above_network: ClassVar = True

    memory: MemoryConfig = Field(
        MemoryConfig(), description="The recurrent memory, an LSTM or GRU, that policy and baseline share."
    )
    units: tuple[PositiveInt, ...] = Field(
        (64,), description="The width of each hidden layer of the policy and of the baseline, above the memory."
    )
    network: agent_settings.NetworkBelowMemory = None
    feature_dim: agent_settings.EncoderFeatures = 50
    share_layers: bool = Field(
        False,
        description="Whether policy and baseline also share the layers of units, and part in the last layer only.",
    )
    minibatches: PositiveInt = Field(
        4, description="The number of gradient steps in an epoch, each from an equal share of the rollouts."
    )

    @model_validator(mode="after")
    def _keys_fit(self) -> RecurrentPPOConfig:
        for key in ("actor_keys", "critic_keys"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key}: remove it: policy and baseline share a memory, which sees all parts")
        return self


class RecurrentPPO(RecurrentAgent, PPO):
    """A policy and a baseline over one memory, learnt in several epochs of minibatches of whole rollouts.

    Arguments, errors and replay are those of ``PPO``; params: see ``RecurrentPPOConfig``.
    """

    Config = RecurrentPPOConfig
    config: RecurrentPPOConfig
    parts: ClassVar = "rollouts"

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self.lane_memory = LaneMemory(self.config.memory.state_dim + self.actions.n_outputs)

    def _build_policy(self, leaves: LeafSpaces) -> nn.Module:
        config, n_outputs = self.config, self.actions.n_outputs
        below, n_features = build_encoder(config.network, leaves, config.feature_dim)
        encoder = RecurrentEncoder(below, n_features, n_outputs, config.memory)
        if config.share_layers:
            both = self._build_head(below, n_outputs + 1, 0.01, 1.0)
            return RecurrentPolicy(encoder, PolicyAndBaseline(both, self.actions), self.allowed)
        policy, baseline = self._build_head(below, n_outputs, 0.01), self._build_head(below, 1, 1.0)
        return RecurrentPolicy(encoder, PolicyBesideBaseline(policy, baseline, self.actions), self.allowed)

    def _build_head(self, below: nn.Module, out_dim: int, *gains: float) -> nn.Module:
        """Make layers from features of the memory to ``[N, out_dim]``; they begin as those of ``PPO``."""
        config = self.config
        head = Mlp((config.memory.width,), out_dim, config.units, activation=config.activation)
        make_orthogonal(head if config.network is not None else nn.ModuleList((below, head)), *gains)
        return head

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Any:
        found = self._infer({**to_columns("obs", obs), "state": self._recall(lanes)}, lanes)
        n_chosen = self.actions.n_dims + 1
        chosen, memory, action = np.split(found, (n_chosen, n_chosen + self.config.memory.state_dim), axis=1)
        self._remember(memory, action, lanes)
        return self._record(chosen)

    def _act(self, given: Any, noise: torch.Tensor | None = None, *, greedily: bool) -> torch.Tensor:
        """As in ``PPO``, for columns ``obs…`` and ``state``; the states after the steps follow, ``[n, D + 1 + S]``."""
        memory, before = self.config.memory.split(given["state"])
        seen = self.normalizer(add_time(from_columns("obs", given)))
        outputs, _, after = self.policy_net(seen, before[:, None], memory, _nowhere(memory))
        chosen = self._choose(outputs, noise, greedily=greedily)
        return torch.cat((chosen, after[:, 0], self.actions.features(chosen[:, :-1])), dim=1)

    def _part(self, column: torch.Tensor) -> torch.Tensor:
        return column

    def _prepare_from(self, batch: Batch) -> Results:
        shape, ends = batch["reward"].shape, batch["terminated"] | batch["truncated"]
        memory, before = self.config.memory.split(batch["state"])
        taken = self.actions.features(self._choice(batch)).view(*shape, -1)  # [B, L, K]
        given = {
            "memory": memory,
            "action_before": torch.cat((before[:, None], taken[:, :-1]), dim=1),
            "begins": functional.pad(ends[:, :-1], (1, 0)),
        }
        return super()._prepare_from({**batch, **given, "taken": taken}) | given

    def _evaluate_batch(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        outputs, value, after = self._run(batch)
        after, taken = after.flatten(0, 1), batch["taken"].flatten(0, 1)[:, None]
        beyond = add_time(flatten_time(from_columns("next_obs", batch)))
        _, next_value, _ = self.policy_net(beyond, taken, after, _nowhere(after))
        return outputs, value, next_value

    def _evaluate(self, steps: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, value, _ = self._run(steps)
        return outputs, value

    def _run(self, rollouts: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The outputs of the policy for rollouts ``[m L, K]``, the values ``[m L]``, and the states ``[m, L, M]``."""
        given = rollouts["action_before"], rollouts["memory"], rollouts["begins"]
        outputs, value, after = self.policy_net(from_columns("obs", rollouts), *given)
        return outputs, value, after


def _nowhere(state: torch.Tensor) -> torch.Tensor:
    """``begins`` of one step after each of the states ``[B, M]``: no episode begins there, ``[B, 1]``."""
    return torch.zeros(len(state), 1, dtype=torch.bool, device=state.device)
