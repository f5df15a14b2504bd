"""All sessions of an acting service: who has which lanes, and for how long."""

from __future__ import annotations

import heapq
import logging
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from common.data import Array
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError, SessionLostError
from crossborder.serving.batching import Batcher, Player, StepSink
from crossborder.serving.figures import Figures
from crossborder.serving.serving_config import ServingConfig
from crossborder.serving.session import Session
from learner.ingest.gate import digest_of
from learner.ingest.refusals import OverLimitError

log = logging.getLogger(__name__)
SECRET_BYTES: Final = 18


class Sessions:
    """Opens, resumes and ends sessions. Lanes of sessions that have ended go to the next sessions.

    Args:
        player: chooses actions for all sessions.
        config: has the limits.
        figures: counts.
        sink: takes the steps of all lanes; None: nobody does.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        player: Player,
        config: ServingConfig,
        figures: Figures,
        sink: StepSink | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.description = Description(player.spec, takes_executed=sink is None or sink.takes_executed)
        self.connected_lanes = 0
        """Lanes whose sessions have a connection."""
        self.used_lanes = 0
        self.is_stopping = False
        """The service is shutting down: no session begins any more."""
        self._config, self._figures, self._sink, self._clock = config, figures, sink, clock
        self.batches = Batcher(
            player,
            self.description,
            max_rows=config.max_batch,
            max_wait=config.max_wait_ms / 1000,
            count_lanes=lambda: self.connected_lanes,
            figures=figures,
            sink=sink,
        )
        self._by_secret = dict[bytes, Session]()
        """By the digest of the secret: the time of a look-up tells nothing about the secret."""
        self._free = list[int]()
        """A heap of the numbers of lanes that were used before; the next new number is ``_n_numbers``."""
        self._n_numbers = 0
        self._next_seed = config.seed

    def __len__(self) -> int:
        return len(self._by_secret)

    def open(self, n: int, owner: str) -> tuple[str, Session]:
        """Open a session with n lanes; return its secret too.

        Raises:
            BadMessageError: n is 0.
            OverLimitError: there is no room for it.
        """
        if n < 1:
            raise BadMessageError("open: expected at least one lane, found 0")
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
            description=self.description,
            batches=self.batches,
            figures=self._figures,
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
            self.connected_lanes += len(session.lanes)
        session.hang_up, session.silent_since = hang_up, self._clock()

    def disconnect(self, session: Session, hang_up: Callable[[], None]) -> None:
        """Note that a connection has ended. The session stays for ``resume_seconds``, unless it was closed."""
        if session.hang_up is hang_up:
            session.hang_up, session.silent_since = None, self._clock()
            self.connected_lanes -= len(session.lanes)

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

    def note_report(self, report: pb.ClientReport) -> None:
        """Take the figures of a client.

        Raises:
            BadMessageError: one of them is impossible.
        """
        if self._sink is not None:
            self._sink.note_report(report)

    def stop(self) -> None:
        """Shut down: end all sessions."""
        self.is_stopping = True
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
