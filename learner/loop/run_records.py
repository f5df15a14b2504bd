"""The records of a run: the values of opt steps and evaluations, and the recorders and callbacks that take them."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

import torch

from common.config.run_config import RunConfig
from common.data import EVAL_KEYS, NO_NUMBER, RUN_KEYS, Record, Snapshot, require_record, to_json
from common.errors import DivergedError, PluginError
from common.interfaces import Callback, Evaluation, Recorder, RunIdentity
from common.plugins.part_config import PluginConfig, require_role
from common.plugins.part_loading import naming_fault
from common.process.log import LogThrottle
from learner.records.masking import mask_secrets
from learner.shared.durable import logging_write_errors
from learner.storage.training_state import Moment

log = logging.getLogger(__name__)
ValueT = TypeVar("ValueT")
UNWRITTEN_LOGGED_EVERY: Final = 60.0
"""Seconds between two lines of the log about records that cannot be written, such as on a full disk."""


def facts_of(config: RunConfig, identity: RunIdentity) -> dict[str, Any]:
    """What recorders and callbacks may ask for: which run it is, and its configuration without secrets."""
    return {"identity": identity, "config": mask_secrets(config.model_dump(mode="json"))}


class Callbacks:
    """Calls each callback in the order of the configuration, and remembers why one of them ended the run.

    Args:
        callbacks: by a name that stays the same when the run is resumed.
    """

    def __init__(self, callbacks: Mapping[str, Callback] | None = None) -> None:
        self._callbacks = callbacks or {}
        self.ended_because: str | None = None
        """The first reason that a callback gave to end the run."""

    @classmethod
    def build(cls, configs: Sequence[PluginConfig], optional: Mapping[str, Any]) -> Callbacks:
        """Build the callbacks that a configuration names.

        Raises:
            PluginError, ConfigError: one cannot be built.
        """
        callbacks: dict[str, Callback] = {}
        seen: Counter[str] = Counter()
        for index, config in enumerate(configs):
            with naming_fault(f"callbacks.{index} {config.target}"):
                callback = config.build(optional=optional)
            require_role(callback, "callback", f"callbacks.{index}.target")
            callbacks[f"{config.target} {seen[config.target]}"] = callback
            seen[config.target] += 1
        return cls(callbacks)

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> None:
        """Show a record to all callbacks."""
        for name, callback in self._callbacks.items():
            self._note(name, opt_steps, callback.on_record(opt_steps, dict(record)))

    def on_evaluation(self, opt_steps: int, evaluation: Evaluation) -> None:
        """Show an evaluation to all callbacks."""
        for name, callback in self._callbacks.items():
            own = replace(evaluation, record=dict(evaluation.record))
            self._note(name, opt_steps, callback.on_evaluation(opt_steps, own))

    def _note(self, name: str, opt_steps: int, reason: str | None) -> None:
        target = name.partition(" ")[0]
        to_json(self._callbacks[name].state(), f"callbacks: {target}: state")  # Otherwise a checkpoint would fail late.
        if not isinstance(reason, str | None):
            raise PluginError(f"callbacks: {target}: expected a reason as text, or None, found {reason!r:.80}")
        if reason is not None and self.ended_because is None:
            self.ended_because = reason
            log.info("opt step %d: %s ends the run: %s", opt_steps, target, reason)

    def state(self) -> Snapshot:
        """The state of each callback by its name."""
        return Snapshot({name: callback.state() for name, callback in self._callbacks.items()})

    def restore(self, state: Snapshot) -> None:
        """Give each callback its state back; a callback that is new in the run begins without a state."""
        for name, callback in self._callbacks.items():
            if name in state.values:
                callback.restore(state.values[name])


_FOLD = 256
"""The number of values of one key that are collected before they are summed."""


MAX_KEYS: Final = 200
"""The most keys of an agent's records; all parts together have twice as many. Each key is a column of ``metrics.csv``
and a series of Prometheus, and takes memory until the end of the run."""


def _bound(record: Mapping[str, ValueT], known: Collection[str], most: int, throttle: LogThrottle) -> dict[str, ValueT]:
    """A record without the new keys beyond ``most`` in all."""
    left_out = [key for key in record if key not in known][max(0, most - len(known)) :]
    if left_out and throttle.due() is not None:
        named = ", ".join(left_out[:10])
        log.warning("records have %d keys; new ones are left out, of which the first are %s", len(known), named)
    return {key: value for key, value in record.items() if key not in left_out}


class Steps(Protocol):
    """Counts steps."""

    @property
    def inserted(self) -> int:
        """Steps accepted so far."""


class RecordWindow:
    """Collects the agent's records, and counts opt steps and inserted steps.

    Tensors on a GPU are read only when they are summed, since the reading waits for the GPU; other values at once.

    Args:
        buffer: counts the steps that were inserted.
        clock: seconds, monotonic.
    """

    def __init__(self, buffer: Steps, clock: Callable[[], float] = time.monotonic) -> None:
        self._buffer, self._clock = buffer, clock
        self._pending: defaultdict[str, list[float | torch.Tensor]] = defaultdict(list)
        self._reused = set[str]()
        """Keys whose tensors on a GPU share memory, so that each later one overwrites those before."""
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._opts, self._eval_seconds = 0, 0.0
        self._left_out_log = LogThrottle(math.inf)
        self._before = 0.0, 0  # Seconds and steps since the last record, in an earlier life of the run.
        self._started, self._inserted = clock(), buffer.inserted

    def start(self) -> float:
        """Count time and steps from now on; return the present time by the clock."""
        now = self._clock()
        seconds, samples = self._before
        self._started, self._inserted = now - seconds, self._buffer.inserted - samples
        return now

    def add(self, record: Record) -> None:
        """Count an opt step, and collect the agent's record of it.

        Raises:
            PluginError: it is no record.
        """
        if not isinstance(record, dict) or not record.keys() <= self._pending.keys():
            require_record(record, "agent.opt", RUN_KEYS | EVAL_KEYS)
            record = _bound(record, self._pending, MAX_KEYS, self._left_out_log)
        self._opts += 1
        try:
            for key, value in record.items():
                pending = self._pending[key]
                if isinstance(value, torch.Tensor) and value.is_cuda:
                    pending.append(self._keep(key, value))
                else:
                    pending.append(float(value))
                if len(pending) >= _FOLD:
                    self._fold(key)
        except NO_NUMBER:
            require_record(record, "agent.opt", ())  # It names the value.
            raise

    def _keep(self, key: str, value: torch.Tensor) -> torch.Tensor:
        """A tensor on a GPU that keeps its value, whatever the agent does with its own tensor later."""
        pending, tensor = self._pending[key], value.detach()
        tensor = tensor.reshape(()) if tensor.dim() else tensor  # Tensors of several elements are refused.
        if pending and isinstance(last := pending[-1], torch.Tensor) and last.data_ptr() == tensor.data_ptr():
            self._reused.add(key)  # Only the value before this one is lost. To copy all tensors would take time.
            pending[-1] = last.clone()
        return tensor.clone() if key in self._reused else tensor

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


def _read(values: Sequence[float | torch.Tensor]) -> list[float]:
    """The values as numbers; those that a GPU has come in one copy."""
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.is_cuda]
    if len(tensors) < len(values):
        return [float(value) for value in values]
    numbers: list[float] = torch.stack(tensors).tolist() if tensors else []
    return numbers


class RunRecords:
    """Gives each record to recorders and callbacks, and ends training at a value that is not finite.

    Args:
        recorders: take the records.
        window: collects the values of opt steps between two records.
        callbacks: see evaluations and records, and may end training.
        episodes: means of the newest training episodes by key, for each record; None records none.
    """

    def __init__(
        self,
        recorders: Sequence[Recorder],
        window: RecordWindow,
        callbacks: Callbacks | None = None,
        episodes: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        self.window = window
        self.callbacks = callbacks or Callbacks()
        self._recorders, self._episodes = recorders, episodes or dict
        self.newest: dict[str, float] = {}
        """The newest value of each key."""
        self._left_out_log, self._unwritten_log = LogThrottle(math.inf), LogThrottle(UNWRITTEN_LOGGED_EVERY)
        self.has_diverged = False
        """Whether a value was not finite."""

    def rates(self) -> dict[str, float]:
        """The rates since the last record, and the means of the newest episodes."""
        return self.window.rates() | self._episodes()

    def write(self, moment: Moment, record: Mapping[str, float]) -> None:
        """Write a record of this moment.

        Raises:
            DivergedError: a value is not finite; the recorders have taken it already.
        """
        samples = moment.samples_total + moment.samples_elsewhere
        record = {"seconds": moment.seconds, "samples_total": float(samples), **record}
        record = _bound(record, self.newest.keys() | RUN_KEYS | EVAL_KEYS, 2 * MAX_KEYS, self._left_out_log)
        self.newest = {**self.newest, **record}
        for recorder in self._recorders:
            with logging_write_errors("training goes on without this record", self._unwritten_log):
                recorder.write(moment.opt_steps, record)
                recorder.flush()
        self._require_finite(moment.opt_steps, record)
        self.callbacks.on_record(moment.opt_steps, record)

    def finish(self) -> None:
        """Flush for the last time."""
        for recorder in self._recorders:
            with logging_write_errors("the last records are missing"):
                recorder.flush()

    def require_finite(self, opt_steps: int) -> None:
        """Check the values since the last record; at the end of training no record will show them.

        Raises:
            DivergedError: one of them is not finite.
        """
        self._require_finite(opt_steps, self.window.state().values["sums"])

    def _require_finite(self, opt_steps: int, values: Mapping[str, float]) -> None:
        bad = [f"{key} {value}" for key, value in values.items() if not math.isfinite(value)]
        if bad:
            self.has_diverged = True
            raise DivergedError(
                f"opt step {opt_steps}: expected finite values, found {', '.join(bad)}; "
                "--resume goes on from the checkpoint before"
            )
