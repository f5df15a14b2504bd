"""What every agent of networks keeps: its policy in checkpoints, and all the rest in order to go on training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import nn

from common.agents.objects import objects_of
from common.agents.training import optimizer_tensors, restore, restore_optimizer, saved
from common.agents.update import Results, Tensors, Update
from common.errors import CheckpointError
from common.interfaces import Agent, TrainingState

KindT = TypeVar("KindT")


class NetworkAgent(Agent):
    """Finds optimisers and random generators among its own attributes, as ``nn.Module`` finds its parameters.

    It looks into lists, tuples and dicts too.

    A subclass names its networks in ``_nets``, those of targets with a name that ends in ``_tgt``, and in ``_counters``
    the attributes that count.
    """

    _nets: dict[str, nn.Module]
    _counters: ClassVar[tuple[str, ...]] = ()

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return saved(self._nets)

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        restore(type(self).__name__, self._nets, params)

    def training_state(self) -> TrainingState:
        tensors = dict(self.save_params())
        for name, optimizer in self._all(torch.optim.Optimizer):
            tensors |= {f"{name}.{key}": value for key, value in optimizer_tensors(optimizer).items()}
        tensors |= {name: generator.get_state() for name, generator in self._all(torch.Generator)}
        values: dict[str, Any] = {name: getattr(self, name) for name in self._counters}
        values |= {name: generator.bit_generator.state for name, generator in self._all(np.random.Generator)}
        return TrainingState(tensors, values)

    def load_training_state(self, state: TrainingState) -> None:
        self.load_params(state.tensors)
        try:
            for name, optimizer in self._all(torch.optim.Optimizer):
                restore_optimizer(optimizer, state.tensors, f"{name}.")
            for name, generator in self._all(torch.Generator):
                generator.set_state(state.tensors[name].cpu())
            for name, random in self._all(np.random.Generator):
                random.bit_generator.state = state.values[name]
            for name in self._counters:
                setattr(self, name, state.values[name])
            for _, update in self._all(Update):
                update.reset()
        except (LookupError, ValueError) as error:
            raise CheckpointError(f"{type(self).__name__}: the saved state does not fit this agent: {error}") from error

    def _learning(self, function: Callable[[Tensors], Results]) -> Callable[[Tensors], Results]:
        """The same function with all networks but targets in torch's train mode while it runs, in eval mode afterwards.

        So batch normalisation and dropout do in an update what they are made for, and acting stays a fixed function.
        What is replayed has been traced in train mode.
        """

        def learn(batch: Tensors) -> Results:
            online = [net for name, net in self._nets.items() if not name.endswith("_tgt")]
            for net in online:
                net.train()
            try:
                return function(batch)
            finally:
                for net in online:
                    net.eval()

        return learn

    def _all(self, kind: type[KindT]) -> Iterator[tuple[str, KindT]]:
        return objects_of(kind, vars(self).items())
