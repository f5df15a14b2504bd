"""The gRPC server's part of the configuration: where it listens, whom it serves, and its limits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt

from common.errors import ConfigError
from common.settings import HomePath, Seconds, Settings, naming_setting
from common.wire.address import is_loopback, split_address
from common.wire.tls import read_authorities, read_pair
from common.wire.tokens import ACTOR_VARIABLE, ADMIN_VARIABLE, TokenSource

LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES = 1024, 256 << 20
"""The least and the largest limit that a server may have for one message."""
MESSAGE_BYTES: Final = 16 << 20
"""The most bytes of one message from an actor, unless ``push.n_buffer`` rows take more."""
MAX_GRPC_SECONDS: Final = ((1 << 31) - 1) // 1000
"""The longest time in an option of gRPC, which counts milliseconds in 31 bits: 24 days."""
CALLS_ON_CONNECTION: Final = 16
"""The most calls at one time on one connection that only one actor uses (SETTINGS_MAX_CONCURRENT_STREAMS of HTTP/2);
further ones wait. An actor has one stream, and a few short calls beside it."""
WAITING_BYTES: Final = 8 << 20
"""The most bytes that wait for each actor: a window of its batches, and an answer with a model."""
HANDSHAKE_SECONDS: Final = 10.0
"""A TLS handshake over a slow link takes one or two seconds; a longer time would serve attackers only."""

OnOutOfBounds = Literal["count", "refuse"]


def _require_treatment(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value in get_args(OnOutOfBounds) or (is_number and 0 < value < math.inf):
        return value
    raise ValueError(f"expected count, refuse or a number greater than 0, found {value!r}")


Treatment = Annotated[float | OnOutOfBounds, BeforeValidator(_require_treatment)]
"""What happens to unusual values of a column: a number replaces those that are not finite or far too large."""


class TlsConfig(Settings):
    """Certificates of the server, as PEM files; a changed file is used from the next connection on."""

    certificate: HomePath = Field(
        description="The file of the server's certificate, followed by its intermediate certificates (PEM)."
    )
    key: HomePath = Field(description="The file of the certificate's private key, without a passphrase (PEM).")
    client_ca: HomePath | None = Field(
        None,
        description="The file of the authorities that must have issued each client's certificate, for mutual TLS "
        "(PEM). null: clients need no certificate.",
    )

    @property
    def files(self) -> list[Path]:
        """The files that are named."""
        return [self.certificate, self.key, *([self.client_ca] if self.client_ca else [])]

    def check(self) -> None:
        """Check that the files can be read, and that the key belongs to the certificate.

        Raises:
            ConfigError: a file cannot be read, or the key does not belong to the certificate.
        """
        read_pair(self.certificate, self.key)
        if self.client_ca is not None:
            read_authorities(self.client_ca)


def _require_address(text: str) -> str:
    try:
        split_address(text)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("address: ")) from None
    return text


HostPort = Annotated[str, AfterValidator(_require_address)]


class ServerConfig(Settings):
    """The gRPC server on the learner host."""

    GONE: ClassVar = {
        "admin": (False, True),
        "reflection": False,
        "open_health": True,
        "max_rows": 65_536,
        "max_message_bytes": 16 << 20,
        "largest_value": 1e12,
        "limits": {
            "max_connections": None,
            "max_connection_calls": 16,
            "max_waiting_bytes": None,
            "max_calls": None,
            "max_address_calls": None,
            "max_health_calls": 32,
            "max_admin_calls": 16,
            "max_address_actors": None,
            "joins_per_second": 100.0,
            "address_joins_per_second": 50.0,
            "address_failures_per_second": 10.0,
            "handshake_seconds": 10.0,
        },
        "clip_nonfinite": {},
        "out_of_bounds": {},
    }
    INSTEAD: ClassVar = {
        "clip_nonfinite": "write its numbers as server.unusual_values",
        "out_of_bounds": "write count or refuse as server.unusual_values",
        "open_health": "remove it: health checks need no token",
        "max_message_bytes": "remove it: messages have room for a batch of push.n_buffer rows",
    }

    listen: HostPort = Field(
        "127.0.0.1:50051",
        description="The address on which the learner listens for actors, HOST:PORT; port 0 takes a free port. If "
        "nobody has named an address, and another program has the default one, the learner takes a free port.",
    )
    insecure: bool = Field(False, description="Whether the learner may listen beyond loopback without encryption.")
    tls: TlsConfig | None = Field(
        None,
        description="Certificates that encrypt all connections. Beyond loopback they are needed, unless insecure is "
        "true.",
    )
    actor_token_file: HomePath | None = Field(
        None,
        description="The file of the actors' tokens: on each line `NAME TOKEN`, or a token alone. null: the file "
        "that CROSSBORDER_TOKEN_FILE names, or the token in CROSSBORDER_TOKEN, if either is set.",
    )
    admin_token_file: HomePath | None = Field(
        None,
        description="The file of the admins' tokens, in the same format. They open all services except the actors': "
        "`learner-server status`, `ratio`, `cordon`, `drain` and `uncordon` need one. null: the file that "
        "CROSSBORDER_ADMIN_TOKEN_FILE names, or the token in CROSSBORDER_ADMIN_TOKEN, if either is set. On loopback, a "
        "learner without any tokens takes its own user and root for admins.",
    )
    max_actors: Annotated[int, Field(ge=1, le=4096)] = Field(256, description="The most actors at one time.")
    max_address_actors: PositiveInt | None = Field(
        None,
        description="The most actors with the token of one name, or with unnamed tokens from one address (IPv6: from "
        "one /64), at one time; they may share one connection. With max_actors or more, one name or address may also "
        "use all calls and joins that the learner allows; otherwise three quarters of the calls and half of the joins. "
        "null: seven eighths of max_actors, but at least 16.",
    )
    evaluating_names: list[str] | None = Field(
        None,
        description="The names of the tokens with which actors may score models (`actor-worker --evaluate`): a score "
        "decides which policy is the best, and may end the run. null: actors whose tokens have no name, and all actors "
        "of a learner without tokens.",
    )
    replay_share: Annotated[float, Field(ge=1)] | None = Field(
        4.0,
        description="Keeps one fast actor from filling the replay: its share of the rows may be this many times the "
        "mean share of the other active actors. An actor with more is slowed down to replay.capacity rows a minute. "
        "null slows no actor down.",
    )
    unusual_values: dict[str, Treatment] = Field(
        default_factory=dict,
        description="How the learner treats unusual values, by column. A number replaces infinity and values beyond "
        "1e12, its negative those below -1e12, and 0 replaces NaN; without a number, a batch with one of these values "
        "is refused. count: values outside the bounds of their space are stored, and counted in the metrics; refuse: "
        "their batch is refused. Columns without count or refuse count them if they are obs or next_obs of floats, "
        "and refuse them otherwise. Columns of info may have any finite value.",
    )
    lost_seconds: Annotated[float, Field(ge=3, le=MAX_GRPC_SECONDS)] = Field(
        30.0,
        description="Seconds of silence after which the learner closes an actor's stream, and seconds of absence "
        "after which the actor counts as lost; the actor's id is then free again.",
    )
    hung_seconds: Annotated[Seconds, Field(ge=1)] | None = Field(
        60.0,
        description="Seconds without a sign of life after which the learner kills and restarts its ingest or "
        "evaluator process, and after which training fails if one of several ranks does not answer the others. If the "
        "trainer hangs for this time, ingest logs it. It must be more than the longest opt step, checkpoint or step of "
        "an evaluation takes. null: the learner watches no process, and ranks wait for a day.",
    )
    grace_seconds: Seconds = Field(
        5.0, description="Seconds that actors have at the end of the run to hand over their last items."
    )

    @property
    def fleet(self) -> int:
        """The number of actors of which unset limits are multiples: ``max_actors``, but at least 16."""
        return max(16, self.max_actors)

    @property
    def address_actors(self) -> int:
        """The most actors from one address at one time."""
        return self.max_address_actors or max(16, self.max_actors - self.max_actors // 8)

    @property
    def may_share_address(self) -> bool:
        """Whether all actors may come from one address or with one name, such as from behind a front or a relay."""
        return (self.max_address_actors or 0) >= self.max_actors

    @property
    def connection_calls(self) -> int:
        """The most calls at one time on one connection. A relay has one connection for all of its actors."""
        return CALLS_ON_CONNECTION + (self.max_address_actors or 0)

    @property
    def handshake_seconds(self) -> float:
        """Seconds that a connection has for its handshakes, and a call for its first message."""
        return min(HANDSHAKE_SECONDS, self.lost_seconds / 3)

    def waiting_bytes(self, message_bytes: int) -> int:
        """The most bytes of unfinished messages, and of answers that are not read, over all connections.

        Two of the largest messages always fit, or an actor could never send one.

        Args:
            message_bytes: the most bytes of one message.
        """
        return max(self.fleet * min(WAITING_BYTES, message_bytes), 2 * message_bytes)

    @property
    def answers_admins(self) -> bool:
        """Whether ``AdminService`` is served: to holders of admins' tokens, or without any tokens on loopback.

        There the gate lets in this user and root only. With ``insecure`` it lets in others, so nobody is an admin.
        """
        if TokenSource.find(self.admin_token_file, ADMIN_VARIABLE) is not None:
            return True
        asks_for_tokens = TokenSource.find(self.actor_token_file, ACTOR_VARIABLE) is not None
        return not (asks_for_tokens or self.insecure) and is_loopback(split_address(self.listen)[0])

    def check(self) -> None:
        """Check that nobody on another host is let in by mistake, and that certificates and tokens can be read.

        Raises:
            ConfigError: settings contradict each other, or a file cannot be read.
        """
        host, _ = split_address(self.listen)
        actors = TokenSource.find(self.actor_token_file, ACTOR_VARIABLE)
        admins = TokenSource.find(self.admin_token_file, ADMIN_VARIABLE)
        for key, file, source in (
            ("actor_token_file", self.actor_token_file, actors),
            ("admin_token_file", self.admin_token_file, admins),
        ):
            if source is not None:
                with naming_setting(f"server.{key}" if file else ""):
                    source.read()
        if self.tls is not None:
            with naming_setting("server.tls"):
                self.tls.check()
        if self.insecure and (self.tls or actors or admins):
            raise ConfigError("server.insecure (--insecure): expected neither server.tls nor tokens beside it")
        if (actors or admins) and self.tls is None:
            raise ConfigError("server.tls: expected a certificate and key beside tokens, which are sent over TLS only")
        if admins and not actors:
            raise ConfigError("server.actor_token_file: expected tokens of actors beside those of admins, found none")
        if not (is_loopback(host) or self.insecure or (self.tls and actors)):
            needed = {"server.tls": self.tls, "server.actor_token_file": actors}
            missing = " and ".join(name for name, given in needed.items() if not given)
            raise ConfigError(
                f"server.listen: '{self.listen}' is reachable from other hosts; expected {missing} too "
                "(crossborder-certs makes certificates and tokens), or --insecure if that network is yours alone"
            )
