"""One agent on all ranks: its state of training comes from rank 0, at the start and after every restart.

Each rank keeps the states of its own random generators, so that ranks draw different noise.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Final

import torch
from safetensors.torch import load, save
from torch.nn.modules.batchnorm import _BatchNorm

from common.agents.averaging import average
from common.agents.network_agent import NetworkAgent
from common.agents.tensor_copies import copy_to_cpu
from common.interfaces import Agent, TrainingState
from learner.ranks.group import Group

_LENGTH_BYTES: Final = 8


class RandomState:
    """The part of an agent's state that the checkpoints of every rank except rank 0 keep."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def training_state(self) -> TrainingState:
        return self._agent.random_state()

    def load_training_state(self, state: TrainingState) -> None:
        self._agent.load_random_state(state)


def share_agent(agent: Agent, group: Group) -> None:
    """Give the agents of all ranks the state of training of rank 0, except for their random generators.

    Raises:
        RankLostError: a rank has ended.
        CheckpointError: the agents differ.
    """
    leads = group.place.leads
    given = group.broadcast(_pack(agent.training_state()) if leads else b"")
    if not leads:
        own = agent.random_state()
        kept = TrainingState({name: t.clone() for name, t in own.tensors.items()}, dict(own.values))
        agent.load_training_state(_unpack(given))
        agent.load_random_state(kept)


def compute_checksum(agent: Agent, opt_steps: int) -> int:
    """A checksum of the model, after opt steps 1, 2, 4, 8 and so on; otherwise 0."""
    check = 0
    if not opt_steps & (opt_steps - 1):
        for tensor in agent.model_info().values():
            values = tensor.detach().cpu().contiguous().flatten()
            check = zlib.crc32(values.view(torch.uint8).numpy().data, check)
    return check


def find_statistics(agent: Agent) -> list[torch.Tensor]:
    """The running statistics of torch's own batch normalisation in the networks of an agent.

    The shipped layers average their statistics over ranks within an update. Torch's layers, in a user's own network,
    gather theirs from the share of their rank alone.
    """
    nets = agent.nets.values() if isinstance(agent, NetworkAgent) else ()
    norms = [part for net in nets for part in net.modules() if isinstance(part, _BatchNorm)]
    found = [t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None]
    return list({id(tensor): tensor for tensor in found}.values())


def share_statistics(statistics: Sequence[torch.Tensor]) -> None:
    """Replace statistics by their means over ranks, so that the models of the ranks stay the same."""
    if statistics:
        mean = average(torch.cat([tensor.flatten() for tensor in statistics]))
        parts = torch.split(mean, [tensor.numel() for tensor in statistics])
        for tensor, part in zip(statistics, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _pack(state: TrainingState) -> bytes:
    """A state as bytes: the length of its values as JSON, the values, and its tensors as a safetensors file."""
    values = json.dumps(dict(state.values)).encode()
    tensors = save(copy_to_cpu(state.tensors))
    return len(values).to_bytes(_LENGTH_BYTES, "little") + values + tensors


def _unpack(data: bytes) -> TrainingState:
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    return TrainingState(load(data[end:]), json.loads(data[_LENGTH_BYTES:end]))
