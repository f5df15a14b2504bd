"""The gRPC server's part of the configuration: where it listens, whom it serves, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from common.errors import ConfigError
from common.settings import Settings
from common.wire.address import is_loopback, split_address
from common.wire.tls import read_authorities, read_pair
from common.wire.tokens import ACTOR_VARIABLE, ADMIN_VARIABLE, TokenSource

LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES = 1024, 256 << 20
"""The least and the largest value of ``max_message_bytes``."""

OnOutOfBounds = Literal["count", "refuse"]


class TlsConfig(Settings):
    """Certificates of the server, as PEM files; a changed file is used from the next connection on."""

    certificate: Path = Field(description="The server's certificate, followed by intermediate certificates.")
    key: Path = Field(description="Its private key, not encrypted.")
    client_ca: Path | None = Field(
        None,
        description="Authorities that must have issued every client's certificate (mutual TLS); null asks clients for "
        "no certificate.",
    )


class LimitsConfig(Settings):
    """How much callers may ask for; the answer beyond it is RESOURCE_EXHAUSTED. max_actors counts as at least 16."""

    max_connections: PositiveInt | None = Field(
        None,
        description="Connections at one time; others are closed. null: two for each of max_actors.",
    )
    max_connection_calls: PositiveInt = Field(
        16, description="Calls at one time on one connection (HTTP/2's SETTINGS_MAX_CONCURRENT_STREAMS); others wait."
    )
    max_calls: PositiveInt | None = Field(
        None,
        description="Calls at one time, each of which can hold max_message_bytes in memory; null: four for each of "
        "max_actors.",
    )
    max_address_calls: PositiveInt | None = Field(
        None,
        description="Calls at one time with the token of one name, or with unnamed tokens from one address (IPv6: from "
        "one /64); null: three for each of max_actors.",
    )
    max_health_calls: PositiveInt = Field(
        32,
        description="Health checks at one time, beside the other calls. At one more, the oldest check of the address "
        "with the most checks is ended.",
    )
    max_admin_calls: PositiveInt = Field(
        16,
        description="Calls of admins at one time, beside the other calls. At one more, the oldest call of the admin "
        "with the most calls is ended.",
    )
    joins_per_second: PositiveFloat = Field(
        100.0, description="Joins per second in the long run; 2 * max_actors may come at once."
    )
    address_joins_per_second: PositiveFloat = Field(
        50.0,
        description="Joins per second with the token of one name, or with unnamed tokens from one address; max_actors "
        "may come at once.",
    )
    max_address_actors: PositiveInt | None = Field(
        None, description="Actors from one address at one time; null: seven eighths of max_actors, but at least 16."
    )
    address_failures_per_second: PositiveFloat = Field(
        10.0,
        description="Wrong tokens per second from one address that are answered UNAUTHENTICATED; ten times as many may "
        "come at once. Others are answered RESOURCE_EXHAUSTED. Calls with a valid token are not held up.",
    )
    handshake_seconds: Annotated[float, Field(ge=1)] = Field(
        10.0, description="Time that a connection has for its handshakes, and a call for its first message."
    )


class ServerConfig(Settings):
    """The gRPC server on the learner host."""

    listen: str = Field("127.0.0.1:50051", description="HOST:PORT for actors; port 0 takes a free port.")
    insecure: bool = Field(False, description="Allow an address beyond loopback although nothing is encrypted.")
    tls: TlsConfig | None = Field(None, description="Encrypts the connections; needed beyond loopback unless insecure.")
    actor_token_file: Path | None = Field(
        None,
        description="File with the tokens of actors, `NAME TOKEN` or a token alone on each line; "
        "null: CROSSBORDER_TOKEN_FILE or CROSSBORDER_TOKEN, if set.",
    )
    admin_token_file: Path | None = Field(
        None,
        description="File with the tokens of admins, for all services but that of actors, in the same format; "
        "null: CROSSBORDER_ADMIN_TOKEN_FILE or CROSSBORDER_ADMIN_TOKEN, if set.",
    )
    admin: bool = Field(
        False, description="Answer `learner-server status` and `learner-server ratio`; tokens of admins imply it."
    )
    open_health: bool = Field(True, description="Answer health checks without a token.")
    reflection: bool = Field(False, description="Let callers list the services (gRPC reflection), with an admin token.")
    max_actors: Annotated[int, Field(ge=1, le=4096)] = Field(256, description="Actors at one time.")
    max_rows: PositiveInt = Field(
        65_536,
        description="The most rows in one batch. A batch is also limited to a sixteenth of replay.capacity or to "
        "push.n_buffer rows, whichever is more.",
    )
    replay_share: Annotated[float, Field(ge=1)] | None = Field(
        4.0,
        description="How many times the mean share of the other active actors an actor may hold of the replay. Beyond "
        "it, the actor is slowed down to one replay.capacity a minute. null slows no actor down.",
    )
    max_message_bytes: Annotated[int, Field(ge=LEAST_MESSAGE_BYTES, le=MOST_MESSAGE_BYTES)] = Field(
        16 << 20, description="The most bytes of one message from an actor."
    )
    limits: LimitsConfig = Field(LimitsConfig(), description="How much callers may ask for.")
    clip_nonfinite: dict[str, PositiveFloat] = Field(
        default_factory=dict,
        description="By column, the value that replaces infinity (and with a minus sign, minus infinity); NaN becomes "
        "0. Columns that are not named here refuse all three.",
    )
    out_of_bounds: dict[str, OnOutOfBounds] = Field(
        default_factory=dict,
        description="By column, what happens to values outside the bounds of its space. count: they are counted and "
        "stored; refuse: their batch is refused. Columns that are not named here refuse; only obs and next_obs of "
        "floats count.",
    )
    lost_seconds: Annotated[float, Field(ge=3)] = Field(
        30.0,
        description="A stream that is silent for this time is closed. An actor that is away for this time is lost, and "
        "its id is free again.",
    )
    hung_seconds: Annotated[float, Field(ge=1)] | None = Field(
        60.0,
        description="An ingest process or evaluator process without a sign of life for this time is killed and started "
        "again; a hanging trainer is reported in the log of ingest. null does neither.",
    )
    grace_seconds: PositiveFloat = Field(
        5.0, description="Time that actors get at the end of the run to hand over their items."
    )

    @property
    def fleet(self) -> int:
        """The number of actors of which unset limits are multiples: ``max_actors``, but at least 16."""
        return max(16, self.max_actors)

    @property
    def address_actors(self) -> int:
        """The most actors from one address at one time."""
        return self.limits.max_address_actors or max(16, self.max_actors - self.max_actors // 8)

    @property
    def answers_admins(self) -> bool:
        """Whether ``AdminService`` is served."""
        return self.admin or TokenSource.find(self.admin_token_file, ADMIN_VARIABLE) is not None

    def check(self) -> None:
        """Check that nobody on another host is let in by mistake, and that certificates and tokens can be read.

        Raises:
            ConfigError: settings contradict each other, or a file cannot be read.
        """
        host, _ = split_address(self.listen)
        actors = TokenSource.find(self.actor_token_file, ACTOR_VARIABLE)
        admins = TokenSource.find(self.admin_token_file, ADMIN_VARIABLE)
        for source in (actors, admins):
            if source is not None:
                source.read()
        if self.tls is not None:
            read_pair(self.tls.certificate, self.tls.key)
            if self.tls.client_ca is not None:
                read_authorities(self.tls.client_ca)
        if self.insecure and (self.tls or actors or admins):
            raise ConfigError("server.insecure (--insecure): expected neither server.tls nor tokens beside it")
        if (actors or admins) and self.tls is None:
            raise ConfigError("server.tls: expected a certificate and key beside tokens, which are sent over TLS only")
        if self.admin and actors and not admins:
            raise ConfigError("server.admin_token_file: expected tokens of admins for server.admin, found none")
        if admins and not actors:
            raise ConfigError("server.actor_token_file: expected tokens of actors beside those of admins, found none")
        if not (is_loopback(host) or self.insecure or (self.tls and actors)):
            raise ConfigError(
                f"server.listen: '{self.listen}' is reachable from other hosts; expected server.tls and "
                "server.actor_token_file (crossborder-certs makes both), or --insecure if that network is yours alone"
            )
