"""The values of a record: means of the agent's values over the opt steps since the last record, and border's rates."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol, SupportsFloat

import torch

from common.data import Record, Snapshot

_FOLD = 256
"""The number of values of one key that are collected before they are summed."""


class Steps(Protocol):
    """Counts steps."""

    @property
    def inserted(self) -> int:
        """Steps accepted so far."""


class RecordWindow:
    """Collects the agent's records, and counts opt steps and inserted steps.

    Values may be tensors on a GPU. They are read only when they are summed, since the reading waits for the GPU.

    Args:
        buffer: counts the steps that were inserted.
        clock: seconds, monotonic.
    """

    def __init__(self, buffer: Steps, clock: Callable[[], float] = time.monotonic) -> None:
        self._buffer, self._clock = buffer, clock
        self._pending: defaultdict[str, list[SupportsFloat]] = defaultdict(list)
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._opts, self._eval_seconds = 0, 0.0
        self._before = 0.0, 0  # Seconds and steps since the last record, in an earlier life of the run.
        self._started, self._inserted = clock(), buffer.inserted

    def start(self) -> float:
        """Count time and steps from now on; return the present time by the clock."""
        now = self._clock()
        seconds, samples = self._before
        self._started, self._inserted = now - seconds, self._buffer.inserted - samples
        return now

    def add(self, record: Record) -> None:
        """Count an opt step, and collect the agent's record of it."""
        self._opts += 1
        for key, value in record.items():
            pending = self._pending[key]
            pending.append(value)
            if len(pending) >= _FOLD:
                self._fold(key)

    def leave_out(self, seconds: float) -> None:
        """Leave the seconds of an evaluation out of opt steps per second, but not out of steps per second."""
        self._eval_seconds += seconds

    def means(self) -> dict[str, float]:
        """The mean of each key since the last call."""
        self._fold_all()
        means = {key: self._sums[key] / count for key, count in self._counts.items() if count}
        self._sums.clear()
        self._counts.clear()
        return means

    def rates(self) -> dict[str, float]:
        """Border's keys of throughput since the last call: ``samples`` are steps that were inserted."""
        now, inserted = self._clock(), self._buffer.inserted
        seconds, samples = max(now - self._started, 1e-9), inserted - self._inserted
        rates = {
            "opt_steps_per_sec": self._opts / max(seconds - self._eval_seconds, 1e-9),
            "samples_per_sec": samples / seconds,
            "samples_per_opt_steps": samples / self._opts,
        }
        self._started, self._inserted = now, inserted
        self._opts, self._eval_seconds = 0, 0.0
        return rates

    def state(self) -> Snapshot:
        """The sums, counts and times since the last calls of ``means`` and ``rates``."""
        self._fold_all()
        return Snapshot(
            {
                "sums": dict(self._sums),
                "counts": dict(self._counts),
                "opts": self._opts,
                "eval_seconds": self._eval_seconds,
                "seconds": self._clock() - self._started,
                "samples": self._buffer.inserted - self._inserted,
            }
        )

    def restore(self, state: Snapshot) -> None:
        """Go on from the sums, counts and times of ``state``; time and steps count again after ``start``."""
        values = state.values
        self._sums.update(values["sums"])
        self._counts.update(values["counts"])
        self._opts, self._eval_seconds = values["opts"], values["eval_seconds"]
        self._before = values["seconds"], values["samples"]

    def _fold_all(self) -> None:
        for key in self._pending:
            self._fold(key)

    def _fold(self, key: str) -> None:
        pending = self._pending[key]
        for value in _read(pending):  # One by one: the sum is the same to the last bit, whenever values are folded.
            self._sums[key] += value
        self._counts[key] += len(pending)
        pending.clear()


def _read(values: Sequence[SupportsFloat]) -> list[float]:
    """The values as numbers; those that a GPU has come in one copy."""
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.is_cuda]
    if len(tensors) < len(values):
        return [float(value) for value in values]
    numbers: list[float] = torch.stack(tensors).tolist() if tensors else []
    return numbers
