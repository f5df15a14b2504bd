"""C51: the distribution of the return as probabilities of fixed values (arXiv:1707.06887); Rainbow's agent."""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import nn

from common.agents.dqn import QAgent, QAgentConfig, QLoss, join_dueling
from common.agents.losses.distributions import categorical_loss, project
from common.agents.losses.values import td_target, weighted_mean
from common.agents.machinery.gradient_step import Batch, discount_of
from common.agents.networks.encoders import LeafSpaces
from common.agents.networks.layers import Observed
from common.spaces import from_columns


class ReturnNetwork(nn.Module):
    """A network with K outputs for each action, which describe the distribution of its return.

    Args:
        net: gives ``[B, A * K]``, or dueling ``[B, (1 + A) * K]``, of which the first K are those of the state value.
        n_outputs: K.
        dueling: whether each of the K outputs is joined from a state value and advantages.
    """

    def __init__(self, net: nn.Module, n_outputs: int, *, dueling: bool) -> None:
        super().__init__()
        self.net = net
        self._n_outputs, self._dueling = n_outputs, dueling

    def outputs(self, obs: Observed) -> torch.Tensor:
        """Observations of B rows to ``[B, A, K]``."""
        outputs = self.net(obs).unflatten(1, (-1, self._n_outputs))
        return join_dueling(outputs, dim=1) if self._dueling else outputs


class CategoricalReturns(ReturnNetwork):
    """The outputs are logits of the probabilities of K returns, the atoms (arXiv:1707.06887).

    Args:
        net: see ``ReturnNetwork``.
        least: the first atom.
        greatest: the last atom; the other atoms lie evenly between them.
        n_atoms: K.
        dueling: see ``ReturnNetwork``.
    """

    atoms: torch.Tensor  # [K]

    def __init__(self, net: nn.Module, least: float, greatest: float, n_atoms: int, *, dueling: bool) -> None:
        super().__init__(net, n_atoms, dueling=dueling)
        self.register_buffer("atoms", torch.linspace(least, greatest, n_atoms), persistent=False)

    def forward(self, obs: Observed) -> torch.Tensor:
        """Action values, the means of the distributions: observations of B rows to ``[B, A]``."""
        return (self.outputs(obs).softmax(dim=2) * self.atoms).sum(dim=2)


class C51Config(QAgentConfig):
    """``agent.params`` of ``C51``."""

    n_atoms: int = Field(51, ge=2, description="The number of evenly spaced returns that have a probability each (K).")
    v_min: float = Field(-10.0, description="The least of these returns; lower returns count as this one.")
    v_max: float = Field(
        10.0, description="The greatest of these returns; for rewards of up to 1 and a discount of 0.99, take 100."
    )

    @model_validator(mode="after")
    def _values_in_order(self) -> C51Config:
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min ({self.v_min}) is not below v_max ({self.v_max})")
        return self


class C51(QAgent):
    """Q-learning of the probabilities of returns; it acts by their mean.

    Arguments and errors are those of ``QAgent``; params: see ``C51Config``.
    """

    Config = C51Config
    config: C51Config
    qnet: CategoricalReturns
    qnet_tgt: CategoricalReturns

    def _make_qnet(self, observations: LeafSpaces) -> CategoricalReturns:
        config = self.config
        net = self._make_network(observations, (self.actions.size + config.dueling) * config.n_atoms)
        return CategoricalReturns(net, config.v_min, config.v_max, config.n_atoms, dueling=config.dueling)

    def _loss(self, batch: Batch, target_net: nn.Module) -> QLoss:
        assert isinstance(target_net, CategoricalReturns)
        rows, action = torch.arange(len(batch["reward"]), device=self.device), self.actions.from_env(batch["action"])
        target = self._target(batch, rows, target_net)  # [B, K]
        prediction = self.qnet.outputs(from_columns("obs", batch))[rows, action].log_softmax(dim=1)  # [B, K]
        loss = weighted_mean(categorical_loss(prediction, target), batch.get("weight"))
        means = ((probability * self.qnet.atoms).sum(dim=1) for probability in (prediction.exp(), target))
        return QLoss(loss, *means)

    @torch.no_grad()
    def _target(self, batch: Batch, rows: torch.Tensor, target_net: CategoricalReturns) -> torch.Tensor:
        """Probabilities ``[B, K]`` of the return from the next observation on, projected onto the atoms."""
        action = self._choose_next(batch, target_net)  # [B]
        probability = target_net.outputs(from_columns("next_obs", batch))[rows, action].softmax(dim=1)  # [B, K]
        discount = discount_of(batch, self.config.discount_factor)
        returns = td_target(batch["reward"], batch["terminated"], target_net.atoms[:, None], discount)  # [K, B]
        return project(probability, returns.t(), target_net.atoms)
