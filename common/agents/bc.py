"""BC: behaviour cloning. The policy imitates the actions of the data; rewards do not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from pydantic import Field, PositiveInt
from torch import nn

from common.agents import agent_settings
from common.agents.configured_agent import AgentConfig, ConfiguredAgent
from common.agents.losses.values import weighted_mean
from common.agents.machinery.gradient_step import Batch, descend, draw_transitions
from common.agents.machinery.optimizers import build_optimizer
from common.agents.machinery.update import Results, Update
from common.agents.networks.box_actions import ActionScale, GreedyActor
from common.agents.networks.discrete_actions import ActionIndex, AllowedActions, GreedyQ
from common.agents.networks.encoders import build_mlp
from common.agents.networks.layers import Observed
from common.agents.networks.policies import CategoricalPolicy, GaussianConfig, GaussianPolicy
from common.data import Array, Leaves, Record
from common.interfaces import EnvSpec, ReplayBuffer
from common.spaces import from_columns

Mapped = Callable[[torch.Tensor], torch.Tensor]


class BCConfig(AgentConfig, GaussianConfig):
    """``agent.params`` of ``BC``."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="The width of each hidden layer.")
    feature_dim: agent_settings.PictureFeatures = 50
    lr: agent_settings.LearningRate = 3e-4
    batch_size: agent_settings.BatchItems = 256
    max_grad_norm: agent_settings.GradNormLimit = None


class BC(ConfiguredAgent):
    """Maximises the likelihood of the data's actions: by cross entropy if they are discrete, else by a Gaussian.

    It takes ``Discrete`` or ``MultiDiscrete`` actions, or ``Box`` ones of any shape with finite bounds. Arguments and
    errors are those of ``ConfiguredAgent``; params: see ``BCConfig``.
    """

    Config = BCConfig
    config: BCConfig

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(seed=seed, **given)
        config = self.config
        actions = spec.action_space
        # The network, the greedy policy, the maps from the environment's actions to the network's and back, and the
        # noise of the policy for some lanes.
        self.imitator: CategoricalPolicy | GaussianPolicy
        self._draw_noise: Callable[[Array], Array]
        if isinstance(actions, gymnasium.spaces.Box):
            observations = AllowedActions(spec).leaves
            scale = ActionScale(type(self).__name__, actions, self.device)
            mean = build_mlp(observations, scale.size, config.units, config.feature_dim)
            self.imitator = GaussianPolicy(mean, scale.size, config).to(self.device)
            self._greedy: nn.Module = GreedyActor(self.imitator, scale)
            self._from_env: Mapped = scale.from_env
            self._to_env: Mapped = scale.to_env
            self._draw_noise = lambda lanes: self._lane_random.of(lanes).standard_normal(scale.size)
        else:
            index = ActionIndex(type(self).__name__, actions, self.device)
            allowed = AllowedActions(spec, index.components)
            observations = allowed.leaves
            table = torch.from_numpy(index.table).to(self.device)
            logits = build_mlp(observations, index.size, config.units, config.feature_dim)
            self.imitator = CategoricalPolicy(logits, allowed).to(self.device)
            self._greedy = GreedyQ(self.imitator, table)
            self._from_env, self._to_env = index.from_env, table.__getitem__
            self._draw_noise = lambda lanes: self._lane_random.of(lanes).standard_exponential(index.size)
        self._normalize_batches(observations)
        self.nets = {"policy": self.imitator, "normalizer": self.normalizer}
        self._optimizer = build_optimizer(self.imitator.parameters(), config.lr, config.optimizer)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._learn = Update(self._learn_from, self.nets, captured=self._captured)
        self._policy = nn.Sequential(self.normalizer, self._greedy)
        self._act_by(self._policy, self._explore, self._draw_noise)

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        return self._infer(obs, lanes)

    def _explore(self, obs: Observed, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Random actions of the policy, as the environment takes them, for n observations."""
        return self._to_env(self.imitator.sample(self.normalizer(obs), self._generator, noise))

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        batch = draw_transitions(type(self).__name__, buffer, self.config.batch_size, self.device)
        return {**self._learn(self._normalize(batch))}

    def _learn_from(self, batch: Batch) -> Results:
        log_prob = self.imitator.log_prob(from_columns("obs", batch), self._from_env(batch["action"]))
        loss = weighted_mean(-log_prob, batch.get("weight"))
        descend(loss, self._optimizer, self.config.max_grad_norm)
        return {"loss": loss.detach()}

    def policy(self) -> nn.Module:
        return self._policy
