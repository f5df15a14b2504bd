"""A learner and its actors on several hosts: started in order, followed, and ended in order.

1. The launcher starts the learner, and asks it on its own host until it answers (``crossborder-health``).
2. It starts the actors on all their hosts at the same time.
3. When the learner ends, or when it is time to stop, the launcher asks the actors to end, and they hand over their
   rows; then it asks the learner to end, and the learner saves.

The launcher starts nothing again: ``actor-worker`` and ``learner-server`` do that for their own children. If the actors
of one host fail, the launcher reports this, and the other actors go on.
"""

from __future__ import annotations

import logging
import math
import queue
from collections.abc import Sequence
from typing import Final

from common.errors import ChildFailedError, CrossborderError
from common.process.clocks import Deadline
from crossborder.launching.hosts_config import ActorHostConfig, HostConfig, LaunchConfig
from crossborder.launching.remote_command import RemoteCommand, ssh_words
from crossborder.launching.tether import BEAT_SECONDS, GRACE_SECONDS

log = logging.getLogger(__name__)
LEARNER: Final = "learner-server"
ACTORS: Final = "actor-worker"
HEALTH: Final = "crossborder-health"
END_SECONDS: Final = GRACE_SECONDS + 10.0
"""Longer than the time that the tether on a host gives its command to end in order."""


def learner_words(config: LaunchConfig) -> list[str]:
    """The arguments of ``learner-server``, which runs on the learner's host."""
    learner = config.learner
    return [
        *("--config", learner.config, "--run-dir", learner.run_dir, "--resume", "--listen", learner.listen),
        *(["--insecure"] if config.trust.insecure else []),
        *learner.arguments,
    ]


def health_words(config: LaunchConfig) -> list[str]:
    """The arguments of ``crossborder-health``, which runs on the learner's host."""
    learner, trust = config.learner, config.trust
    own = [*(["--ca", str(trust.ca)] if trust.ca else []), *(["--insecure"] if trust.insecure else [])]
    given = own if learner.health_arguments is None else learner.health_arguments
    return ["--learner", learner.reached_at, "--patience", f"{config.start_seconds:g}", *given]


def actor_words(config: LaunchConfig, place: ActorHostConfig) -> list[str]:
    """The arguments of ``actor-worker`` on a host."""
    trust = config.trust
    files = {"ca": trust.ca, "certificate": trust.certificate, "key": trust.key, "token-file": trust.token_file}
    return [
        *("--learner", config.learner.reached_at, "--num-actors", str(place.num_actors)),
        *(word for name, path in files.items() if path is not None for word in (f"--{name}", str(path))),
        *(["--insecure"] if trust.insecure else []),
        *(["--allow", *trust.allow] if trust.allow else []),
        *place.arguments,
    ]


class Launcher:
    """Runs a learner and its actors; use it once."""

    def __init__(self, config: LaunchConfig, level: str = "INFO") -> None:
        self._config, self._logging = config, ("--log-format", "json", "--log-level", level)
        self._running: list[RemoteCommand] = []
        self._failures: list[CrossborderError] = []
        # A command puts itself in once, when it has ended, and ``stop`` is called once: the queue is never full.
        self._events: queue.Queue[RemoteCommand | None] = queue.Queue(maxsize=len(config.actors) + 3)

    def stop(self) -> None:
        """Have ``run`` end everything in order; from any thread, once."""
        self._events.put_nowait(None)

    def commands(self) -> list[list[str]]:
        """The ssh commands that ``run`` starts, in order."""
        config = self._config
        return [
            self._words(config.learner, LEARNER, learner_words(config)),
            self._words(config.learner, HEALTH, health_words(config)),
            *(self._words(place, ACTORS, actor_words(config, place)) for place in config.actors),
        ]

    def run(self) -> None:
        """Start everything, and return when everything has ended.

        Raises:
            CrossborderError: the learner or the actors of a host failed; the error of the first failure, which names
                all of them.
        """
        config = self._config
        try:
            learner = self._open(config.learner, LEARNER, learner_words(config))
            if self._wait_for_answer(learner):
                log.info("the learner answers at %s; %d hosts of actors", config.learner.reached_at, len(config.actors))
                for place in config.actors:
                    self._open(place, ACTORS, actor_words(config, place))
                self._follow(learner)
        finally:
            self._end([remote for remote in self._running if remote.command != LEARNER])
            self._end(list(self._running))
        if self._failures:
            raise type(self._failures[0])("\n".join(map(str, self._failures)))

    def _words(self, place: HostConfig, command: str, words: Sequence[str]) -> list[str]:
        return ssh_words(self._config, place, command, [*words, *self._logging])

    def _open(self, place: HostConfig, command: str, words: Sequence[str]) -> RemoteCommand:
        remote = RemoteCommand(place.host, command, self._words(place, command, words), self._events.put_nowait)
        self._running.append(remote)
        return remote

    def _wait_for_answer(self, learner: RemoteCommand) -> bool:
        """Whether the learner has answered; False if one of the two commands failed, or if it is time to stop."""
        check = self._open(self._config.learner, HEALTH, health_words(self._config))
        return self._next() is check and check.code == 0 and learner.code is None

    def _follow(self, learner: RemoteCommand) -> None:
        """Return when the learner has ended, when all actors have failed, or when it is time to stop."""
        while self._next() not in {None, learner}:
            if self._failures and self._running == [learner]:
                log.error("no actors are left, so the learner is ended too")
                return

    def _next(self, seconds: float = math.inf) -> RemoteCommand | None:
        """Wait for the next remote command that ends; None if it is time to stop, or if none ended in time."""
        deadline = Deadline(seconds)
        while not deadline.passed():
            try:
                ended = self._events.get(timeout=min(BEAT_SECONDS, deadline.remaining()))
            except queue.Empty:
                for remote in self._running:
                    remote.beat()
                continue
            if ended is not None:
                self._note_end(ended)
            return ended
        return None

    def _note_end(self, remote: RemoteCommand) -> None:
        self._running.remove(remote)
        remote.close()
        error = remote.error()
        if error is None:
            log.info("%s: %s has ended", remote.host, remote.command)
        else:
            log.error("%s", error)
            self._failures.append(error)

    def _end(self, remotes: list[RemoteCommand]) -> None:
        """Ask these remote commands to end, and wait until they have."""
        deadline = Deadline(END_SECONDS)
        for remote in remotes:
            remote.ask_to_end()
        while any(remote in self._running for remote in remotes) and not deadline.passed():
            self._next(deadline.remaining())
        for remote in remotes:
            if remote in self._running:
                self._running.remove(remote)
                remote.abandon()
                self._failures.append(
                    ChildFailedError(f"{remote.host}: {remote.command} did not end within {END_SECONDS:g} s")
                )
