"""``actor-worker --check``: would an actor on this host work? One line for each thing that can be wrong."""

from __future__ import annotations

import contextlib
import ssl
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, TextIO

from actor.client.assembly import require_fitting, shapes_of
from actor.client.join_answer import read_config
from actor.client.probe import CheckAnswer, Probe, connect, inspect_certificate, resolve
from common.config.actor_config import ActorConfig
from common.data import Schema
from common.errors import (
    AuthenticationError,
    ConfigError,
    CrossborderError,
    ProtocolMismatchError,
    RefusedError,
    naming_failed_part,
)
from common.process.command import Check, run_checks
from common.wire.address import split_address
from common.wire.owners import is_own_host
from common.wire.trust import Trust

QUESTIONS: Final = 20
CLOCK_SECONDS: Final = 5.0
"""Clocks that are further apart count as wrong: certificates begin too early or late, logs show events out of order."""


class Visit(ABC):
    """Where somebody listens. Each public method but ``connect`` is a check: it returns a finding, or raises."""

    def __init__(self, address: str, trust: Trust) -> None:
        self._address, self._trust = address, trust
        self._host, self._port = split_address(address)

    def name(self) -> str:
        return f"'{self._host}' is {', '.join(resolve(self._host, self._port))}"

    def port(self) -> str:
        with connect(self._host, self._port) as connection:
            return f"{self._port} is open, seen from {connection.getsockname()[0]}"

    def tls(self) -> str:
        self._trust.require_own_learner(self._address)
        if not self._trust.uses_tls(self._host):
            return "not used: " + ("--insecure" if self._trust.insecure else f"the {self._trust.PEER} is on this host")
        try:
            return inspect_certificate(self._host, self._port, self._trust)
        except AuthenticationError as error:
            # Python looks closer than gRPC, by which an actor connects, such as at an address among the DNS names.
            if not isinstance(error.__cause__, ssl.SSLCertVerificationError) or not self._connects():
                raise
            return f"an actor accepts the certificate, though other programs may refuse it: {error}"

    def _connects(self) -> bool:
        """Whether who listens answers on an actor's own connection."""
        try:
            self.connect()
        except ProtocolMismatchError:
            return True
        except CrossborderError:
            return False
        return True

    @abstractmethod
    def connect(self) -> None:
        """Ask on an actor's own connection.

        Raises:
            CrossborderError: there is no answer.
        """


class LearnerVisit(Visit):
    """One visit to a learner. Each public method is a check: it returns a finding for the user, or raises.

    The checks after ``protocol`` use the answer that it gets.
    """

    def __init__(
        self,
        address: str,
        trust: Trust,
        probe: Probe,
        *,
        evaluates: bool = False,
        actor_id: int | None = None,
        has_envs: bool = True,
    ) -> None:
        super().__init__(address, trust)
        self._probe = probe
        self._evaluates, self._actor_id, self._has_envs = evaluates, actor_id, has_envs and not evaluates
        self._answers: list[CheckAnswer] = []
        self._shapes: dict[str, tuple[int, ...]] | None = None
        """Of the agent's tensors; None unless ``schema`` has built the agent."""

    def connect(self) -> None:
        """See ``Visit``."""
        self._probe.ask()

    def answer(self) -> str:
        with contextlib.suppress(AuthenticationError, ProtocolMismatchError):  # The next two checks report these.
            self._probe.ask()
        return "it speaks gRPC"

    def token(self) -> str:
        with contextlib.suppress(ProtocolMismatchError):  # The next check, ``protocol``, reports this error.
            self._probe.ask()
        is_sent = self._trust.uses_tls(self._host) and self._trust.tokens() is not None
        return "accepted" if is_sent else "none, and none is asked for"

    def protocol(self) -> str:
        self._answers.append(self._probe.ask())
        return f"version {self._answers[0].found.protocol_version} on both sides"

    def room(self) -> str:
        answer = self._answers[0].found
        if self._evaluates and (found := read_config(answer.config_json).evaluator.process) != "actor":
            raise RefusedError(
                f"--evaluate: expected a learner with evaluator.process: actor, found {found}: no actor may score"
            )
        if answer.actors >= answer.max_actors:
            raise RefusedError(f"expected a place for one more actor, found all {answer.max_actors} taken")
        if self._actor_id is not None and self._actor_id >= answer.max_actors:
            raise RefusedError(f"--id: expected less than {answer.max_actors}, found {self._actor_id}")
        return f"{answer.actors} of {answer.max_actors} places are taken"

    def schema(self) -> str:
        # This takes seconds to import, which nobody needs whom the learner does not answer.
        from actor.allowance import check_names

        answer = self._answers[0]
        config = read_config(answer.found.config_json)
        if self._actor_id is not None and not self._evaluates:
            config = config.model_copy(update={"env": config.env.for_actor(self._actor_id)})
        is_own = is_own_host(self._address) and not answer.found.relayed
        check_names(config, self._trust, is_own_host=is_own, evaluates=self._evaluates)
        with naming_failed_part("the parts cannot be built here"):
            self._build(config, answer.schema)
        return f"{config.env.target} and {config.agent.target} make {', '.join(map(str, answer.schema.columns))}"

    def _build(self, config: ActorConfig, schema: Schema) -> None:
        """Build the parts of the actor, and close them."""
        from actor.worker import build_agreed_parts
        from common.evaluation import open_evaluator
        from common.lanes.watched_envs import Watch

        with ExitStack() as stack:
            parts = build_agreed_parts(config, schema, seed=0, epsilon=0.0, n_envs=None if self._has_envs else 0)
            stack.callback(parts.close)
            self._shapes = shapes_of(parts.agent.model_info())
            if self._evaluates:
                open_evaluator(config, parts.frames, Watch(threading.Event()), stack)

    def round_trip(self) -> str:
        self._answers.extend(self._probe.ask() for _ in range(QUESTIONS))
        median = statistics.median(answer.round_trip for answer in self._answers[1:])
        return f"{1e3 * median:.2f} ms, median of {QUESTIONS}"

    def clock(self) -> str:
        answer = min(self._answers, key=lambda answer: answer.round_trip)
        offset, doubt = answer.clock_offset, answer.round_trip / 2
        found = f"the learner's is {abs(offset):.3f} s {'ahead' if offset > 0 else 'behind'}, give or take {doubt:.3f}"
        if abs(offset) - doubt > CLOCK_SECONDS:
            raise ConfigError(f"expected the same time within {CLOCK_SECONDS:g} s, but {found}")
        return found

    def throughput(self) -> str:
        answer = self._answers[0]
        rate, row = self._probe.upload(answer.found.limits.max_message_bytes), answer.schema.row_bytes
        return f"{rate / 1e6:.1f} MB/s up, or {rate / row:,.0f} rows/s of {row} bytes"

    def model(self) -> str:
        file, seconds = self._probe.download()
        found = f"the newest, {len(file.data) / 1e6:.3f} MB, came down in {1e3 * seconds:.1f} ms"
        if self._shapes is None:
            return found
        require_fitting(file.model, self._shapes)
        return f"{found} and fits the agent here"


