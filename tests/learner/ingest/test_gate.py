from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from common.config.server_config import ServerConfig
from common.errors import ConfigError
from common.wire.address import peer_address
from common.wire.tokens import UNNAMED, TokenSource, authorization
from learner.ingest.gate import (
    ACTOR_METHODS,
    CLIENT_METHODS,
    HEALTH_METHODS,
    SETTLE_SECONDS,
    Caller,
    Gate,
    KnownTokens,
    Role,
    digest_of,
)
from learner.ingest.refusals import OtherUserError, TokenReplacedError, UnauthenticatedError
from tests.clocks import Clock
from tests.security.conftest import write

ALICES, BOBS = "alices-secret-of-all", "bobs-secret-of-all-time"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens", f"alice {ALICES}", f"bob {BOBS}")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(path: Path, clock: Clock) -> KnownTokens:
    return KnownTokens(TokenSource(f"token file {path}", path), clock)


def names(known: KnownTokens) -> list[str | None]:
    return [known.name_of(digest_of(secret)) for secret in (ALICES, BOBS)]


@pytest.mark.parametrize("given", ["", ALICES[:-1], ALICES + "x", f"alice {ALICES}", "alice", "fürst-token-of-all"])
def test_callers_are_known_by_their_tokens_and_by_nothing_else(known: KnownTokens, given: str) -> None:
    assert names(known) == ["alice", "bob"]
    assert known.name_of(digest_of(given)) is None


def test_a_token_that_is_taken_out_is_refused_at_once(known: KnownTokens, path: Path) -> None:
    write(path, f"bob {BOBS}")
    assert names(known) == [None, "bob"]


@pytest.mark.parametrize("content", [None, "", "\n \n"])
def test_an_empty_or_missing_file_refuses_everybody_from_then_on(
    known: KnownTokens, path: Path, clock: Clock, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    names(known)
    clock.now += SETTLE_SECONDS
    assert names(known) == [None, None]
    assert "it holds no token, so every caller is refused until it does" in caplog.text
    write(path, f"alice {ALICES}")
    assert names(known) == ["alice", None]


def test_an_editor_that_empties_the_file_for_a_moment_throws_nobody_out(
    known: KnownTokens, path: Path, clock: Clock
) -> None:
    path.write_text("")
    clock.now += SETTLE_SECONDS / 2
    assert names(known) == ["alice", "bob"]
    path.write_text(f"alice {ALICES}\n")
    assert names(known) == ["alice", None]
    clock.now += SETTLE_SECONDS
    assert names(known) == ["alice", None]


def test_a_mistake_in_one_line_leaves_the_others_valid_and_is_logged(
    known: KnownTokens, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, "carol short", f"bob {BOBS}")
    assert names(known) == [None, "bob"]
    assert "line 1: expected a token of 16 or more printable ASCII characters, found 5" in caplog.text


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("ipv4:10.0.0.5:50123", "10.0.0.5"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:50123", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:9:9:9:9%5D:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.5%5D:50123", "10.0.0.5"),
        ("ipv6:%5Bfe80::1%25eth0%5D:50123", "fe80::/64"),
    ],
)
def test_ports_and_the_lower_half_of_ipv6_do_not_make_another_address(name: str, address: str) -> None:
    assert peer_address(name) == address


PEER = "ipv4:10.0.0.5:50123"
JOIN, CHECK, STATUS = f"{ACTOR_METHODS}Join", f"{HEALTH_METHODS}Check", "/crossborder.v1.AdminService/Status"


@pytest.fixture
def gate(known: KnownTokens) -> Gate:
    """Lets in actors with the tokens of the file, and health checks of anyone."""
    return Gate({Role.ACTOR: known})


def test_without_tokens_every_call_is_let_in() -> None:
    assert Gate({}).identify(STATUS, [], PEER) == Caller(STATUS, PEER)


def test_without_tokens_an_order_is_refused_if_nothing_tells_whose_it_is() -> None:
    gate = Gate({})
    gate.port = 50051
    asyncio.run(gate.require_own_user(Caller(JOIN, PEER)))
    with pytest.raises(OtherUserError, match="found one whose user Linux does not tell"):
        asyncio.run(gate.require_own_user(Caller(STATUS, PEER)))


def test_a_caller_has_the_role_and_the_name_of_its_token(gate: Gate) -> None:
    caller = gate.identify(JOIN, [authorization(ALICES)], PEER)
    assert (caller.role, caller.name, caller.account) == (Role.ACTOR, "alice", "alice")
    assert gate.objection(caller) is None


@pytest.mark.parametrize(("method", "token"), [(JOIN, "wrong"), (JOIN, ""), (STATUS, ALICES)])
def test_a_call_without_a_token_of_the_right_role_is_refused(gate: Gate, method: str, token: str) -> None:
    with pytest.raises(UnauthenticatedError, match="not authenticated"):
        gate.identify(method, [authorization(token)] if token else [], PEER)


