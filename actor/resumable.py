"""A sampler whose episodes the process of a resumed run continues where they were.

An environment cannot be asked for its state, but a deterministic one can be brought to the same state again: it begins
with the same random generator and takes the same actions. Checksums of all values that it returned show whether the
state is the same.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Any, Final, SupportsFloat

import gymnasium
import numpy as np

from actor.sampler import Sampler
from actor.stat import ActorCounters
from common.data import Array, Snapshot
from common.envs import Env
from common.parts import Lane

log = logging.getLogger(__name__)
MAX_STEPS: Final = 100_000
"""An episode of this many steps is no longer kept."""


class TapedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the present episode: the seed or generator at its beginning, its actions, and checksums of the results."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._seed: int | None = None
        self._random_before: dict[str, Any] | None = None
        self._actions: list[Array] = []
        self.checksums: list[int] = []
        """CRC-32 of the first observation, then of the reward and the observation of each step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._seed, self._random_before = seed, self._random() if seed is None else None
        obs, info = self.env.reset(seed=seed, options=options)
        self._actions, self.checksums = [], [_checksum(obs)]
        return obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if len(self._actions) < MAX_STEPS:
            self._actions.append(np.array(action))
            self.checksums.append(_checksum(obs, reward))
        return obs, reward, terminated, truncated, info

    def state(self) -> Snapshot:
        """The present episode: arrays ``actions`` and ``sums`` (int64 [steps + 1]), both empty if it is too long."""
        values = {"seed": self._seed, "random_before": self._random_before, "random": self._random()}
        actions, sums = (self._actions, self.checksums) if len(self._actions) < MAX_STEPS else ([], [])
        return Snapshot(values, {"actions": np.array(actions), "sums": np.array(sums, np.int64)})

    def rewind(self, state: Snapshot) -> int | None:
        """Set the generator to its state before the episode of ``state``; return the seed for the reset, if any."""
        values = state.values
        if values["random_before"] is not None:
            self.unwrapped.np_random.bit_generator.state = values["random_before"]
        seed: int | None = values["seed"]
        return seed

    def is_at(self, state: Snapshot) -> bool:
        """Whether the present episode returned the same values as that of ``state``, and its generator is the same."""
        return bool(self.checksums == state.arrays["sums"].tolist() and self._random() == state.values["random"])

    def _random(self) -> dict[str, Any] | None:
        """The state of the generator that gymnasium gives an environment; None if it has another kind."""
        generator: object = self.unwrapped.np_random
        if isinstance(generator, np.random.Generator) and isinstance(generator.bit_generator, np.random.PCG64):
            return dict(generator.bit_generator.state)
        return None


def _checksum(obs: Any, reward: SupportsFloat = 0.0) -> int:
    return zlib.crc32(np.asarray(obs).tobytes(), zlib.crc32(np.float64(reward).tobytes()))


class ResumableSampler(Sampler):
    """A ``Sampler`` whose episodes can be played again, where environments and step processors are deterministic.

    Arguments are those of ``Sampler``.
    """

    def __init__(self, lanes: Sequence[Lane], counters: ActorCounters, seed: int) -> None:
        self._tapes = [TapedEnv(lane.env) for lane in lanes]
        taped = [Lane(tape, lane.processor) for tape, lane in zip(self._tapes, lanes, strict=True)]
        super().__init__(taped, counters, seed)

    def state(self) -> Snapshot:
        """The present episodes, between two rounds."""
        tapes = [tape.state() for tape in self._tapes]
        arrays = {f"{j}.{name}": array for j, tape in enumerate(tapes) for name, array in tape.arrays.items()}
        values = {"counters": self._counters.state(), "tapes": [tape.values for tape in tapes], "seeds": [*self._seeds]}
        return Snapshot(values, arrays)

    def restore(self, state: Snapshot) -> None:
        """Play the episodes of ``state`` again, before anything else.

        An environment whose episode comes out differently begins a new one, and the log says so.
        """
        counters, seeds = self._counters, list(self._seeds)
        counters.restore(state.values["counters"])
        self._counters = ActorCounters()  # Steps that are played again were counted in the former process.
        unused = state.values.get("seeds", [])
        for j, values in enumerate(state.values["tapes"][: len(seeds)]):
            if j < len(unused) and unused[j] is not None:  # The environment has not begun its first episode.
                self._seeds[j] = unused[j]
                continue
            kept = Snapshot(values, {name: state.arrays[f"{j}.{name}"] for name in ("actions", "sums")})
            if not self._play(j, kept):
                log.warning(
                    "environment %d does not do the same again, at step %d of the %d of its episode: it begins another "
                    "one, and the curve will not be that of a run that was never interrupted",
                    *(j, len(self._tapes[j].checksums) - 1, len(kept.arrays["actions"])),
                )
                self._obs[j], self._seeds[j] = None, seeds[j]
                counters.abandon(j)
        self._counters = counters

    def _play(self, j: int, kept: Snapshot) -> bool:
        """Play an episode through environment j and its step processor; return whether all results are the same."""
        tape, sums = self._tapes[j], kept.arrays["sums"]
        self._seeds[j] = tape.rewind(kept)
        self._obs[j] = self._reset(j)
        for number, action in enumerate(kept.arrays["actions"]):
            obs = self._obs[j]
            if obs is None or tape.checksums[number] != sums[number]:
                return False
            step = self._step(j, obs, action)
            if step is not None:
                self._lanes[j].processor.process(step)
        return tape.is_at(kept)
