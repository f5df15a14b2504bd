from __future__ import annotations

import socket

import pytest

from actor.client.following import follow
from common.errors import ConfigError, RefusedError
from common.wire.endpoints import Endpoint
from common.wire.trust import Trust

TLS, PLAIN, INSECURE = Trust(ca="ca.pem"), Trust(), Trust(insecure=True)


@pytest.mark.parametrize(
    ("here", "elsewhere", "trust", "listed"),
    [
        ("127.0.0.1:1", "127.0.0.1:2", PLAIN, []),
        ("localhost:1", "[::1]:2", PLAIN, []),
        ("a:1", "b:2", TLS, []),
        ("a:1", "b:2", INSECURE, ["a", "b"]),
        ("a:1", "a:2", INSECURE, ["a"]),
    ],
)
def test_an_actor_follows_to_a_learner_that_it_trusts_as_much(
    here: str, elsewhere: str, trust: Trust, listed: list[str]
) -> None:
    assert follow(Endpoint.of(here), elsewhere, trust, listed) == Endpoint.of(elsewhere)


def test_an_actor_on_the_host_of_learners_that_listen_everywhere_stays_on_loopback() -> None:
    led = follow(Endpoint.of("127.0.0.1:1"), f"{socket.gethostname()}:2", PLAIN, [])
    assert led == Endpoint.of("127.0.0.1:2")


@pytest.mark.parametrize(
    ("here", "elsewhere", "trust", "message"),
    [
        ("127.0.0.1:1", "evil:2", PLAIN, "a learner on the actor's host may lead it only to this host"),
        ("127.0.0.1:1", "evil:2", TLS, "a learner on the actor's host may lead it only to this host"),
        ("a:1", "127.0.0.1:2", TLS, "and others to other hosts"),
        ("a:1", "b:2", INSECURE, "follows only to hosts that --learner names; name b there too"),
        ("a:1", "b\x1b[2J:2", TLS, r"found 'b\\x1b\[2J:2'"),
        ("a:1", "b" * 400 + ":2", TLS, "at most 300 characters"),
    ],
)
def test_an_actor_is_not_led_where_it_could_trust_less(here: str, elsewhere: str, trust: Trust, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        follow(Endpoint.of(here), elsewhere, trust, ["a"])


def test_a_text_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        follow(Endpoint.of("a:1"), "b", TLS, [])
