"""The networks and the update of CleanRL's ``dqn.py`` and ``dqn_atari.py`` (MIT licence), in torch alone.

``compiled``: the loss by torch's compiler, as LeanRL does it, and Adam in one kernel, which is as fast as Adam by the
compiler. It needs a C++ compiler.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

Learn = Callable[..., None]
"""Learns from ``obs``, ``action`` [B, 1], ``reward`` [B], ``next_obs`` and ``done`` [B]."""


class Scale(nn.Module):
    """Bytes of pictures as numbers from 0 to 1."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures / 255.0


def make_network(shape: Sequence[int], n_actions: int) -> nn.Sequential:
    """Two layers of 256 for a vector, Nature's CNN for pictures [4, 84, 84]."""
    if len(shape) == 1:
        hidden = (nn.Linear(shape[0], 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        return nn.Sequential(*hidden, nn.Linear(256, n_actions))
    convolutions = (nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1))
    dense = (nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, n_actions))
    return nn.Sequential(Scale(), *convolutions, *dense)


def make_learn(net: nn.Module, *, compiled: bool = False) -> Learn:
    """The update of a network by Adam."""
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=2.5e-4, fused=compiled or None)

    def compute_loss(
        obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, next_obs: torch.Tensor, done: torch.Tensor
    ) -> torch.Tensor:
        with torch.no_grad():
            best, _ = target(next_obs).max(dim=1)
            expected = reward + 0.99 * best * (1 - done)
        return functional.mse_loss(expected, net(obs).gather(1, action).squeeze())

    compute = torch.compile(compute_loss) if compiled else compute_loss

    def learn(*batch: torch.Tensor) -> None:
        loss = compute(*batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return learn
