from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from common.errors import AuthenticationError, ConfigError
from common.process.command import Parser
from common.wire.trust import Trust, add_learner_options, read_trust
from tests.conftest import Command
from tests.users import NOBODY, as_nobody, needs_root


@pytest.mark.parametrize(
    ("host", "trust", "encrypted"),
    [
        ("127.0.0.1", {}, False),
        ("gpu-host", {}, True),
        ("gpu-host", {"insecure": True}, False),
        ("localhost", {"ca": "ca.pem"}, True),
        ("localhost", {"token_file": "token"}, True),
    ],
)
def test_tls_is_spoken_to_other_hosts_and_wherever_a_file_is_given(
    host: str, trust: dict[str, Any], encrypted: bool
) -> None:
    assert Trust(**trust).uses_tls(host) is encrypted


@pytest.mark.parametrize(
    ("trust", "message"),
    [
        ({"insecure": True, "ca": "ca.pem"}, "--insecure: expected none of ca beside it"),
        ({"insecure": True, "token_file": "t"}, "--insecure: expected none of token_file beside it"),
        ({"certificate": "c.pem"}, "--certificate and --key: expected both or neither"),
    ],
)
@pytest.mark.parametrize("host", ["gpu-host", "127.0.0.1"])
def test_settings_that_contradict_each_other_are_refused(host: str, trust: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trust(**trust).uses_tls(host)


def test_the_command_refuses_contradicting_options(start: Callable[..., Command]) -> None:
    worker = start("actor-worker", "--learner", "gpu-host.invalid:1", "--insecure", "--ca", "ca.pem")
    assert worker.wait() == 2
    assert "actor-worker: --insecure: expected none of ca beside it" in worker.output()


@pytest.mark.parametrize(
    ("is_own_host", "allow", "anything"),
    [
        (True, (), True),
        (True, ("mine",), False),
        (False, (), False),
        (False, ("mine",), False),
        (False, ("a", "any"), True),
    ],
)
def test_only_a_learner_on_this_host_may_name_any_code_by_default(
    allow: tuple[str, ...], *, is_own_host: bool, anything: bool
) -> None:
    assert Trust(allow=allow).allows_anything(is_own_host=is_own_host) is anything


@needs_root
def test_another_users_learner_on_this_host_is_joined_only_as_one_on_another_host() -> None:
    with as_nobody():
        server = socket.create_server(("127.0.0.1", 0))
    with closing(server):
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(AuthenticationError, match=f"found one of uid {NOBODY}; .* use TLS"):
            Trust().require_own_learner(address)
        Trust(insecure=True).require_own_learner(address)
        Trust(ca=Path("ca.pem")).require_own_learner(address)


def read(*options: str) -> Trust:
    """The trust that a command line describes."""
    parser = Parser("test", "A command.", "test")
    add_learner_options(parser, "the caller")
    return read_trust(Trust, parser.parse_args(options))


def test_trust_is_read_from_the_options_of_a_command() -> None:
    assert read("--learner", "gpu-host:1", "--ca", "ca.pem", "--token-file", "t") == Trust(
        ca=Path("ca.pem"),
        token_file=Path("t"),
    )
    assert read("--learner", "gpu-host:1", "--insecure") == Trust(insecure=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--learner", "gpu-host"], "address: expected HOST:PORT"),
        (["--learner", "gpu-host:1", "--insecure", "--ca", "ca.pem"], "--insecure: expected none of ca beside it"),
    ],
)
def test_options_that_name_no_learner_or_contradict_each_other_are_refused(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(*options)
