"""What agents with networks share: publishing, saving, the opt step, and settings, each written once.

``NetworkAgent`` is the base of users' agents too: ``examples/own_agent.py`` is a complete one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import gymnasium
import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents.losses.values import CriticLoss
from common.agents.machinery.batches import (
    Batch,
    report_td_error,
)
from common.agents.machinery.lane_states import LaneRandom, LaneState
from common.agents.machinery.update import Inference, Results, Update, UpdateConfig
from common.agents.networks.encoders import LeafSpaces, build_mlp, build_network, is_own_network
from common.agents.networks.layers import Activation
from common.agents.networks.normalization import NormalizeBatch, Normalizer, build_normalizer
from common.config.replay_config import Unit
from common.data import Array, Leaves, Model, Record
from common.errors import CheckpointError, ConfigError
from common.interfaces import Agent, EnvSpec, ReplayBuffer, TrainingState
from common.plugins.part_config import PluginConfig
from common.settings import validate

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
        for _, update in self._find(Update):
            update.forget_traces()

    def random_state(self) -> TrainingState:
        tensors = {name: generator.get_state() for name, generator in self._find(torch.Generator)}
        values = {name: generator.bit_generator.state for name, generator in self._find(np.random.Generator)}
        return TrainingState(tensors, values)

    def load_random_state(self, state: TrainingState) -> None:
        try:
            for name, generator in self._find(torch.Generator):
                generator.set_state(state.tensors[name].cpu())
            for name, random in self._find(np.random.Generator):
                random.bit_generator.state = state.values[name]
        except (LookupError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{type(self).__name__}: the saved state of its random generators does not fit this agent: {error}"
            ) from error

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
        ValueError: a tensor has another shape than the parameter it belongs to.
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
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


LearningRate = Annotated[PositiveFloat, Field(description="The learning rate.")]
BatchItems = Annotated[PositiveInt, Field(description="The number of items in the batch of one update.")]
BatchSequences = Annotated[PositiveInt, Field(description="The number of sequences in the batch of one update.")]
DiscountFactor = Annotated[
    Unit, Field(description="Gamma: the weight of a reward is multiplied by it for each step into the future.")
]
RewardScale = Annotated[
    PositiveFloat, Field(description="The factor by which rewards are multiplied before the agent learns from them.")
]
GradNormLimit = Annotated[
    PositiveFloat | None,
    Field(description="The greatest norm of the gradients; larger ones are scaled down to it. null: no limit."),
]
PictureFeatures = Annotated[
    PositiveInt, Field(description="The number of features of each picture in observations, if no network is given.")
]
EncoderFeatures = Annotated[
    PositiveInt,
    Field(
        description="If a network is given, the number of its outputs; otherwise the number of features of each "
        "picture in observations."
    ),
]
Dueling = Annotated[
    bool,
    Field(
        description="Whether the last layer computes the state's value and the actions' advantages apart "
        "(dueling networks)."
    ),
]
CriticCount = Annotated[
    PositiveInt, Field(description="The number of critics; targets take the least of their values.")
]
LossOfCritics = Annotated[
    CriticLoss, Field(description="The loss of the critics' errors: smooth_l1 (Huber) or mse (mean squared error).")
]
TauOfCritics = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="How far the targets move towards the critics in an update of the targets; 1 copies the critics.",
    ),
]
ShiftPixels = Annotated[
    NonNegativeInt,
    Field(description="The most pixels by which pictures are shifted at random in updates (DrQ takes 4); 0: no shift."),
]
ActorKeys = Annotated[
    tuple[str, ...] | None,
    Field(description="The parts of a Dict or Tuple observation that the policy sees, by path; null: all parts."),
]
CriticKeys = Annotated[
    tuple[str, ...] | None,
    Field(
        description="The parts of a Dict or Tuple observation that the critics see, such as a state of the simulator "
        "that no robot can measure; null: all parts."
    ),
]
NormalizeRewards = Annotated[
    bool,
    Field(
        description="Whether rewards are divided by the standard deviation of the discounted return. It needs the "
        "column info/discounted_return, which the wrapper discounted_return reports and env.info names."
    ),
]


class AgentConfig(UpdateConfig):
    """The settings of every agent."""

    normalize_observations: bool = Field(
        False,
        description="Whether floats in observations are scaled to mean 0 and variance 1, by the mean and variance of "
        "the observations drawn so far.",
    )


class OffPolicyConfig(AgentConfig):
    """The settings of every ``OffPolicyAgent``."""

    n_updates_per_opt: PositiveInt = Field(
        1, description="The number of updates in one opt step, each with its own batch."
    )


class NetworkConfig(AgentConfig):
    """The settings of agents whose configuration may name a network; each agent describes them in its own words."""

    units: tuple[PositiveInt, ...] = (256, 256)
    network: PluginConfig | None = None
    feature_dim: PositiveInt = 256

    def has_own_network(self) -> bool:
        return self.network is not None and is_own_network(self.network)


class OneNetworkConfig(NetworkConfig):
    """The settings of agents whose network is either made of ``units`` or the user's own, but not both."""

    @model_validator(mode="after")
    def _one_network(self) -> OneNetworkConfig:
        if self.network is not None and "units" in self.model_fields_set:
            raise ValueError("give units or network, not both: a network takes its widths as network.params")
        return self

    def build(self, leaves: LeafSpaces, out_dim: int, activation: Activation = "relu") -> nn.Module:
        """Make the user's own network, or one of ``units``, from the leaves of B observations to ``[B, out_dim]``.

        ``activation`` is that of the layers of ``units``.
        """
        if self.network is None:
            return build_mlp(leaves, out_dim, self.units, self.feature_dim, activation)
        return build_network(self.network, leaves, out_dim)


