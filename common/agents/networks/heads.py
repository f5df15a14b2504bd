"""Turns the outputs of a network into the values of actions. Shapes: A actions, K atoms or quantiles of each."""

from __future__ import annotations

import torch
from torch import nn

from common.agents.networks.layers import Observed


def join_dueling(outputs: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Action values from a state value and advantages: ``Q = V + A - mean A`` (arXiv:1511.06581, 9).

    Args:
        outputs: ``1 + A`` outputs along ``dim``: V, then A.
        dim: the axis of the outputs, and of the A action values in the result.
    """
    value, advantage = outputs.tensor_split((1,), dim=dim)
    return value + advantage - advantage.mean(dim=dim, keepdim=True)


class DuelingNetwork(nn.Module):
    """Action values of a network that gives a state value and advantages.

    The two streams part only in the last layer of ``net``: its first output is V, the others are A. In the paper each
    stream has a separate hidden layer; a user's own network can have them.

    Args:
        net: gives ``[B, 1 + A]``.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of B rows to ``[B, A]``."""
        return join_dueling(self.net(obs))


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


class QuantileReturns(ReturnNetwork):
    """The outputs are quantiles of the return at the levels ``(i + 0.5) / K`` (arXiv:1710.10044)."""

    def forward(self, obs: Observed) -> torch.Tensor:
        """Action values, the means of the quantiles: observations of B rows to ``[B, A]``."""
        return self.outputs(obs).mean(dim=2)


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
