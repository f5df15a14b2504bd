"""The base of agents with networks: what is published, and what is saved.

``NetworkAgent`` is the base of users' agents too: ``examples/own_agent.py`` is a complete one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, ClassVar, TypeVar

import gymnasium
import numpy as np
import torch
from torch import nn

from common.agents.machinery.lane_states import LaneState
from common.agents.machinery.update import Inference, Update, UpdateConfig
from common.agents.networks.normalization import Normalizer
from common.data import Model
from common.errors import CheckpointError, ConfigError
from common.interfaces import Agent, EnvSpec, TrainingState

log = logging.getLogger(__name__)
KindT = TypeVar("KindT")


class NetworkAgent(Agent):
    """An agent that learns by networks. This class handles its model, its checkpoints and its state of training.

    A subclass sets ``nets`` in its ``__init__`` and, if it counts anything that a resumed run must know, ``counters``.
    Optimisers, ``LaneState`` and generators of torch and numpy are found among its attributes, also in lists, tuples
    and dicts, as ``nn.Module`` finds parameters. They are saved under the names of their attributes: after another
    name, an older checkpoint has no part for them.
    """

    nets: dict[str, nn.Module]
    """The networks by their names in checkpoints. The first one acts: its parameters are the model that actors fetch,
    with the statistics of a ``Normalizer``. The name of a target network ends in ``_tgt``."""
    counters: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that count, such as opt steps; JSON must hold their values."""

    def captures(self, config: UpdateConfig) -> bool:
        """Whether this agent's updates and actions are captured, by its settings.

        If the settings leave it open, only agents and networks of crossborder are captured. A user's class or network
        may do something else in each call, and capturing would silently freeze it.
        """
        if config.update is not None:
            return config.update == "captured"
        return type(self).__module__.startswith("common.agents.") and not config.has_own_network()

    @property
    def is_captured(self) -> bool:
        """Whether any update or action of this agent is captured."""
        updates, inferences = self._find(Update), self._find(Inference)
        return any(update.captured for _, update in updates) or any(each.captured for _, each in inferences)

    def compute_eagerly(self) -> None:
        """Capture no updates and no actions, against all settings; call this before the agent acts or learns."""
        for _, update in self._find(Update):
            update.captured = False
        for _, inference in self._find(Inference):
            inference.captured = False

    def model_info(self) -> Mapping[str, torch.Tensor]:
        info = {name: value.detach() for name, value in self._acting_net.state_dict().items()}
        return info | collect_networks(self._normalizers)

    def sync_model(self, model: Model) -> None:
        params = {name: torch.from_numpy(value) for name, value in model.params.items()}
        for name, net in self._normalizers.items():
            net.load_state_dict({key: params.pop(f"{name}.{key}") for key in net.state_dict()})
        self._acting_net.load_state_dict(params)

    @property
    def _acting_net(self) -> nn.Module:
        return next(iter(self.nets.values()))

    @property
    def _normalizers(self) -> dict[str, nn.Module]:
        return {name: net for name, net in self.nets.items() if isinstance(net, Normalizer)}

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return collect_networks(self.nets)

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        load_networks(type(self).__name__, self.nets, params)

    def training_state(self) -> TrainingState:
        tensors = dict(self.save_params())
        for name, optimizer in self._find(torch.optim.Optimizer):
            tensors |= {f"{name}.{key}": value for key, value in collect_optimizer(optimizer).items()}
        for name, memory in self._find(LaneState):
            tensors |= {f"{name}.{key}": value for key, value in memory.collect().items()}
        values: dict[str, Any] = {name: getattr(self, name) for name in self.counters}
        chance = self.random_state()
        return TrainingState(tensors | dict(chance.tensors), values | dict(chance.values))

    def load_training_state(self, state: TrainingState) -> None:
        self.load_params(state.tensors)
        try:
            for name, optimizer in self._find(torch.optim.Optimizer):
                load_optimizer(optimizer, state.tensors, f"{name}.")
            for name, memory in self._find(LaneState):
                memory.load(state.tensors, f"{name}.")
            self.load_random_state(state)
            for name in self.counters:
                setattr(self, name, state.values[name])
        except (LookupError, ValueError) as error:
            raise CheckpointError(f"{type(self).__name__}: the saved state does not fit this agent: {error}") from error
        forget_traces(self)

    def random_state(self) -> TrainingState:
        tensors = {name: generator.get_state() for name, generator in self._find(torch.Generator)}
        values = {name: generator.bit_generator.state for name, generator in self._find(np.random.Generator)}
        return TrainingState(tensors, values)

    def load_random_state(self, state: TrainingState) -> None:
        begun_anew = list[str]()
        try:
            for name, generator in self._find(torch.Generator):
                if not load_generator(generator, state.tensors[name].cpu()):
                    begun_anew.append(name)
            for name, random in self._find(np.random.Generator):
                random.bit_generator.state = state.values[name]
        except (LookupError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{type(self).__name__}: the saved state of its random generators does not fit this agent: {error}"
            ) from error
        if begun_anew:
            log.warning(
                "%s learned on another kind of device before: the random numbers of %s begin anew",
                *(type(self).__name__, ", ".join(begun_anew)),
            )

    def require_box(self, spec: EnvSpec) -> gymnasium.spaces.Box:
        """The observation space.

        Raises:
            ConfigError: the space is no Box.
        """
        space = spec.observation_space
        if not isinstance(space, gymnasium.spaces.Box):
            raise ConfigError(f"{type(self).__name__}: expected Box observations, found {space}")
        return space

    def _find(self, kind: type[KindT]) -> Iterator[tuple[str, KindT]]:
        return find_objects(kind, vars(self).items())


