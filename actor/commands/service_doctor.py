"""``actor-worker --policy … --check``: would a worker work with that acting service? One line for each check."""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import ExitStack
from typing import Final, TextIO

from actor.client.acting_session import ActingSession, NoAnswerError
from actor.client.remote_policy import RemotePolicy
from actor.commands.doctor import QUESTIONS, Visit
from actor.remote_config import RemoteConfig
from common.errors import LearnerUnreachableError, naming_failed_part
from common.lanes.building import build_lanes
from common.lanes.lanes import Lanes
from common.process.command import Check, run_checks
from common.wire.acting_payloads import Description, tell_leaves
from common.wire.trust import ServiceTrust

PATIENCE: Final = 1.0
"""Seconds in which a service that listens must answer."""
CHOICE_SECONDS: Final = 5.0
"""Seconds in which it must choose an action."""
CLOSE_SECONDS: Final = 5.0


class ServiceVisit(Visit):
    """One visit to an acting service. Each public method is a check: it returns a finding for the user, or raises."""

    def __init__(self, config: RemoteConfig, trust: ServiceTrust, stack: ExitStack) -> None:
        super().__init__(config.address, trust)
        self._config, self._stack = config, stack
        self._session = ActingSession(config.address, trust, PATIENCE, threading.Event(), config.policy_name)
        stack.callback(lambda: self._session.close(None, CLOSE_SECONDS))
        self._built = list[tuple[Lanes, Description]]()

    def connect(self) -> None:
        """See ``Visit``."""
        self._session.describe()

    def service(self) -> str:
        described = self._session.describe()
        kind = "explores" if described.explores else "is greedy"
        taken, given = map(tell_leaves, (described.observation, described.action))
        return f"the policy of opt step {described.version} {kind}, takes {taken} and gives {given}"

    def environment(self) -> str:
        config = self._config
        with naming_failed_part("the environment cannot be built"):
            lanes = build_lanes(config.env, config.envs_per_actor, 0)
        self._stack.callback(lanes.close)
        description = Description(lanes.spec)
        self._session.require_fit(description, lanes.n, lanes.name)
        self._built.append((lanes, description))
        return f"{config.env.target} has the spaces of the policy, in {lanes.n} lanes"

    def action(self) -> str:
        lanes, description = self._built[0]
        seed, began = self._session.open(lanes.n), time.perf_counter()
        try:
            with naming_failed_part("the environment cannot be reset"):
                lanes.reset(seed)
                began = time.perf_counter()
                RemotePolicy(self._session, description, lanes, CHOICE_SECONDS).sample(lanes.observe())
        except NoAnswerError as error:
            raise LearnerUnreachableError(
                f"expected an action within {CHOICE_SECONDS:g} s, found none: a service answers no step while its "
                "learner is away or holds it back"
            ) from error
        return f"came after {1e3 * (time.perf_counter() - began):.1f} ms"

    def round_trip(self) -> str:
        seconds = list[float]()
        for _ in range(QUESTIONS):
            began = time.perf_counter()
            self._session.describe()
            seconds.append(time.perf_counter() - began)
        return f"{1e3 * statistics.median(seconds):.2f} ms, median of {QUESTIONS}"


CHECKS: Final[tuple[Check[ServiceVisit], ...]] = (
    Check("name", ServiceVisit.name, "correct --policy, or let DNS or /etc/hosts know the name here", is_vital=True),
    Check(
        "port",
        ServiceVisit.port,
        "start policy-server, beyond its own host with --listen 0.0.0.0:PORT; let the firewall through",
        is_vital=True,
    ),
    Check(
        "TLS",
        ServiceVisit.tls,
        "--ca: the authority that signed the service's certificate; --policy: a name in that certificate",
        is_vital=True,
    ),
    Check(
        "service",
        ServiceVisit.service,
        "--token-file: a token of the service's clients; --policy: the address of --listen, and a name that the "
        "service knows",
        is_vital=True,
    ),
    Check("round trip", ServiceVisit.round_trip, "look at the network: the service does not answer in time"),
    Check(
        "environment",
        ServiceVisit.environment,
        "install what the file names here; it must have the spaces of the environment with which the policy is trained",
        is_vital=True,
    ),
    Check(
        "action",
        ServiceVisit.action,
        "look at the service's log, at its max_sessions and max_lanes, and at its learner",
    ),
)


def examine_service(config: RemoteConfig, trust: ServiceTrust, out: TextIO) -> None:
    """Run all checks; write a line for each at once, and advice below those that fail.

    A session is opened for one action, and closed: no step is taken, and so no row is made.

    Raises:
        CrossborderError: the error of the first check that failed.
    """
    with ExitStack() as stack:
        run_checks(CHECKS, ServiceVisit(config, trust, stack), out)
