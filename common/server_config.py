"""The gRPC server's part of the configuration: where it listens, whom it lets in, and how much it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from common.address import is_loopback, split_address
from common.errors import ConfigError
from common.settings import Settings
from common.tls import read_authorities, read_pair
from common.tokens import ACTOR_VARIABLE, ADMIN_VARIABLE, Tokens


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
        None, description="Those from one address (IPv6: one /64); null: three for each of max_actors."
    )
    max_health_calls: PositiveInt = Field(
        32, description="Health checks at one time, beside the other calls; a quarter of them from one address."
    )
    joins_per_second: PositiveFloat = Field(100.0, description="Joins, after as many as 2 * max_actors at once.")
    address_joins_per_second: PositiveFloat = Field(
        50.0, description="Joins from one address, after as many as max_actors at once."
    )
    address_failures_per_second: PositiveFloat = Field(
        10.0,
        description="Wrong tokens from one address, after ten times as many at once; then none of its calls is heard.",
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
        None, description="Tokens of actors, one a line; null: CROSSBORDER_TOKEN_FILE or CROSSBORDER_TOKEN, if set."
    )
    admin_token_file: Path | None = Field(
        None,
        description="Tokens for all but the actors' service; null: CROSSBORDER_ADMIN_TOKEN_FILE or _TOKEN, if set.",
    )
    admin: bool = Field(
        False, description="Answer `learner-server status` and `ratio`; admin tokens, if there are any, imply it."
    )
    open_health: bool = Field(True, description="Answer health checks without a token.")
    reflection: bool = Field(False, description="Let callers list the services (gRPC reflection), with an admin token.")
    max_actors: Annotated[int, Field(ge=1, le=4096)] = Field(256, description="Actors at one time.")
    max_rows: PositiveInt = Field(65_536, description="Rows in one batch, at most.")
    max_message_bytes: Annotated[int, Field(ge=1024, le=256 << 20)] = Field(
        16 << 20, description="Bytes of one message from an actor, at most."
    )
    limits: LimitsConfig = Field(LimitsConfig(), description="How much callers may ask for.")
    clip_nonfinite: dict[str, PositiveFloat] = Field(
        default_factory=dict,
        description="By column, what infinity becomes, with its sign, and NaN becomes 0; other columns refuse both.",
    )
    lost_seconds: Annotated[float, Field(ge=3)] = Field(
        30.0, description="A stream silent for so long is closed; an actor away for so long is lost, its id free again."
    )
    grace_seconds: PositiveFloat = Field(5.0, description="Time actors get at the end to hand over what they have.")

    @property
    def fleet(self) -> int:
        """What limits that are left open are multiples of: ``max_actors``, and 16 at least."""
        return max(16, self.max_actors)

    @property
    def answers_admins(self) -> bool:
        """Whether ``AdminService`` is served."""
        return self.admin or Tokens.find(self.admin_token_file, ADMIN_VARIABLE) is not None

    def check(self) -> None:
        """Check that nobody beyond this host is let in by mistake, and that files can be read.

        Raises:
            ConfigError: naming what contradicts what.
        """
        host, _ = split_address(self.listen)
        actors = Tokens.find(self.actor_token_file, ACTOR_VARIABLE)
        admins = Tokens.find(self.admin_token_file, ADMIN_VARIABLE)
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
