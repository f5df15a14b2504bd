"""What an agent keeps for each of its lanes, and saves; here, how many random numbers the lane has drawn.

``lanes`` names the lanes that the rows of a call belong to, ``[k]`` int64, all different; None: all n lanes. A lane
with a new number is added, and its state begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from common.data import Array
from common.leaves import capacity_for

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)


class LaneState:
    """Something that an agent keeps for each lane; ``NetworkAgent`` finds it among its attributes and saves it."""

    def collect(self) -> dict[str, torch.Tensor]:
        """The state of the lanes, for a resumed run; empty if there is none."""
        raise NotImplementedError

    def load(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        """Take the state that ``collect`` gave, found under ``prefix``.

        Raises:
            ValueError: the state does not fit.
        """
        raise NotImplementedError


class LaneRandom(LaneState):
    """A sequence of random numbers for each lane; its state is how many of them each lane has drawn.

    Number i of lane j depends on the seed, i and j alone. So a lane explores in the same way whether it acts alone or
    beside other lanes, which one generator for all lanes cannot offer. All numbers of a call are computed at once, by
    SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).

    Args:
        seed: of all lanes, not negative.
        use: tells the sequences of several objects with the same seed apart.
    """

    def __init__(self, seed: int, use: int = 0) -> None:
        self._key = np.random.SeedSequence(seed, spawn_key=(use,)).generate_state(1, np.uint64)
        self._drawn = np.zeros(0, np.int64)

    def of(self, lanes: Array) -> RowRandom:
        """A source of random numbers for k rows that belong to these lanes, ``[k]`` int64, all different."""
        return RowRandom(self, lanes)

    def draw(self, lanes: Array, size: int) -> Array:
        """The next ``size`` numbers of each of these lanes, ``[k, size]`` float64: uniform, above 0 and below 1."""
        if (more := capacity_for(lanes, len(self._drawn)) - len(self._drawn)) > 0:
            self._drawn = np.pad(self._drawn, (0, more))
        drawn = self._drawn[lanes]
        self._drawn[lanes] = drawn + size
        starts = _mix(self._key + lanes.astype(np.uint64) * _GAMMA)
        places = (drawn[:, None] + np.arange(1, size + 1)).astype(np.uint64)
        bits = _mix(starts[:, None] + places * _GAMMA) >> np.uint64(12)
        numbers: Array = (bits.astype(np.float64) + 0.5) * 2.0**-52
        return numbers

    def collect(self) -> dict[str, torch.Tensor]:
        return {"drawn": torch.from_numpy(self._drawn.copy())} if len(self._drawn) else {}

    def load(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        drawn = tensors.get(f"{prefix}drawn")
        self._drawn = np.zeros(0, np.int64) if drawn is None else drawn.numpy(force=True).copy()


class RowRandom:
    """Random numbers for the k rows of one call, each row from the sequence of its lane.

    The methods are named as those of ``np.random.Generator``. Each gives m numbers for each row, ``[k, m]``.
    """

    def __init__(self, source: LaneRandom, lanes: Array) -> None:
        self._source, self._lanes = source, lanes

    def random(self, m: int) -> Array:
        """Uniform between 0 and 1, float64."""
        return self._source.draw(self._lanes, m)

    def standard_normal(self, m: int) -> Array:
        """Normal with mean 0 and deviation 1, float32."""
        uniform = torch.from_numpy(self.random(m))
        numbers: Array = torch.special.ndtri(uniform).float().numpy()
        return numbers

    def standard_exponential(self, m: int) -> Array:
        """Exponential with mean 1, float32."""
        numbers: Array = (-np.log(self.random(m))).astype(np.float32)
        return numbers

    def gumbel(self, m: int) -> Array:
        """Of the standard Gumbel distribution, float64."""
        numbers: Array = -np.log(-np.log(self.random(m)))
        return numbers


def _mix(x: Array) -> Array:
    """Scatter numbers of 64 bits: the function that gives the outputs of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed
