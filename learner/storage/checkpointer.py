"""Keeping the state of training, so that a run can be resumed: copied by the trainer, written by a thread beside it.

The thread syncs the replay's files too, so that after a power cut state and replay fit together.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final, Protocol

import torch

from common.data import Snapshot
from common.errors import CheckpointError
from common.interfaces import Agent, TrainingState
from common.process.clocks import Deadline
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import Watermark
from learner.shared.durable import WITHOUT_CHECKPOINT, logging_write_errors
from learner.storage.moment import Moment
from learner.storage.training_state import StateFiles, StateOfRun

log = logging.getLogger(__name__)
WRITE_SECONDS: Final = 60.0
"""The last state gets so long to be written."""
AGENT: Final = "agent."
"""Names of the agent's tensors in a state begin so."""
WINDOW: Final = "window"
"""The name of the part that collects losses until they are recorded."""


class Resumable(Protocol):
    """A part of a run beside the agent that a resumed run takes up again."""

    def state(self) -> Snapshot:
        """What it needs for that; arrays may be live."""

    def restore(self, state: Snapshot) -> None:
        """Go on as ``state`` says."""


class Checkpointer:
    """Training waits while a state is copied, not while it is written; the replay is never copied, it lies in files.

    One state is written at a time; another that is due meanwhile is taken when that is done.

    Args:
        files: take the states.
        agent: learns.
        parts: all else, by name.
        device: it learns on.
        seconds: between two states; None takes the last one only.
        items: a state is taken after so many as well, and training waits for the one before; None does not count them.
        replay: synced before each state is written; None where there is none to resume from.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        files: StateFiles,
        agent: Agent,
        parts: Mapping[str, Resumable],
        device: str,
        *,
        seconds: float | None,
        items: int | None = None,
        replay: ReplayMemory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._agent, self._parts, self._device = files, agent, parts, torch.device(device)
        self._replay = replay
        self._seconds, self._clock = math.inf if seconds is None else seconds, clock
        self._items = math.inf if seconds is None or items is None else items
        self._next = Deadline(self._seconds, clock)
        self._writing: threading.Thread | None = None
        self._newest = Moment(0, 0, 0.0)
        if type(agent).training_state is Agent.training_state:
            log.info("%s has no training_state(): --resume restores its save_params() only", type(agent).__name__)

    def begin(self, moment: Moment) -> None:
        """Write the first state of a new run: however early the run is killed, there is one to go on from.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._newest = moment
        self._files.write(self.copy(moment, -math.inf))

    def tick(self, moment: Moment, best_score: float) -> None:
        """Between two opt steps: take a state if one is due."""
        if moment.samples_total - self._newest.samples_total >= self._items:
            self._wait()
            self._take(moment, best_score)
        elif self._next.passed():
            self._take(moment, best_score)

    def finish(self, moment: Moment, best_score: float) -> None:
        """Take the last state and wait until it is written."""
        self._wait()
        self._take(moment, best_score)
        self._wait()

    def _take(self, moment: Moment, best_score: float) -> None:
        if moment.opt_steps > self._newest.opt_steps and not self._is_writing():
            self._newest, self._next = moment, Deadline(self._seconds, self._clock)
            state = self.copy(moment, best_score)
            self._writing = threading.Thread(target=self._write, args=(state,), name="checkpoint", daemon=True)
            self._writing.start()

    def copy(self, moment: Moment, best_score: float) -> StateOfRun:
        """The state as it is now, on the CPU: all of a checkpoint that training waits for."""
        agent, parts = self._agent.training_state(), {name: part.state() for name, part in self._parts.items()}
        score = best_score if math.isfinite(best_score) else None
        tensors = {f"{AGENT}{name}": tensor for name, tensor in agent.tensors.items()}
        for part, state in parts.items():
            tensors |= {f"{part}.{name}": torch.from_numpy(array) for name, array in state.arrays.items()}
        tensors |= self._torch_states()
        values = {
            "agent": agent.values,
            "learner": {"moment": asdict(moment), "best_score": score},
            **{name: state.values for name, state in parts.items()},
        }
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        return StateOfRun(moment.opt_steps, score, copied, json.dumps(values))

    def restore(self) -> tuple[Moment, float]:
        """Restore everything from the newest state; its moment and best score.

        A part that the state does not know, as of a run that was not in turns, is left as it is.

        Raises:
            CheckpointError: there is no state, none is whole, or it is that of another agent.
        """
        saved = self._files.newest()
        if saved is None:
            raise CheckpointError(f"{self._files.directory}: expected a state of training, found none")
        tensors, values = saved
        self._agent.load_training_state(TrainingState(below(AGENT, tensors), values["agent"]))
        for name, part in self._parts.items():
            if name in values:
                arrays = {key: tensor.numpy() for key, tensor in below(f"{name}.", tensors).items()}
                part.restore(Snapshot(values[name], arrays))
        for name, state in tensors.items():
            self._set_torch_state(name, state)
        moment, score = Moment(**values["learner"]["moment"]), values["learner"]["best_score"]
        self._newest = moment
        return moment, -math.inf if score is None else score

    def _torch_states(self) -> dict[str, torch.Tensor]:
        """Torch's own random generators, from which a user's network may draw."""
        states = {"torch.cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            states["torch.cuda"] = torch.cuda.get_rng_state(self._device)
        return states

    def _set_torch_state(self, name: str, state: torch.Tensor) -> None:
        if name == "torch.cpu":
            torch.set_rng_state(state)
        elif name == "torch.cuda" and self._device.type == "cuda":
            torch.cuda.set_rng_state(state, self._device)

    def _is_writing(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.join(WRITE_SECONDS)
            if self._writing.is_alive():
                log.error("a checkpoint is not written after %g s", WRITE_SECONDS)

    def _write(self, state: StateOfRun) -> None:
        """Write it, unless training has diverged and the next record will tell: a resumed run would diverge again."""
        bad = diverged(state)
        if bad:
            log.error("opt step %d: no checkpoint is written: expected finite values in %s", state.opt_steps, bad)
            return
        with logging_write_errors(WITHOUT_CHECKPOINT):
            self._files.write(state, self._synced())

    def _synced(self) -> Watermark | None:
        """How far the replay is on disk. It is looked at first: what it says of then is on disk once all is synced."""
        if self._replay is None:
            return None
        watermark = Watermark.of(self._replay)
        self._replay.sync()
        return watermark


def diverged(state: StateOfRun) -> str:
    """Names of the agent's tensors that hold NaN and of the losses that are not finite; empty if training is sound."""
    tensors = below(AGENT, state.tensors)
    names = [name for name, tensor in tensors.items() if tensor.is_floating_point() and bool(tensor.isnan().any())]
    losses = json.loads(state.values).get(WINDOW, {"sums": {}})["sums"]
    return ", ".join(names + [name for name, value in losses.items() if not math.isfinite(value)])


def below(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
