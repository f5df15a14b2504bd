"""A sampler that another process goes on with, in the middle of its episodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from actor.sampler import Sampler
from actor.stat import ActorCounters
from actor.tape import TapedEnv
from common.data import Snapshot
from common.parts import Lane

log = logging.getLogger(__name__)


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
        """Play the episodes of ``state`` again, before anything else; one that comes out differently is begun anew."""
        counters, seeds = self._counters, list(self._seeds)
        counters.restore(state.values["counters"])
        self._counters = ActorCounters()  # What is played again has been counted.
        unused = state.values.get("seeds", [])
        for j, values in enumerate(state.values["tapes"][: len(seeds)]):
            if j < len(unused) and unused[j] is not None:  # It has not begun its first episode.
                self._seeds[j] = unused[j]
                continue
            kept = Snapshot(values, {name: state.arrays[f"{j}.{name}"] for name in ("actions", "sums")})
            if not self._play(j, kept):
                log.warning(
                    "environment %d does not do the same again, at step %d of the %d of its episode: it begins another "
                    "one, and the curve will not be that of a run that was never interrupted",
                    *(j, len(self._tapes[j].sums) - 1, len(kept.arrays["actions"])),
                )
                self._obs[j], self._seeds[j] = None, seeds[j]
                counters.abandon(j)
        self._counters = counters

    def _play(self, j: int, kept: Snapshot) -> bool:
        """Play an episode through the step processor; whether everything came out as it had."""
        tape, sums = self._tapes[j], kept.arrays["sums"]
        self._seeds[j] = tape.rewind(kept)
        self._obs[j] = self._reset(j)
        for number, action in enumerate(kept.arrays["actions"]):
            obs = self._obs[j]
            if obs is None or tape.sums[number] != sums[number]:
                return False
            step = self._step(j, obs, action)
            if step is not None:
                self._lanes[j].processor.process(step)
        return tape.is_at(kept)
