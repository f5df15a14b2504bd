"""Noise on continuous actions: white, Ornstein-Uhlenbeck, pink or repeated, of one size or of several in the lanes.

Noise that is correlated in time moves an inert system further than white noise, whose pushes cancel each other out
(``benchmarks/noise.py``). Pink noise, which is between white noise and a random walk, suits most tasks (Eberhard et
al., Pink Noise Is All You Need, ICLR 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents.machinery.lane_states import LaneRandom, LaneState
from common.agents.machinery.optimizers import undecayed
from common.agents.networks.layers import Head, Observed
from common.data import Array
from common.errors import ConfigError
from common.leaves import capacity_for
from common.settings import Settings

RATIO: Final = 4.0
"""Pink noise is a sum of processes, each slower than the process before it by this factor."""


class _Noise(Settings):
    """The sizes of noise."""

    std: NonNegativeFloat = Field(description="The standard deviation of the noise; actions are in [-1, 1].")
    max_std: NonNegativeFloat | None = Field(
        None,
        description="Draws the size of the noise for each lane and episode between std and this value; null: it is "
        "always std.",
    )

    @model_validator(mode="after")
    def _sizes_in_order(self) -> _Noise:
        if self.max_std is not None and self.max_std < self.std:
            raise ValueError(f"max_std ({self.max_std}) is below std ({self.std})")
        return self

    def decays(self) -> list[float]:
        """How much of each process is left after a step; empty for noise without a memory."""
        return []

    def durations(self) -> list[float]:
        """The probabilities that noise stays the same for 1, 2, … steps; empty for noise that changes in each step."""
        return []


class WhiteNoise(_Noise):
    """Gaussian noise, independent in each step."""

    kind: Literal["gaussian"] = Field("gaussian", description="White Gaussian noise: independent in each step.")


class OrnsteinUhlenbeckNoise(_Noise):
    """An Ornstein-Uhlenbeck process in steady state, as in DDPG (arXiv:1509.02971).

    DDPG's sigma of 0.2 and theta of 0.15 leave the process a standard deviation of 0.38.
    """

    kind: Literal["ou"] = Field("ou", description="Noise that drifts back to 0: an Ornstein-Uhlenbeck process.")
    theta: Annotated[float, Field(gt=0, le=1)] = Field(
        0.15, description="The share of the noise that is lost in each step."
    )

    def decays(self) -> list[float]:
        return [1 - self.theta]


class PinkNoise(_Noise):
    """Noise whose power is in inverse proportion to the frequency.

    A sum of Ornstein-Uhlenbeck processes of equal variance whose time constants are spread evenly on a logarithmic
    scale has this spectrum (van der Ziel, Physica 16:359, 1950). Unlike a signal made by a Fourier transform, it does
    not need to know the length of an episode.
    """

    kind: Literal["pink"] = Field("pink", description="Pink noise: slow changes are larger than fast ones.")
    horizon: PositiveInt = Field(
        1000,
        description="The number of steps that the slowest swing of the noise takes, about as many as an episode has.",
    )

    def decays(self) -> list[float]:
        n = 1 + round(math.log(self.horizon, RATIO))
        return [math.exp(-1 / RATIO**k) for k in range(n)]


class RepeatedNoise(_Noise):
    """White noise that stays the same for a number of steps, which is drawn anew each time (arXiv:2604.04539).

    The number follows a zeta distribution that ends at ``longest``: k steps have a probability in proportion to
    ``k ** -exponent``, as in temporally extended epsilon-greedy exploration (arXiv:2006.01782).
    """

    kind: Literal["repeated"] = Field(
        "repeated", description="White noise that is repeated for a random number of steps, mostly one (FlashSAC)."
    )
    exponent: PositiveFloat = Field(
        2.0, description="The probability of k steps is in proportion to k to the power of minus this number."
    )
    longest: PositiveInt = Field(16, description="The greatest number of steps.")

    def durations(self) -> list[float]:
        weights = [k**-self.exponent for k in range(1, self.longest + 1)]
        total = sum(weights)
        return [weight / total for weight in weights]


def _white_without_a_kind(noise: object) -> object:
    return {"kind": "gaussian", "std": noise} if isinstance(noise, int | float) else noise


ActionNoise = Annotated[
    Annotated[WhiteNoise | OrnsteinUhlenbeckNoise | PinkNoise | RepeatedNoise, Field(discriminator="kind")],
    BeforeValidator(_white_without_a_kind),
]


class NoiseState(NamedTuple):
    """The state of the noise in n lanes, for actions of A dimensions."""

    processes: torch.Tensor
    """The K processes that the noise is the sum of, each of variance 1: ``[n, A, K]``.

    Of repeated noise, K is 2: the noise, and the number of steps for which it stays.
    """
    sizes: torch.Tensor
    """Standard deviations ``[n, 1]``."""


class LaneNoise(LaneState):
    """The noise of n lanes: a process for each lane and each dimension of its actions.

    The state is in tensors that are changed in place, so that captured actions go on with it. A process begins in its
    steady state, where all steps have the same distribution. Calls with ``lanes`` have random numbers of each lane.

    Args:
        config: the kind and the sizes of the noise.
        size: dimensions of an action, A.
        generator: the source of all randomness, on ``device``; of its seed are the sequences of single lanes.
        device: where the noise is drawn.
    """

    def __init__(
        self,
        config: WhiteNoise | OrnsteinUhlenbeckNoise | PinkNoise | RepeatedNoise,
        size: int,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        self._config, self._size, self._generator, self._device = config, size, generator, device
        decays = torch.tensor(config.decays(), device=device)
        self._decays, self._fresh = decays, (1 - decays.square()).sqrt()  # [K] both; the variances stay 1.
        self._durations = torch.tensor(config.durations(), device=device).cumsum(0)
        self._repeats = bool(len(self._durations))
        self._n_processes = 2 if self._repeats else len(decays)
        self._is_lasting = bool(self._n_processes) or config.max_std is not None
        self._states: dict[int, NoiseState] = {}  # By the number of lanes, since captured actions hold on to them.
        self._n = 0
        self._random = LaneRandom(generator.initial_seed(), use=1)

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        """Begin new noise where ``begins``, ``[n]`` bool, is True; in all lanes if n has changed."""
        n = len(begins)
        if not self._is_lasting:
            return
        if lanes is not None:
            if begins.any():
                self._renew(self._reach(lanes), lanes[begins])
            return
        fresh = self._first(n, None)
        state = self._states.setdefault(n, fresh)
        where = torch.from_numpy(begins | (n != self._n)).to(self._device)
        self._n = n
        for old, new in zip(state, fresh, strict=True):
            old.copy_(torch.where(where.view(n, *(1 for _ in old.shape[1:])), new, old))

    def draw(self, n: int, lanes: Array | None = None) -> torch.Tensor:
        """The noise of the next step, ``[n, A]`` float32.

        Raises:
            ConfigError: ``begin`` has not been called for n lanes.
        """
        normal, uniform = self._sources(n, lanes)
        if not self._is_lasting:
            return normal(self._size) * self._config.std
        if lanes is None and n not in self._states:
            raise ConfigError("this noise begins with an episode, but the run was resumed in one with another noise")
        state, index = (self._states[n], ...) if lanes is None else (self._reach(lanes), torch.from_numpy(lanes))
        processes, sizes = state.processes[index], state.sizes[index]
        if not self._n_processes:
            return normal(self._size) * sizes
        if self._repeats:
            share = uniform()
            processes = self._repeat(processes, normal(self._size), share)
            noise = processes[..., 0] * sizes
        else:
            processes = processes * self._decays + normal(self._size, self._n_processes) * self._fresh
            noise = processes.sum(dim=2) * (sizes / math.sqrt(self._n_processes))
        state.processes[index] = processes
        return noise

    def _sources(self, n: int, lanes: Array | None) -> tuple[Callable[..., torch.Tensor], Callable[[], torch.Tensor]]:
        """Functions that draw for n lanes: normal numbers ``[n, *shape]`` of a shape, and uniform ones ``[n, 1]``."""
        if lanes is None:
            given: Any = {"generator": self._generator, "device": self._device}
            return lambda *shape: torch.randn((n, *shape), **given), lambda: torch.rand((n, 1), **given)
        rows = self._random.of(lanes)

        def normal(*shape: int) -> torch.Tensor:
            return torch.from_numpy(rows.standard_normal(math.prod(shape))).to(self._device).view(n, *shape)

        return normal, lambda: torch.from_numpy(rows.random(1)).float().to(self._device)

    def _first(self, n: int, lanes: Array | None) -> NoiseState:
        """The state of n lanes whose noise begins."""
        normal, uniform = self._sources(n, lanes)
        processes = normal(self._size, self._n_processes)
        least, greatest = self._config.std, self._config.max_std
        share = torch.zeros((n, 1), device=self._device) if greatest is None and lanes is None else uniform()
        sizes = least + ((least if greatest is None else greatest) - least) * share
        return NoiseState(torch.zeros_like(processes) if self._repeats else processes, sizes)

    def _repeat(self, processes: torch.Tensor, fresh: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Repeated noise one step later, ``[n, A, 2]``.

        Args:
            processes: the noise, and for how many steps it stays, ``[n, A, 2]``.
            fresh: the noise that follows where no step is left, ``[n, A]``.
            share: uniform in [0, 1), ``[n, 1]``; they choose for how many steps the new noise stays.
        """
        held, left = processes.unbind(dim=2)
        ends, drawn = left < 1, 1 + (share > self._durations[:-1]).sum(dim=1, keepdim=True)
        left = torch.where(ends, drawn, left) - 1
        return torch.stack((torch.where(ends, fresh, held), left), dim=2)

    def _reach(self, lanes: Array) -> NoiseState:
        """The state of all lanes, in which the noise of new ones among ``lanes`` has begun."""
        before, n = self._n, capacity_for(lanes, self._n)
        if n > before:
            shapes = (n, self._size, self._n_processes), (n, 1)
            grown = NoiseState(*(torch.zeros(shape, device=self._device) for shape in shapes))
            if before:
                for new, old in zip(grown, self._states[before], strict=True):
                    new[:before] = old
            self._keep(grown)
            self._renew(self._states[n], np.arange(before, n))
        return self._states[n]

    def _renew(self, state: NoiseState, lanes: Array) -> None:
        """Begin new noise in these lanes, ``[k]``, by their own random numbers."""
        for old, new in zip(state, self._first(len(lanes), lanes), strict=True):
            old[torch.from_numpy(lanes)] = new

    def _keep(self, state: NoiseState) -> None:
        """Go on with this state, in the tensors that captured actions hold on to."""
        self._n = len(state.sizes)
        for old, new in zip(self._states.setdefault(self._n, state), state, strict=True):
            old.copy_(new)

    def collect(self) -> dict[str, torch.Tensor]:
        state = self._states[self._n]._asdict() if self._n in self._states else {}
        return state | self._random.collect()

    def load(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        self._random.load(tensors, prefix)
        names = [f"{prefix}{name}" for name in NoiseState._fields]
        if not all(name in tensors for name in names):
            return
        saved = NoiseState(*(tensors[name].to(self._device).clone() for name in names))
        shape = (len(saved.sizes), self._size, self._n_processes)
        if saved.processes.shape != shape:
            raise ValueError(f"{prefix}processes: expected {list(shape)}, found {list(saved.processes.shape)}")
        self._keep(saved)


EPSILON = 1e-6
"""Added to variances before their logarithm is taken."""


class StateDependentNoise(Settings):
    """Noise that is a function of the observation (generalised state-dependent exploration, arXiv:2005.05719).

    White noise shakes a robot; noise that is the same for the same observation moves it smoothly. The noise on the
    actions is ``z(s) W``, with features ``z(s)`` ``[F]`` of the policy and a random matrix ``W`` ``[F, A]`` that
    changes slowly. Over all matrices it is Gaussian with the variance ``z(s)^2 std^2``, and this is the policy that SAC
    learns.
    """

    features: PositiveInt = Field(
        64, description="The number of the policy's features from which the noise is computed, as a linear function."
    )
    interval: PositiveInt = Field(
        8, description="The number of steps over which the noise function changes into another one."
    )
    initial_lstd: float = Field(
        -2.0, description="The logarithm of the standard deviation of each weight before training."
    )

    def process(self) -> OrnsteinUhlenbeckNoise:
        """How a matrix of weights changes, in units of their standard deviation.

        The paper draws a new matrix every ``interval`` steps. Here the matrix drifts, so that actions do not jerk.
        """
        return OrnsteinUhlenbeckNoise(std=1.0, theta=1 / self.interval)


class StateDependentActor(nn.Module):
    """A Gaussian policy whose standard deviation depends on the observation through the features of its means.

    Args:
        body: turns observations of B rows into ``[B, F]``; its tanh is the features.
        n_dims: dimensions of an action, A.
        config: has the number of features.
    """

    def __init__(self, body: nn.Module, n_dims: int, config: StateDependentNoise) -> None:
        super().__init__()
        self.body, self.mean = body, Head(config.features, n_dims)
        self.lstd = undecayed(torch.full((config.features, n_dims), config.initial_lstd))

    def forward(self, obs: Observed) -> torch.Tensor:
        """Means and logarithms of standard deviations, before tanh: observations of B rows to ``[B, 2 A]``."""
        features = self._features(obs)
        return torch.cat((self.mean(features), self._variance(features).log() / 2), dim=1)

    def noise(self, obs: Observed, weights: torch.Tensor) -> torch.Tensor:
        """The noise on the actions in units of its standard deviation, ``[n, A]``.

        Args:
            obs: of n rows.
            weights: standard normal, ``[n, F * A]``.
        """
        features = self._features(obs)
        matrices = weights.view(len(weights), *self.lstd.shape) * self.lstd.exp()
        return torch.einsum("nf,nfa->na", features, matrices) / self._variance(features).sqrt()

    def _features(self, obs: Observed) -> torch.Tensor:
        features: torch.Tensor = self.body(obs).tanh()
        return features

    def _variance(self, features: torch.Tensor) -> torch.Tensor:
        """``[B, A]``. The features learn from the means alone, as in the paper's code."""
        return features.detach().square() @ (2 * self.lstd).exp() + EPSILON