CHECKS: Final[tuple[Check[LearnerVisit], ...]] = (
    Check("name", LearnerVisit.name, "correct --learner, or let DNS or /etc/hosts know the name here", is_vital=True),
    Check(
        "port",
        LearnerVisit.port,
        "start the learner, beyond its own host with --listen 0.0.0.0:PORT; let the firewall through",
        is_vital=True,
    ),
    Check(
        "TLS",
        LearnerVisit.tls,
        "--ca: the authority that signed the learner's certificate; --learner: a name in that certificate; if it has "
        "expired: crossborder-certs --renew",
        is_vital=True,
    ),
    Check(
        "answer",
        LearnerVisit.answer,
        "--learner: the learner's own port (server.listen), and no other program's; --ca, if the learner speaks TLS",
        is_vital=True,
    ),
    Check("token", LearnerVisit.token, "--token-file: a token of the learner's own file", is_vital=True),
    Check("protocol", LearnerVisit.protocol, "install the same crossborder release on both hosts", is_vital=True),
    Check("room", LearnerVisit.room, "stop other actors, or raise server.max_actors"),
    Check(
        "schema",
        LearnerVisit.schema,
        "install the code that the learner names here too, in the same version, and --allow it if you trust it; "
        "an actor in another language needs neither",
    ),
    Check("round trip", LearnerVisit.round_trip, "look at the network: the learner does not answer in time"),
    Check("clock", LearnerVisit.clock, "keep both clocks by NTP (timedatectl set-ntp true)"),
    Check("throughput", LearnerVisit.throughput, "look at the network: messages of 1 MiB do not get through in time"),
    Check(
        "model",
        LearnerVisit.model,
        "install the same code on both hosts, if it does not fit; else look at the network",
    ),
)


def examine(
    address: str,
    trust: Trust,
    out: TextIO,
    clock: Callable[[], float] = time.time,
    *,
    evaluates: bool = False,
    actor_id: int | None = None,
    has_envs: bool = True,
) -> None:
    """Run all checks without joining; write a line for each at once, and advice below those that fail.

    Args:
        address: the learner's HOST:PORT.
        trust: the same as an actor's.
        out: takes the lines.
        clock: Unix seconds, of this host.
        evaluates: whether the actor would score candidates.
        actor_id: that the actor would ask for.
        has_envs: whether the actor would have its own environments; an acting service has none.

    Raises:
        ConfigError: a file of ``trust`` cannot be read.
        CrossborderError: the error of the first check that failed.
    """
    with closing(Probe(address, trust, clock, actor_id)) as probe:
        visit = LearnerVisit(address, trust, probe, evaluates=evaluates, actor_id=actor_id, has_envs=has_envs)
        run_checks(CHECKS, visit, out)


def examine_all(addresses: Sequence[str], trust: Trust, out: TextIO, **options: Any) -> None:
    """``examine`` each of a learner's addresses with these options, under a heading if there are several.

    Raises:
        CrossborderError: the error of the first address that failed.
    """
    failures: dict[str, CrossborderError] = {}
    for address in addresses:
        if len(addresses) > 1:
            out.write(f"{address}\n")
        try:
            examine(address, trust, out, **options)
        except CrossborderError as error:
            failures[address] = error
    if failures:
        if len(addresses) > 1:
            out.write(f"{len(failures)} of {len(addresses)} addresses failed: {', '.join(failures)}\n")
        raise next(iter(failures.values()))
