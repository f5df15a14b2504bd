"""A sampler whose episodes the process of a resumed run continues where they were.

An environment cannot be asked for its state, but a deterministic one can be brought to the same state again: it begins
with the same random generator and takes the same actions. Checksums of all values that it returned show whether the
state is the same.
"""

from __future__ import annotations

import logging
import zlib
from copy import deepcopy
from typing import Any, Final, SupportsFloat

import gymnasium
import numpy as np

from actor.sampling.sampler import Sampler
from actor.stat import ActorCounters
from common.data import Array, Leaves, Snapshot
from common.interfaces import Step, StepProcessor
from common.lanes.building import Env
from common.lanes.pace import Pace
from common.lanes.plain_lanes import PlainLanes
from common.lanes.stacking import Stacker
from common.leaves import copy_leaves, empty_leaves, pick_leaves, put_leaves
from common.parts import Parts
from common.spaces import UNREADABLE, flatten, from_columns, narrow, to_columns, unflatten

log = logging.getLogger(__name__)
MAX_STEPS: Final = 100_000
"""An episode of this many steps is no longer kept."""
ACTIONS: Final = "actions"
SUMS: Final = "sums"


class TapedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the present episode: the seed or generator at its beginning, its actions, and checksums of the results."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.narrow_space = narrow(env.action_space)
        """The space of the actions that the environment is given."""
        self._seed: int | None = None
        self._random_before: dict[str, Any] | None = None
        self._actions: list[dict[str, Array]] = []
        self.checksums: list[int] = []
        """CRC-32 of the first observation, then of the reward and the observation of each step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._seed, self._random_before = seed, self._random() if seed is None else None
        obs, info = self.env.reset(seed=seed, options=options)
        self._actions, self.checksums = [], [_checksum(obs)]
        return obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        given = deepcopy(action)  # The environment may change its action in place.
        obs, reward, terminated, truncated, info = self.env.step(action)
        if len(self._actions) < MAX_STEPS:
            self._actions.append(to_columns(ACTIONS, flatten(self.narrow_space, given)))
            self.checksums.append(_checksum(obs, reward))
        return obs, reward, terminated, truncated, info

    def state(self) -> Snapshot:
        """The present episode: the columns of its actions and ``sums`` (int64 [steps + 1]), none if it is too long."""
        values = {"seed": self._seed, "random_before": self._random_before, "random": self._random()}
        actions, sums = (self._actions, self.checksums) if len(self._actions) < MAX_STEPS else ([], [])
        columns = {name: np.array([action[name] for action in actions]) for name in (actions[0] if actions else ())}
        return Snapshot(values, {**columns, SUMS: np.array(sums, np.int64)})

    def rewind(self, state: Snapshot) -> int | None:
        """Set the generator to its state before the episode of ``state``; return the seed for the reset, if any."""
        values = state.values
        if values["random_before"] is not None:
            self.unwrapped.np_random.bit_generator.state = values["random_before"]
        seed: int | None = values["seed"]
        return seed

    def is_at(self, state: Snapshot) -> bool:
        """Whether the present episode returned the same values as that of ``state``, and its generator is the same."""
        return bool(self.checksums == state.arrays[SUMS].tolist() and self._random() == state.values["random"])

    def _random(self) -> dict[str, Any] | None:
        """The state of the generator that gymnasium gives an environment; None if it has another kind."""
        generator: object = self.unwrapped.np_random
        if isinstance(generator, np.random.Generator) and isinstance(generator.bit_generator, np.random.PCG64):
            return dict(generator.bit_generator.state)
        return None


def _checksum(obs: Any, reward: SupportsFloat = 0.0) -> int:
    try:
        found = zlib.crc32(np.float64(reward).tobytes())
        for part in _parts_of(obs):
            found = zlib.crc32(part.tobytes(), found)
    except UNREADABLE:  # Numpy cannot read a value; the lanes, which get it next, refuse it by name.
        return 0
    return found


def _parts_of(obs: Any) -> list[Array]:
    """The arrays in an element of any space."""
    if isinstance(obs, dict):
        return [part for inner in obs.values() for part in _parts_of(inner)]
    if isinstance(obs, tuple):
        return [part for inner in obs for part in _parts_of(inner)]
    return [np.asarray(obs)]


class ResumableSampler(Sampler):
    """A ``Sampler`` whose episodes can be played again, where environments and step processors are deterministic.

    A vector environment cannot be brought back: its lanes begin new episodes. Arguments are those of ``Sampler``.
    """

    def __init__(self, parts: Parts, counters: ActorCounters, seed: int, pace: Pace | None = None) -> None:
        self._tapes: list[TapedEnv] = []
        if isinstance(parts.lanes, PlainLanes):
            parts.lanes.wrap(self._tape)
        super().__init__(parts, counters, seed, pace)

    def _tape(self, env: Env) -> TapedEnv:
        self._tapes.append(TapedEnv(env))
        return self._tapes[-1]

    def state(self) -> Snapshot:
        """The present episodes, between two rounds."""
        values: dict[str, Any] = {"counters": self._counters.state(), "tapes": []}
        arrays: dict[str, Array] = {}
        if isinstance(self._lanes, PlainLanes):
            states = [tape.state() for tape in self._tapes]
            arrays = {f"{j}.{name}": array for j, state in enumerate(states) for name, array in state.arrays.items()}
            values["tapes"] = [state.values for state in states]
            values["waiting"] = [self._lanes.waits(j) for j in range(self._lanes.n)]
            values["seeds"] = [self._lanes.next_seed(j) for j in range(self._lanes.n)]
        arrays |= {f"stacks.{path}": stacks.copy() for path, stacks in self._stacker.stacks().items()}
        return Snapshot(values, arrays)

    def restore(self, state: Snapshot) -> None:
        """Play the episodes of ``state`` again, before anything else.

        An environment whose episode comes out differently begins a new one, and the log says so.
        """
        self._counters.restore(state.values["counters"])
        lanes, tapes = self._lanes, state.values["tapes"]
        if not isinstance(lanes, PlainLanes):
            log.warning("a vector environment cannot be brought back: its %d lanes begin new episodes", lanes.n)
            return
        for j, values in enumerate(tapes[: lanes.n]):
            if state.values["waiting"][j] and state.values["seeds"][j] is not None:
                lanes.seed_next(j, state.values["seeds"][j])  # The environment has not begun its first episode.
                continue
            mine = {n.removeprefix(f"{j}."): a for n, a in state.arrays.items() if n.startswith(f"{j}.")}
            kept = Snapshot(values, mine)
            if not len(kept.arrays[SUMS]):
                log.warning(
                    "environment %d begins a new episode: its episode had %d steps or more, which are not kept, and "
                    "the curve will differ from that of a run that was never interrupted",
                    *(j, MAX_STEPS),
                )
            elif not self._play(lanes, j, kept, ended=state.values["waiting"][j]):
                log.warning(
                    "environment %d returned other values than before, at step %d of the %d of its episode: it begins "
                    "a new one, and the curve will differ from that of a run that was never interrupted",
                    *(j, len(self._tapes[j].checksums) - 1, len(kept.arrays[SUMS]) - 1),
                )
        stacks = {name.removeprefix("stacks."): a for name, a in state.arrays.items() if name.startswith("stacks.")}
        if stacks:
            self._stacker.restore(stacks)

    def _play(self, lanes: PlainLanes, j: int, kept: Snapshot, *, ended: bool) -> bool:
        """Play an episode through environment j and its step processor; return whether all results are the same."""
        tape, sums, total = self._tapes[j], kept.arrays[SUMS], 0.0
        obs, _ = tape.reset(seed=tape.rewind(kept))
        memory = _ProcessorMemory(self._parts, j, obs) if self._parts.processors else None
        for number in range(len(sums) - 1):
            if tape.checksums[number] != sums[number]:
                return False
            action = pick_leaves(from_columns(ACTIONS, kept.arrays), number)
            element = unflatten(tape.narrow_space, copy_leaves(action))
            obs, reward, terminated, truncated, _ = tape.step(element)
            total += float(reward)
            if memory is not None:
                memory.add(action, float(reward), obs, terminated=bool(terminated), truncated=bool(truncated))
        if not tape.is_at(kept):
            return False
        if ended:
            lanes.seed_next(j, None)
        else:
            lanes.resume(j, obs, total, len(sums) - 1)
            assert self._unbegun is not None, "restore() comes before the first round"
            self._unbegun[j] = False
        return True


class _ProcessorMemory:
    """Lets the step processor of lane j see the steps of an episode again, as it saw them before."""

    def __init__(self, parts: Parts, j: int, obs: Any) -> None:
        self._space = parts.frames.observation_space
        self._stacker = Stacker(parts.frames, 1, parts.frame_stack)
        self._processor: StepProcessor = parts.processors[j]
        self._processor.reset()
        self._obs = self._see(obs, np.ones(1, bool))

    def _see(self, obs: Any, begins: Array | None = None) -> Leaves:
        frame = empty_leaves(self._space, 1)
        put_leaves(frame, 0, flatten(self._space, obs))
        return pick_leaves(copy_leaves(self._stacker.add(frame, begins)), 0)

    def add(self, action: Any, reward: float, obs: Any, *, terminated: bool, truncated: bool) -> None:
        before, self._obs = self._obs, self._see(obs)
        self._processor.process(Step(before, action, reward, self._obs, terminated, truncated))
