"""BC: behaviour cloning, the actions of the items are imitated and their rewards are not looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from pydantic import Field, PositiveFloat, PositiveInt

from common.agents.actions import ActionScale
from common.agents.networks import Mlp
from common.agents.policies import CategoricalPolicy, GaussianConfig, GaussianPolicy
from common.agents.training import descend, restore, saved, to_tensors
from common.data import Array, Model, Record
from common.errors import ConfigError
from common.interfaces import Agent, EnvSpec, ReplayBuffer


class BCConfig(GaussianConfig):
    """``agent.params`` of ``common.agents.bc:BC``."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="Width of each hidden layer.")
    lr: PositiveFloat = Field(3e-4, description="Learning rate of Adam.")
    batch_size: PositiveInt = Field(256, description="Items in one update.")
    max_grad_norm: PositiveFloat | None = Field(None, description="Gradients are clipped to this norm; null does not.")


class BC(Agent):
    """Maximum likelihood of the actions: cross entropy where they are Discrete, a Gaussian around tanh where Box.

    Args:
        spec: ``gymnasium.spaces.Box`` observations of any shape; ``Discrete`` actions, or ``Box`` ones of any shape
            with finite bounds.
        seed: of the initial weights and of all draws.
        epsilon: not used; in train mode actions are drawn from the policy.
        device: where the network lives.
        params: see ``BCConfig``.

    Raises:
        ConfigError: the spaces are others.
    """

    Config = BCConfig

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        epsilon: float = 0.0,  # noqa: ARG002 - every agent is given one
        device: str = "cpu",
        **params: Any,
    ) -> None:
        observations, actions = spec.observation_space, spec.action_space
        if not isinstance(observations, gymnasium.spaces.Box):
            raise ConfigError(f"BC: expected Box observations, found {observations}")
        self.config = config = BCConfig(**params)
        self.device = torch.device(device)
        torch.manual_seed(seed)
        self.policy: CategoricalPolicy | GaussianPolicy
        self.actions: ActionNumber | ActionScale
        if isinstance(actions, gymnasium.spaces.Discrete):
            self.actions = ActionNumber(actions)
            self.policy = CategoricalPolicy(Mlp(observations.shape, int(actions.n), config.units))
        else:
            self.actions = ActionScale("BC", actions, self.device)
            n_dims = self.actions.size
            self.policy = GaussianPolicy(Mlp(observations.shape, n_dims, config.units), n_dims, config)
        self._nets = {"policy": self.policy.to(self.device)}
        self._optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.lr)
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def sample(self, obs: Array) -> Array:
        with torch.inference_mode():
            given = torch.from_numpy(obs).to(self.device)
            chosen = self.policy.draw(given, self._generator) if self.is_train else self.policy.greedy(given)
            return self.actions.to_env(chosen)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        batch = to_tensors(buffer.batch(self.config.batch_size), self.device)
        loss = -self.policy.log_prob(batch["obs"], self.actions.from_env(batch["action"])).mean()
        descend(loss, self._optimizer, self.config.max_grad_norm)
        return {"loss": loss.detach()}

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.policy.state_dict().items()}

    def sync_model(self, model: Model) -> None:
        self.policy.load_state_dict({name: torch.from_numpy(value) for name, value in model.params.items()})

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return saved(self._nets)

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        restore("BC", self._nets, params)


class ActionNumber:
    """Discrete actions as the network counts them, from 0, and as the environment does."""

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        self._start, self._dtype = int(space.start), space.dtype

    def to_env(self, number: torch.Tensor) -> Array:
        """Actions ``[n]`` as the environment takes them."""
        return (number.cpu().numpy() + self._start).astype(self._dtype)

    def from_env(self, actions: torch.Tensor) -> torch.Tensor:
        """The numbers ``[B]`` int64 of the environment's actions."""
        return actions.long() - self._start
