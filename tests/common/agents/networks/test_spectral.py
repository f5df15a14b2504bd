from __future__ import annotations

import torch
from torch.nn import functional

from common.agents.networks.spectral import SpectralConv2d


def largest(weight: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.svdvals(weight.flatten(1))[0]
    return norm


def test_weights_are_divided_by_their_largest_singular_value() -> None:
    torch.manual_seed(0)
    conv, maps = SpectralConv2d(3, 8, 3, padding=1), torch.rand(2, 3, 6, 6)
    for _ in range(50):
        conv(maps)
    slow = functional.conv2d(maps, conv.weight / largest(conv.weight), conv.bias, padding=1)
    torch.testing.assert_close(conv(maps), slow, rtol=1e-3, atol=1e-4)


def test_a_new_layer_knows_its_norm_nearly() -> None:
    torch.manual_seed(0)
    conv = SpectralConv2d(8, 8, 3)
    norm = torch.mv(conv.weight.flatten(1).t(), conv.u).norm()
    torch.testing.assert_close(norm, largest(conv.weight), rtol=0.1, atol=0)


def test_the_vector_follows_the_weights_in_train_mode_only() -> None:
    conv, maps = SpectralConv2d(2, 4, 3), torch.rand(1, 2, 5, 5)
    conv.eval()
    before = conv.u.clone()
    assert torch.equal(conv(maps), conv(maps))
    assert torch.equal(conv.u, before)
    conv.train()
    conv(maps)
    assert not torch.equal(conv.u, before)
    assert "u" in conv.state_dict()


def test_gradients_are_those_of_weights_over_their_norm() -> None:
    torch.manual_seed(0)
    conv, maps = SpectralConv2d(2, 4, 3), torch.rand(1, 2, 5, 5)
    for _ in range(100):
        conv(maps)
    (conv(maps).square().sum() + conv(maps).sum()).backward()  # Two calls in train mode before the gradients.
    copy = conv.weight.detach().clone().requires_grad_()
    slow = functional.conv2d(maps, copy / largest(copy), conv.bias)
    (expected,) = torch.autograd.grad(slow.square().sum() + slow.sum(), copy)
    assert conv.weight.grad is not None
    torch.testing.assert_close(conv.weight.grad, expected, rtol=1e-2, atol=1e-3)
