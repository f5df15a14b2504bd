"""Copies of an agent's tensors go into a safetensors file, whatever their memory is like, and stay as they were."""

from __future__ import annotations

import torch
from safetensors.torch import load, save

from common.agents.tensor_copies import copy_to_cpu


def test_a_file_takes_the_copies_of_tied_transposed_expanded_and_learnt_tensors() -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    tensors = {
        "weight": weight,
        "tied": weight,
        "transposed": weight.t(),
        "expanded": torch.ones(3, 1).expand(3, 4),
        "picture": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "number": torch.tensor(7),
        "none": torch.zeros(0, 2),
    }
    found = load(save(copy_to_cpu(tensors)))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_copies_do_not_change_when_the_agent_learns() -> None:
    weight = torch.zeros(2)
    copies = copy_to_cpu({"weight": weight})
    weight.fill_(1)
    assert torch.equal(copies["weight"], torch.zeros(2))
