"""Acting at a fixed rate, as a robot needs it: nothing that may take long happens while a tick is due.

Between two ticks the acting thread does what takes little time: it records a row, and copies the row into the spool,
from where other threads send it. Another thread fetches each new model; the acting thread loads it where an episode
begins, or right after a step if enough time is left. When an actor without a rate would wait for the learner, an actor
with a rate makes a safe stop first, and begins a new episode afterwards.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from actor.acting import Acting
from actor.client.pusher import BEHIND_SECONDS
from actor.proxy import ReplayBufferProxy
from actor.sampling.guard import NotReplacedError
from actor.sampling.sampler import Sampler, require_lanes
from actor.stat import ActorCounters
from common.data import Model
from common.lanes.pace import Pace
from common.lanes.plain_lanes import PlainLanes
from common.lanes.safe_stop import stop_safely
from common.plugins.part_config import EnvConfig
from common.system import above_other_threads

log = logging.getLogger(__name__)
SWITCH_SECONDS: Final = 0.0005
"""The time after which a thread that runs Python yields to the acting thread. Python's default is 0.005 s."""
SPARE_SECONDS: Final = 0.001
"""The spare time before a tick, if no work takes longer than it did before."""
LOOK_SECONDS: Final = 0.5
"""A pause looks this often whether the actor has to end."""


@dataclass(frozen=True)
class Reason:
    """A reason to make a safe stop and to wait.

    Args:
        text: for the log.
        wait: waits for at most the given seconds until the reason is gone; returns whether it is gone.
    """

    text: str
    wait: Callable[[float], bool]


def act_at_rate(
    step: Callable[[], Reason | None],
    lanes: PlainLanes,
    env: EnvConfig,
    counters: ActorCounters,
    ends: Callable[[], bool],
) -> None:
    """Act in one lane at a fixed rate until ``ends()`` is true or something raises; then make a safe stop.

    Args:
        step: takes one step and returns None, or returns a reason to wait.
        lanes: the lane.
        env: says what a safe stop is.
        counters: counts safe stops, and the seconds of waiting.
        ends: whether the actor has to end.
    """
    with acting_first():
        try:
            with suppress(NotReplacedError):
                while not ends():
                    if (reason := step()) is not None:
                        _pause(reason, lanes, env, counters, ends)
        finally:
            stop_safely(lanes, env)


def _pause(
    reason: Reason, lanes: PlainLanes, env: EnvConfig, counters: ActorCounters, ends: Callable[[], bool]
) -> None:
    """Make a safe stop, wait, and have a new episode begin.

    The episode before stays without an end: its last row is not linked to another.
    """
    log.warning("safe stop: %s", reason.text)
    began = time.monotonic()
    stop_safely(lanes, env)
    counters.safe_stops += 1
    lanes.reset()
    while not (ends() or reason.wait(LOOK_SECONDS)):
        continue
    waited = time.monotonic() - began
    counters.wait_seconds += waited
    log.info("waited for %.1f s after the safe stop", waited)


class Control:
    """Acts with the models of a learner, in one lane at the rate of ``pace``."""

    def __init__(self, acting: Acting, pace: Pace) -> None:
        joined, lanes = acting.joined, require_lanes(acting.parts)
        assert isinstance(lanes, PlainLanes), "build_env refuses vector environments with a rate"
        each_round = joined.config.push.model_copy(update={"n_buffer": 1})
        self._lanes, self._pace, self._ends, self._env = lanes, pace, acting.ends, joined.config.env
        self._agent, self._models, self._pusher = acting.parts.agent, acting.models, acting.pusher
        self._counters = acting.counters
        self._sampler = Sampler(acting.parts, acting.counters, joined.seed, pace, acting.recording)
        self._proxy = ReplayBufferProxy(joined.schema, each_round, acting.pusher.send)
        self._max_model_age = age = self._env.max_model_age_seconds
        self._confirmed_at = time.monotonic()
        self._sync_seconds = self._inference_seconds = 0.0
        self._full = Reason("the spool is full (push.spool_bytes)", self._pusher.wait_for_room)
        self._behind = Reason(
            f"an episode has ended, and rows have waited for the learner's acknowledgement for {BEHIND_SECONDS:g} s",
            self._pusher.wait_for_learner,
        )
        self._old = Reason(
            f"the learner has not confirmed the model for {age or 0:g} s (env.max_model_age_seconds)",
            self._wait_for_young_model,
        )

    def run(self) -> None:
        """Act with the newest model until the actor has to stop or to start anew."""
        self._agent.train()
        act_at_rate(self._step, self._lanes, self._env, self._counters, self._ends)

    def _step(self) -> Reason | None:
        reason = self._find_reason_to_wait()
        if reason is None:
            self._sync()
            before = self._counters.inference_seconds
            self._sampler.sample_and_push(self._agent, self._proxy)
            self._inference_seconds = self._counters.inference_seconds - before
        return reason

    @property
    def _is_between_episodes(self) -> bool:
        return self._lanes.waits(0)

    def _find_reason_to_wait(self) -> Reason | None:
        if not self._has_young_model():
            return self._old
        if not self._pusher.wait_for_room(0.0):
            return self._full
        if self._is_between_episodes and not self._pusher.wait_for_learner(0.0):
            return self._behind
        return None

    def _has_young_model(self) -> bool:
        """Whether the model is young enough. If it is too old, load a newer model first; this may make a step late."""
        if self._max_model_age is None or self._model_age() <= self._max_model_age:
            return True
        if (model := self._models.newer_than(self._proxy.version)) is not None:
            self._load(model)
        return self._model_age() <= self._max_model_age

    def _model_age(self) -> float:
        """Seconds since the learner last said that the model that acts is its newest."""
        confirmed_at = self._models.confirmed_at(self._proxy.version)
        if confirmed_at is not None:
            self._confirmed_at = confirmed_at
        return time.monotonic() - self._confirmed_at

    def _wait_for_young_model(self, seconds: float) -> bool:
        self._models.wait_for_word(seconds)
        return self._has_young_model()

    def _sync(self) -> None:
        """Load a newer model, if there is one and enough time is left."""
        model = self._models.newer_than(self._proxy.version)
        if model is None:
            return
        needed = self._sync_seconds + self._inference_seconds + SPARE_SECONDS
        if not self._is_between_episodes and self._pace.remaining() < needed:
            self._sync_seconds *= 0.99  # It may have taken so long only once.
            return
        self._load(model)

    def _load(self, model: Model) -> None:
        began = time.monotonic()
        self._agent.sync_model(model)
        self._proxy.version, self._sampler.version = model.version, model.version.opt_steps
        self._sync_seconds = max(time.monotonic() - began, 0.9 * self._sync_seconds)


@contextmanager
def acting_first() -> Iterator[None]:
    """A context in which this process hands the interpreter and the core to the calling thread soon.

    A garbage collection over all objects that torch and the other libraries have made takes 0.05 s, during which no
    thread runs; from now on Python collects new objects only. See ``above_other_threads`` for the core.
    """
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    try:
        with above_other_threads():
            yield
    finally:
        sys.setswitchinterval(switch_seconds)
        gc.unfreeze()
