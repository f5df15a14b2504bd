"""A worker whose policy is an acting service: it steps its environments here, and needs neither model nor learner.

The service, as an actor of its learner, records the rows. Their way to the learner, and how they are kept meanwhile, is
its business; this worker keeps no spool.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from actor.child_main import FINISH_SECONDS, run_child
from actor.client.acting_session import ActingSession, NoAnswerError, SessionEndedError
from actor.client.remote_policy import RemotePolicy, Telling
from actor.fixed_rate import Reason, act_at_rate
from actor.remote_config import RemoteConfig
from actor.sampling.guard import NotReplacedError, guard_envs, watch_envs
from actor.sampling.sampler import Sampler
from actor.stat import CLIENT_FIGURES, ActorCounters, ActorStat
from common.errors import CrossborderError
from common.lanes.building import build_lanes
from common.lanes.lanes import Busy, Lanes
from common.lanes.pace import Pace
from common.lanes.plain_lanes import PlainLanes
from common.lanes.safe_stop import check_safe_stop, stop_safely
from common.parts import Parts, row_schema
from common.process.child import say_error
from common.settings import validate
from common.wire.acting_payloads import Description
from common.wire.trust import ServiceTrust

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.1
"""A worker looks this often for its end."""
ACTION_SECONDS: Final = 0.5
"""With ``env.rate_hz``, a robot waits this long for its next action, and for two periods at least."""
REPORT_SECONDS: Final = 5.0


class Reports:
    """Reports what has come up in the environments since the last report; the service passes it on to its learner.

    A report that was on its way as the connection broke is lost.
    """

    def __init__(self, session: ActingSession, counters: ActorCounters) -> None:
        self._session, self._counters = session, counters
        self._told: dict[str, Any] = dict.fromkeys(CLIENT_FIGURES, 0)
        self._due_at = time.monotonic() + REPORT_SECONDS

    def send_if_due(self) -> None:
        """Report once in ``REPORT_SECONDS``."""
        if time.monotonic() >= self._due_at:
            self.send()

    def send(self, *, is_last: bool = False) -> None:
        """Report now; does not wait. What cannot be told now is in the next report."""
        self._due_at = time.monotonic() + REPORT_SECONDS
        totals = {name: getattr(self._counters, name) for name in CLIENT_FIGURES}
        error = self._counters.take_env_error()
        new = {name: total - self._told[name] for name, total in totals.items()}
        if self._session.report({**new, "env_error": error}, is_last=is_last):
            self._told = totals
        elif error:
            self._counters.note_env_error(error)


class RemoteWorker:
    """One worker in this process.

    Args:
        config: checked.
        patience: seconds to look for the service, at the start and after a broken connection.
        trust: how to check the service, and what to prove to it.
        tell: takes the error if this process cannot end in order, says why it ends, and returns the exit code.
        number: of this worker among those of its host.

    Raises:
        ConfigError: a file of ``trust`` cannot be read, or its settings contradict each other.
    """

    def __init__(
        self,
        config: RemoteConfig,
        patience: float,
        trust: ServiceTrust,
        tell: Callable[[CrossborderError], int],
        number: int = 0,
    ) -> None:
        self._config, self._tell, self._number = config, tell, number
        self._stopped = threading.Event()
        self._session = ActingSession(config.address, trust, patience, self._stopped, config.policy_name)
        self._counters = ActorCounters()
        self._reports = Reports(self._session, self._counters)
        self._policy: RemotePolicy | None = None
        """Of the present session."""

    def stop(self) -> None:
        """End the worker in order; from any thread."""
        self._stopped.set()
        self._session.wake()

    def run(self) -> ActorStat:
        """Act until ``stop`` is called.

        Raises:
            CrossborderError: see ``ActingSession.answer``; or the environment cannot be built, or has other spaces.
        """
        try:
            self._session.describe()
            self._build_and_act()
        except CrossborderError as error:
            if error.exit_code or not self._stopped.is_set():  # Otherwise it only says that it had to stop.
                raise
        finally:
            self._session.close(None, FINISH_SECONDS)
        return ActorStat(self._number, self._counters.env_steps, self._counters.seconds)

    def _build_and_act(self) -> None:
        config, busy = self._config.env, Busy()
        # Environments that are made with a seed are made before the session tells the seed of its lanes.
        lanes = build_lanes(config, self._config.envs_per_actor, secrets.randbits(31))
        try:
            space = lanes.spec.action_space
            check_safe_stop(config, space, lanes.envs[0] if isinstance(lanes, PlainLanes) else None)
            description = Description(lanes.spec)
            self._session.require_fit(description, lanes.n, lanes.name)
            guard_envs(lanes, config, self._counters, busy, self._stopped)
            with watch_envs(busy, config, self._tell, self._counters, self._close_hung):
                self._act_in_sessions(lanes, description)
        finally:
            lanes.close()

    def _act_in_sessions(self, lanes: Lanes, description: Description) -> None:
        """Act until told to stop. If a session is lost, all lanes begin episodes in another one."""
        rate = self._config.env.rate_hz
        seconds = None if rate is None else self._config.env.max_model_age_seconds or max(ACTION_SECONDS, 2 / rate)
        try:
            while not self._stopped.is_set():
                seed = self._session.open(lanes.n)
                log.info("joined the acting service at %s with %d lanes", self._config.policy, lanes.n)
                self._policy = RemotePolicy(self._session, description, lanes, seconds)
                try:
                    self._act(lanes, self._policy, seed)
                except SessionEndedError as lost:
                    self._policy = None
                    log.warning("the session has ended, and all lanes begin episodes in another one: %s", lost)
                    # Another policy's service may have come up at the address.
                    self._session.describe()
                    self._session.require_fit(description, lanes.n, lanes.name)
        finally:
            self._close()

    def _act(self, lanes: Lanes, policy: RemotePolicy, seed: int) -> None:
        """Act in one session until told to stop; then make a safe stop."""
        config, counters = self._config.env, self._counters
        pace = None if config.rate_hz is None else Pace(config.rate_hz, self._stopped, counters.note_tick)
        rows, telling = row_schema(lanes.spec), Telling(policy)
        parts = Parts(policy, rows, lanes.spec, lanes.spec, rows, lanes=lanes)
        sampler = Sampler(parts, counters, seed, pace, records=telling)
        ends = self._stopped.is_set
        if policy.seconds is not None:
            assert isinstance(lanes, PlainLanes), "build_env refuses vector environments with a rate"
            late = Reason(f"the acting service has given no action for {policy.seconds:g} s", policy.wait)

            def step() -> Reason | None:
                try:
                    sampler.sample_and_push(policy, telling)
                    self._reports.send_if_due()
                except NoAnswerError:
                    return late
                return None

            act_at_rate(step, lanes, config, counters, ends)
            return
        try:
            with suppress(NotReplacedError):
                while not ends():
                    sampler.act_for(LOOK_SECONDS, policy, telling)
                    self._reports.send_if_due()
        finally:
            stop_safely(lanes, config)

    def _close(self) -> None:
        """End the session, after the outcome of the last steps was told."""
        self._counters.tick()  # The farewell does not count.
        self._reports.send(is_last=True)
        last = None if self._policy is None else self._policy.last_step()
        _warn_of_lost(self._session.close(last, FINISH_SECONDS))

    def _close_hung(self) -> None:
        """End the session, in the watchdog's thread: the acting thread hangs, and so does not use it."""
        self._reports.send(is_last=True)
        _warn_of_lost(self._session.close(None, FINISH_SECONDS))


def _warn_of_lost(n_steps: int) -> None:
    if n_steps:
        log.warning("the acting service may not know how up to %d steps went, and they are given up", n_steps)


def _make_worker(boot: Mapping[str, Any]) -> RemoteWorker:
    config, trust = validate(RemoteConfig, boot["work"]), validate(ServiceTrust, boot["trust"])
    return RemoteWorker(config, boot["patience"], trust, say_error, boot["number"])


def main() -> int:
    """A child of ``ActorManager``; see ``run_child``."""
    return run_child(_make_worker)


if __name__ == "__main__":
    sys.exit(main())
