"""The settings of an acting service: where it listens, whom it serves, and its limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from common.config.run_config import MAX_SEED
from common.config.server_config import LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES, HostPort, ServerConfig, TlsConfig
from common.errors import ConfigError
from common.settings import HomePath, Seconds, Settings, naming_setting
from common.wire.address import is_loopback, join_address, split_address
from common.wire.tokens import CLIENT_VARIABLE, TokenSource


class ServingConfig(Settings):
    """An acting service."""

    listen: HostPort = Field(
        "127.0.0.1:50060",
        description="The address on which the service listens for clients, HOST:PORT; port 0 takes a free port.",
    )
    websocket: HostPort | None = Field(
        None,
        description="The address on which the service listens for clients that speak WebSocket, HOST:PORT. null: "
        "nowhere.",
    )
    origins: list[str] = Field(
        [],
        description="The web pages whose scripts may connect by WebSocket, as in a browser's Origin header: "
        "`https://game.example`. Programs that are no browser send no Origin and need no entry.",
    )
    insecure: bool = Field(False, description="Whether the service may listen beyond loopback without encryption.")
    tls: TlsConfig | None = Field(
        None,
        description="Certificates that encrypt all connections. Beyond loopback they are needed, unless insecure is "
        "true.",
    )
    token_file: HomePath | None = Field(
        None,
        description="The file of the clients' tokens: on each line `NAME TOKEN`, or a token alone. null: the file "
        "that CROSSBORDER_CLIENT_TOKEN_FILE names, or the token in CROSSBORDER_CLIENT_TOKEN, if either is set.",
    )
    metrics: HostPort | None = Field(
        None,
        description="The address on which the service offers /metrics to Prometheus, /healthz to load balancers, and "
        "at / a page for people on its host, HOST:PORT. null: nowhere.",
    )
    audit_file: HomePath | None = Field(
        None, description="The file of the audit log. null: its events are lines of the process's log."
    )
    explore: bool = Field(False, description="Whether the policy explores, as in training; otherwise it is greedy.")
    device: str = Field(
        "cpu", description="Where the policy computes, as in trainer.device: cpu, cuda, or cuda and a number."
    )
    record: HomePath | None = Field(
        None,
        description="The directory into which every whole episode is written, as a dataset for offline-train and "
        "replay.sources. null: nothing is recorded.",
    )
    seed: NonNegativeInt = Field(
        0, le=MAX_SEED, description="The seed of the first lane; each further lane has the next number."
    )
    max_sessions: Annotated[int, Field(ge=1, le=4096)] = Field(256, description="The most sessions at one time.")
    max_lanes: Annotated[int, Field(ge=1, le=65536)] = Field(
        4096, description="The most lanes of all sessions at one time."
    )
    max_batch: PositiveInt = Field(
        1024, description="The most lanes in one forward pass; one step of one session may have more."
    )
    max_wait_ms: Annotated[float, Field(ge=0, le=1000)] = Field(
        0.0,
        description="The longest time in milliseconds that an observation waits for those of other lanes before the "
        "policy chooses. It waits no longer than until all connected lanes wait. Even with 0, observations that come "
        "while the policy computes are in one batch afterwards.",
    )
    max_message_bytes: Annotated[int, Field(ge=LEAST_MESSAGE_BYTES, le=MOST_MESSAGE_BYTES)] = Field(
        4 << 20, description="The most bytes of one message from a client."
    )
    resume_seconds: Annotated[float, Field(ge=0, le=86400)] = Field(
        60.0, description="Seconds for which the service keeps the session of a broken connection."
    )
    silence_seconds: Seconds = Field(600.0, description="Seconds of silence after which the service ends a session.")

    def places_to_listen(self) -> list[tuple[str, str, int]]:
        """Setting, host and port of each place at which the service listens."""
        places = {"listen": self.listen, "websocket": self.websocket, "metrics": self.metrics}
        return [(setting, *split_address(address)) for setting, address in places.items() if address is not None]

    def check(self) -> None:
        """Check that nobody on another host is let in by mistake, and that certificates and tokens can be read.

        Raises:
            ConfigError: settings contradict each other, or a file cannot be read.
        """
        places = self.places_to_listen()
        named = [(host, port) for _, host, port in places if port]
        if len({*named}) < len(named):
            found = {setting: join_address(host, port) for setting, host, port in places}
            raise ConfigError(f"{', '.join(found)}: expected another port for each, found {', '.join(found.values())}")
        tokens = self.tokens()
        if tokens is not None:
            with naming_setting("token_file" if self.token_file else ""):
                tokens.read()
        if self.tls is not None:
            with naming_setting("tls"):
                self.tls.check()
        if self.insecure and (self.tls or tokens):
            raise ConfigError("insecure (--listen-insecure): expected neither tls nor tokens beside it")
        if tokens and self.tls is None:
            raise ConfigError("tls: expected a certificate and key beside tokens, which are sent over TLS only")
        missing = " and ".join(name for name, given in {"tls": self.tls, "token_file": tokens}.items() if not given)
        for setting, host, port in places:
            if setting != "metrics" and missing and not self.insecure and not is_loopback(host):
                raise ConfigError(
                    f"{setting}: '{join_address(host, port)}' is reachable from other hosts; expected {missing} too "
                    "(crossborder-certs makes certificates and tokens), or --listen-insecure if that network is yours "
                    "alone"
                )

    def tokens(self) -> TokenSource | None:
        """The place of the clients' tokens; None: no client needs one."""
        return TokenSource.find(self.token_file, CLIENT_VARIABLE)

    def as_server(self) -> ServerConfig:
        """The settings of a gRPC server that has as much room as these sessions need."""
        return ServerConfig(
            listen=self.listen,
            tls=self.tls,
            max_actors=self.max_sessions,
            max_address_actors=self.max_sessions,  # A program may have all of its sessions on one connection.
        )
