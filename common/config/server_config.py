"""The gRPC server's part of the configuration: where it listens, whom it lets in, and how much it takes."""

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
"""What ``max_message_bytes`` may be."""

OnOutOfBounds = Literal["count", "refuse"]


class TlsConfig(Settings):
    """Certificates of the server, PEM files; changed ones are used from the next connection on."""

    certificate: Path = Field(description="The server's certificate, followed by intermediate ones.")
    key: Path = Field(description="Its private key, not encrypted.")
    client_ca: Path | None = Field(
        None,
        description="Authorities that every actor's certificate must descend from (mutual TLS); null asks for none.",
    )


class LimitsConfig(Settings):
    """How much callers may ask for; beyond it: RESOURCE_EXHAUSTED. For these, max_actors counts as 16 at least."""

    max_connections: PositiveInt | None = Field(
        None,
        description="Connections at one time, others are closed; null: two for each of max_actors.",
    )
    max_connection_calls: PositiveInt = Field(
        16, description="Calls at one time on one connection (HTTP/2's SETTINGS_MAX_CONCURRENT_STREAMS); others wait."
    )
    max_calls: PositiveInt | None = Field(
        None,
        description="Calls at one time, of which each can hold max_message_bytes; null: four for each of max_actors.",
    )
    max_address_calls: PositiveInt | None = Field(
        None,
        description="Those with one named token; without a name, from one address (IPv6: one /64); "
        "null: three for each of max_actors.",
    )
    max_health_calls: PositiveInt = Field(
        32,
        description="Health checks at one time, beside the other calls; one more ends the oldest of the address that "
        "has most.",
    )
    max_admin_calls: PositiveInt = Field(
        16,
        description="Calls of admins at one time, beside the other calls; one more ends the oldest of the admin who "
        "has most.",
    )
    joins_per_second: PositiveFloat = Field(100.0, description="Joins, after as many as 2 * max_actors at once.")
    address_joins_per_second: PositiveFloat = Field(
        50.0,
        description="Joins with one named token; without a name, from one address; max_actors of them at once.",
    )
    max_address_actors: PositiveInt | None = Field(
        None, description="Actors from one address at one time; null: seven eighths of max_actors, and 16 at least."
    )
    address_failures_per_second: PositiveFloat = Field(
        10.0,
        description="Wrong tokens from one address that are answered UNAUTHENTICATED, after ten times as many at once; "
        "others are RESOURCE_EXHAUSTED. Calls with a valid token are not held up.",
    )
    handshake_seconds: Annotated[float, Field(ge=1)] = Field(
        10.0, description="Time that a connection has for its handshakes, and a call for its first message."
    )


class ServerConfig(Settings):
    """The gRPC server on the learner host."""

    listen: str = Field("127.0.0.1:50051", description="HOST:PORT for actors; port 0 takes a free one.")
    insecure: bool = Field(False, description="Allow an address beyond loopback although nothing is encrypted.")
    tls: TlsConfig | None = Field(None, description="Encrypts the wire; needed beyond loopback unless insecure.")
    actor_token_file: Path | None = Field(
        None,
        description="Tokens of actors, `NAME TOKEN` or a token alone on each line; "
        "null: CROSSBORDER_TOKEN_FILE or CROSSBORDER_TOKEN, if set.",
    )
    admin_token_file: Path | None = Field(
        None,
        description="Tokens for all but the actors' service, in the same format; "
        "null: CROSSBORDER_ADMIN_TOKEN_FILE or _TOKEN, if set.",
    )
    admin: bool = Field(
        False, description="Answer `learner-server status` and `ratio`; admin tokens, if there are any, imply it."
    )
    open_health: bool = Field(True, description="Answer health checks without a token.")
    reflection: bool = Field(False, description="Let callers list the services (gRPC reflection), with an admin token.")
    max_actors: Annotated[int, Field(ge=1, le=4096)] = Field(256, description="Actors at one time.")
    max_rows: PositiveInt = Field(
        65_536,
        description="Rows in one batch, at most; nor more than a sixteenth of replay.capacity or push.n_buffer, "
        "whichever is larger.",
    )
    replay_share: Annotated[float, Field(ge=1)] | None = Field(
        4.0,
        description="Multiple of the other active actors' mean share of the replay that an actor may hold; beyond it, "
        "the actor is slowed down to one replay.capacity a minute. null slows nobody down.",
    )
    max_message_bytes: Annotated[int, Field(ge=LEAST_MESSAGE_BYTES, le=MOST_MESSAGE_BYTES)] = Field(
        16 << 20, description="Bytes of one message from an actor, at most."
    )
    limits: LimitsConfig = Field(LimitsConfig(), description="How much callers may ask for.")
    clip_nonfinite: dict[str, PositiveFloat] = Field(
        default_factory=dict,
        description="By column, what infinity becomes, with its sign, and NaN becomes 0; other columns refuse both.",
    )
    out_of_bounds: dict[str, OnOutOfBounds] = Field(
        default_factory=dict,
        description="By column, what happens to values outside the bounds of its space. count: they are counted and "
        "stored; refuse: their batch is refused. Columns not named here refuse, but obs and next_obs of floats count.",
    )
    lost_seconds: Annotated[float, Field(ge=3)] = Field(
        30.0, description="A stream silent for so long is closed; an actor away for so long is lost, its id free again."
    )
    hung_seconds: Annotated[float, Field(ge=1)] | None = Field(
        60.0,
        description="Ingest or an evaluator's process without a sign of life for this long is killed and started "
        "again; a trainer is reported in ingest's log; null lets them hang.",
    )
    grace_seconds: PositiveFloat = Field(5.0, description="Time actors get at the end to hand over what they have.")

    @property
    def fleet(self) -> int:
        """What limits that are left open are multiples of: ``max_actors``, and 16 at least."""
        return max(16, self.max_actors)

    @property
    def address_actors(self) -> int:
        """Actors from one address at one time."""
        return self.limits.max_address_actors or max(16, self.max_actors - self.max_actors // 8)

    @property
    def answers_admins(self) -> bool:
        """Whether ``AdminService`` is served."""
        return self.admin or TokenSource.find(self.admin_token_file, ADMIN_VARIABLE) is not None

    def check(self) -> None:
        """Check that nobody beyond this host is let in by mistake, and that files can be read.

        Raises:
            ConfigError: naming what contradicts what.
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
