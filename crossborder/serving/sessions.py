"""All sessions of an acting service: who has which lanes, and for how long."""

from __future__ import annotations

import heapq
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from common.data import Array
from common.wire.rpc import BadMessageError, RunOverError, SessionLostError, StoppingError
from crossborder.serving.figures import Figures
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving_config import ServingConfig
from crossborder.serving.session import Session
from learner.ingest.gate import digest_of
from learner.ingest.refusals import OverLimitError

log = logging.getLogger(__name__)
SECRET_BYTES: Final = 18


class Sessions:
    """Opens, resumes and ends sessions. Lanes of sessions that have ended go to the next sessions.

    Args:
        policies: of which each session chooses one; all of them have other names.
        config: has the limits.
        figures: counts.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        policies: Sequence[ServedPolicy],
        config: ServingConfig,
        figures: Figures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policies = {policy.name: policy for policy in policies}
        """By name; the first is that of clients who name none."""
        self.used_lanes = 0
        self.is_stopping = False
        """The service is shutting down: no session begins any more."""
        self._is_run_over = False
        self._config, self._figures, self._clock = config, figures, clock
        self._by_secret = dict[bytes, Session]()
        """By the digest of the secret: the time of a look-up tells nothing about the secret."""
        self._free = list[int]()
        """A heap of the numbers of lanes that were used before; the next new number is ``_n_numbers``."""
        self._n_numbers = 0
        self._next_seed = config.seed

    def __len__(self) -> int:
        return len(self._by_secret)

    @property
    def connected_lanes(self) -> int:
        """Lanes whose sessions have a connection."""
        return sum(policy.connected_lanes for policy in self.policies.values())

    def require_open(self) -> None:
        """Refuse clients while the service shuts down.

        Raises:
            StoppingError: it does; another service may answer at the address soon.
            RunOverError: it does, since the run has reached its end.
        """
        if self._is_run_over:
            raise RunOverError("the run for which this service acts has reached its end")
        if self.is_stopping:
            raise StoppingError("the service is shutting down")

    def policy(self, name: str) -> ServedPolicy:
        """The policy of a name; the first one for an empty name.

        Raises:
            BadMessageError: there is none of this name.
        """
        found = self.policies.get(name) if name else next(iter(self.policies.values()))
        if found is None:
            known = ", ".join(filter(None, self.policies)) or "none: the service has one policy, without a name"
            raise BadMessageError(f"policy: expected one of these names: {known}; found '{name}'")
        return found

    def all(self) -> tuple[Session, ...]:
        """All sessions, the oldest first; any thread may ask, since no other thread runs during the copy."""
        return tuple(self._by_secret.values())

    def open(self, n: int, owner: str, policy: str = "") -> tuple[str, Session]:
        """Open a session with n lanes, for which a policy acts; return its secret too.

        Raises:
            BadMessageError: n is 0, or there is no such policy.
            OverLimitError: there is no room for it.
        """
        if n < 1:
            raise BadMessageError("open: expected at least one lane, found 0")
        chosen = self.policy(policy)
        if len(self) >= self._config.max_sessions:
            raise OverLimitError(f"all {self._config.max_sessions} sessions (max_sessions) are taken; try again later")
        if self.used_lanes + n > self._config.max_lanes:
            free = self._config.max_lanes - self.used_lanes
            raise OverLimitError(f"expected at most {free} lanes, the rest of max_lanes, found {n}; try again later")
        secret = secrets.token_urlsafe(SECRET_BYTES)
        session = Session(
            key=digest_of(secret),
            owner=owner,
            lanes=self._take_lanes(n),
            seed=self._next_seed,
            policy=chosen,
            clock=self._clock,
        )
        self._next_seed += n
        self._by_secret[session.key] = session
        self._figures.opened += 1
        return secret, session

    def find(self, secret: str, owner: str) -> Session:
        """The session of a secret, for the holder of the token that opened it.

        Raises:
            SessionLostError: there is none.
        """
        session = self._by_secret.get(digest_of(secret))
        if session is None or session.owner != owner:
            raise SessionLostError("there is no session of this secret, or it has ended; open another one")
        self._figures.resumed += 1
        return session

    def connect(self, session: Session, hang_up: Callable[[], None]) -> None:
        """Note that a session has a connection, which ``hang_up`` ends; another connection of the session ends now."""
        if session.hang_up is not None:
            session.hang_up()
        else:
            session.policy.connected_lanes += len(session.lanes)
        session.hang_up, session.silent_since = hang_up, self._clock()

    def disconnect(self, session: Session, hang_up: Callable[[], None]) -> None:
        """Note that a connection has ended. The session stays for ``resume_seconds``, unless it was closed."""
        if session.hang_up is hang_up:
            session.hang_up, session.silent_since = None, self._clock()
            session.policy.connected_lanes -= len(session.lanes)

    def close(self, session: Session) -> None:
        """End a session. Its lanes are free as soon as no batch holds them."""
        if self._by_secret.pop(session.key, None) is None:
            return
        if session.hang_up is not None:
            hang_up = session.hang_up
            self.disconnect(session, hang_up)
            hang_up()
        if session.rests:
            self._give_back(session.lanes)
        else:
            session.on_rest = partial(self._give_back, session.lanes)

    def stop(self, *, is_run_over: bool = False) -> None:
        """Shut down: end all sessions; no client needs to come back if the run is over for which the service acts."""
        self.is_stopping, self._is_run_over = True, is_run_over
        for session in tuple(self._by_secret.values()):
            self.close(session)

    def tick(self) -> None:
        """End the sessions that are silent for too long; called a few times a second."""
        now, config = self._clock(), self._config
        for session in tuple(self._by_secret.values()):
            is_connected = session.hang_up is not None
            if is_connected and not session.rests:
                continue  # The client waits for us: a learner may hold its actors back for a long time.
            limit = config.silence_seconds if is_connected else config.resume_seconds
            if now - session.silent_since > limit:
                log.warning(
                    "a session of %d lanes has ended: %s for %g s",
                    len(session.lanes),
                    "silent" if is_connected else "no connection",
                    limit,
                )
                self._figures.expired += 1
                self.close(session)

    def _take_lanes(self, n: int) -> Array:
        reused = [heapq.heappop(self._free) for _ in range(min(n, len(self._free)))]
        new = range(self._n_numbers, self._n_numbers + n - len(reused))
        self._n_numbers = new.stop
        self.used_lanes += n
        return np.array([*reused, *new], np.int64)

    def _give_back(self, lanes: Array) -> None:
        self.used_lanes -= len(lanes)
        for lane in lanes.tolist():
            heapq.heappush(self._free, lane)