def find_objects(kind: type[KindT], named: Iterable[tuple[str, object]]) -> Iterator[tuple[str, KindT]]:
    """Find the objects of a kind among named values, with their names; in lists, tuples and dicts as ``NAME.KEY``."""
    for name, value in named:
        if isinstance(value, kind):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from find_objects(kind, ((f"{name}.{i}", entry) for i, entry in enumerate(value)))
        elif isinstance(value, dict):
            yield from find_objects(kind, ((f"{name}.{key}", entry) for key, entry in value.items()))


def forget_traces(agent: Agent) -> None:
    """Forget an agent's captured updates: each begins again with an eager call."""
    for _, update in find_objects(Update, vars(agent).items()):
        update.forget_traces()


def load_generator(generator: torch.Generator, state: torch.Tensor) -> bool:
    """Set a generator to a saved state; return False if it is the state of a generator on another kind of device.

    Such a state has another size. The generator then takes its seed from the state, so that it does not begin again
    with the numbers of its own seed, which the run may have had already.
    """
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
        return True
    generator.manual_seed(int.from_bytes(sha256(state.numpy().tobytes()).digest()[:8], "little"))
    return False


def collect_networks(nets: Mapping[str, nn.Module]) -> dict[str, torch.Tensor]:
    """The live parameters and buffers of all networks, as ``NET.PARAMETER``."""
    return {f"{net}.{name}": value for net, module in nets.items() for name, value in module.state_dict().items()}


def load_networks(agent: str, nets: Mapping[str, nn.Module], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy the tensors that ``collect_networks`` gave into networks.

    Args:
        agent: the agent's name, for the message.
        nets: the networks by name.
        tensors: of the networks, by ``NET.PARAMETER``; other names are ignored.

    Raises:
        CheckpointError: a network is missing or has another shape.
    """
    for net, module in nets.items():
        prefix = f"{net}."
        state = {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"{agent}: the saved network does not fit this one: {error}") from error


def collect_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The tensors an optimiser has gathered, such as Adam's moments, as ``PARAMETER.KEY``; parameters are numbered."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{key}": value for index, entries in state.items() for key, value in entries.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
    """Copy the tensors that ``collect_optimizer`` gave, found under ``prefix``, into an optimiser.

    Learning rates are no tensors: they stay as they are configured now.

    Raises:
        ValueError: a tensor has another shape than the parameter it belongs to, or they are those of another optimiser.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            index, _, key = name.removeprefix(prefix).partition(".")
            shape = parameters[int(index)].shape
            if value.dim() and value.shape != shape:
                raise ValueError(f"{name}: expected {list(shape)}, found {list(value.shape)}")
            state.setdefault(int(index), {})[key] = value.clone()
    kept, found = getattr(optimizer, "kept", None), {key for entries in state.values() for key in entries}
    if kept and found and found != kept:
        raise ValueError(
            f"{prefix.removesuffix('.')}: expected {', '.join(sorted(kept))}, found {', '.join(sorted(found))}, which "
            "another agent.params.optimizer keeps"
        )
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