def test_a_client_of_an_acting_service_is_no_actor_and_an_actor_is_no_client(gate: Gate, known: KnownTokens) -> None:
    clients = Gate({Role.CLIENT: known})
    act = f"{CLIENT_METHODS}Act"
    assert clients.identify(act, [authorization(ALICES)], PEER).role is Role.CLIENT
    for asked, method in ((clients, JOIN), (clients, STATUS), (gate, act)):
        with pytest.raises(UnauthenticatedError):
            asked.identify(method, [authorization(ALICES)], PEER)


def test_health_checks_need_no_token(gate: Gate) -> None:
    assert gate.identify(CHECK, [], PEER).role is Role.ANYONE


def test_an_open_call_must_end_when_its_token_is_taken_out_and_come_back_when_it_is_replaced(
    gate: Gate, path: Path
) -> None:
    alice, bob = (gate.identify(JOIN, [authorization(token)], PEER) for token in (ALICES, BOBS))
    write(path, f"alice {ALICES}-and-newer")
    assert gate.names() == {Role.ACTOR: {"alice"}}
    assert isinstance(gate.objection(alice), TokenReplacedError)
    assert isinstance(gate.objection(bob), UnauthenticatedError)


@pytest.mark.parametrize("name", ["", UNNAMED])
def test_a_caller_without_a_name_is_counted_by_its_address(name: str) -> None:
    assert Caller(JOIN, PEER, name=name).account == "10.0.0.5"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_secret_under_two_names_is_the_token_of_neither(
    known: KnownTokens, path: Path, is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"alice {ALICES}", f"bob {BOBS}"]
    write(path, *([f"eve {ALICES}", *lines] if is_first else [*lines, f"eve {ALICES}"]))
    assert names(known) == [None, "bob"]
    assert f"expected another token than that of '{'eve' if is_first else 'alice'}', found the same" in caplog.text
    write(path, *lines)
    assert names(known) == ["alice", "bob"]


@pytest.fixture
def admins(tmp_path: Path) -> Path:
    return write(tmp_path / "admins", "root the-secret-of-root")


def test_a_learner_with_one_token_for_actors_and_admins_does_not_start(path: Path, admins: Path) -> None:
    config = ServerConfig(actor_token_file=path, admin_token_file=admins)
    assert Gate.of(config).names() == {Role.ACTOR: {"alice", "bob"}, Role.ADMIN: {"root"}}
    write(admins, f"root {BOBS}")
    with pytest.raises(ConfigError, match="expected another token for admin 'root' than that of actor 'bob'") as error:
        Gate.of(config)
    assert BOBS not in str(error.value)


def test_an_actors_token_that_is_added_to_the_admins_gives_no_rights_of_an_admin(
    path: Path, admins: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate.of(ServerConfig(actor_token_file=path, admin_token_file=admins))
    write(admins, "root the-secret-of-root", f"alice {ALICES}")
    for _ in range(2):
        with pytest.raises(UnauthenticatedError):
            gate.identify(STATUS, [authorization(ALICES)], PEER)
    assert caplog.text.count("expected another token for admin 'alice' than that of actor 'alice'") == 1
    assert gate.identify(JOIN, [authorization(ALICES)], PEER).name == "alice"
    assert gate.identify(STATUS, [authorization("the-secret-of-root")], PEER).name == "root"


def test_an_admins_open_call_ends_when_its_token_becomes_an_actors(path: Path, admins: Path) -> None:
    gate = Gate.of(ServerConfig(actor_token_file=path, admin_token_file=admins))
    caller = gate.identify(STATUS, [authorization("the-secret-of-root")], PEER)
    assert gate.objection(caller) is None
    write(path, "robot the-secret-of-root")
    gate.names()
    assert isinstance(gate.objection(caller), UnauthenticatedError)


# A process that serves again.


def test_a_process_that_serves_again_reads_a_changed_file_as_the_one_before_it_did(
    path: Path, admins: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServerConfig(actor_token_file=path, admin_token_file=admins)
    write(path, f"alice {ALICES}", "too short", f"bob {BOBS}")
    with pytest.raises(ConfigError, match="line 2"):
        Gate.of(config)
    write(admins)
    assert Gate.of(config, serves_again=True).names() == {Role.ACTOR: {"alice", "bob"}, Role.ADMIN: set()}
    assert "the line is left out" in caplog.text
    assert f"token file {admins}: it holds no token, so every caller is refused until it does" in caplog.text


def test_a_process_that_serves_again_takes_tokens_that_come_later(path: Path, clock: Clock) -> None:
    path.rename(path.with_name("away"))
    known = KnownTokens(TokenSource(f"token file {path}", path), clock, serves_again=True)
    assert names(known) == [None, None]
    path.with_name("away").rename(path)
    assert names(known) == ["alice", "bob"]


def test_an_admins_token_that_has_become_an_actors_gives_no_rights_after_a_restart(path: Path, admins: Path) -> None:
    write(admins, f"root {BOBS}")
    gate = Gate.of(ServerConfig(actor_token_file=path, admin_token_file=admins), serves_again=True)
    with pytest.raises(UnauthenticatedError):
        gate.identify(STATUS, [authorization(BOBS)], PEER)
    assert gate.identify(JOIN, [authorization(BOBS)], PEER).name == "bob"