class ConfiguredAgent(NetworkAgent):
    """An agent with a ``Config``, the base of crossborder's agents; its constructor seeds torch for their networks.

    Before these arguments, each agent takes ``spec``: observations of any space, see
    ``common.agents.networks.encoders``, and the actions that its class names.

    Args:
        seed: of the initial weights and of all random numbers.
        epsilon: this actor's own epsilon; only agents of action values use it.
        device: where the networks live.
        params: see the agent's ``Config``.

    Raises:
        ConfigError: a parameter is unknown or has a wrong value; the agent does not take the action space; it has no
            finite bounds, or too many joint actions; or a leaf of the observation space cannot be stored.
        PluginError: the user's own network cannot be built, or has other outputs than the agent needs.
    """

    Config: ClassVar[type[AgentConfig]]
    config: AgentConfig

    def __init__(self, *, seed: int, epsilon: float = 0.0, device: str = "cpu", **params: Any) -> None:
        self.config, self.device = validate(self.Config, params, type(self).__name__), torch.device(device)
        self._epsilon, self._lane_random = epsilon, LaneRandom(seed)
        self._captured = self.captures(self.config)
        self._opt_steps = 0  # Those of the newest model, or those of this agent if it learns.
        torch.manual_seed(seed)

    def sync_model(self, model: Model) -> None:
        super().sync_model(model)
        self._opt_steps = model.version.opt_steps

    def _normalize_batches(
        self, leaves: LeafSpaces, *, rewards: bool = False, max_return: float | None = None, merges_first: bool = True
    ) -> None:
        """Make ``normalizer``, for these leaves of observations, and ``_normalize``; see ``NormalizeBatch``."""
        enabled = self.config.normalize_observations
        normalizer = build_normalizer(leaves, enabled=enabled, rewards=rewards, max_return=max_return)
        self.normalizer = normalizer.to(self.device)
        self._normalize = NormalizeBatch(self.normalizer, captured=self._captured, merges_first=merges_first)

    def _act_by(
        self,
        greedily: Callable[..., torch.Tensor],
        exploring: Callable[..., torch.Tensor],
        noise: Callable[[Array], Array],
    ) -> None:
        """Make ``_infer`` of two functions of observations; ``noise`` is that of ``exploring``, see ``Inference``."""
        self._act_greedily = Inference(greedily, self.device, captured=self._captured)
        self._act_exploring = Inference(exploring, self.device, captured=self._captured, noise=noise)

    def _infer(self, obs: Leaves, lanes: Array | None) -> Array:
        """What the functions of ``_act_by`` give for n observations, ``[n, …]``; evaluations are greedy."""
        return self._act_exploring(obs, lanes) if self.is_train else self._act_greedily(obs, lanes)


class OffPolicyAgent(ConfiguredAgent):
    """An agent whose opt step makes ``n_updates_per_opt`` updates, each from a batch that it draws.

    The subclass sets ``learn`` in its ``__init__``. Arguments and errors are those of ``ConfiguredAgent``.
    """

    config: OffPolicyConfig
    learn: Update

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        record: Record = {}
        left = self.config.n_updates_per_opt
        while left:
            for batch in self._draw_batches(buffer):
                left -= 1
                results = self.learn(batch, recorded=left == 0)
                report_td_error(buffer, batch, results)
                record |= self._finish_update(batch, results)
        self._opt_steps += 1
        return record

    @abc.abstractmethod
    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        """Draw the next batches of this opt step: one, or as many as divide the number of its updates."""

    def _finish_update(self, batch: Batch, results: Results) -> Results:  # noqa: ARG002 - subclasses look at the batch
        """Do what belongs to an update after ``learn``; return the results for the record."""
        return results
