from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.wire.tls import read_authorities
from common.wire.tokens import ACTOR_VARIABLE, UNNAMED, Token, TokenSource, authorization, bearer, format_tokens
from common.wire.trust import Trust

FIRST, SECOND = "first-token-of-all", "second-token-of-all"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{FIRST}\nalice {SECOND}\n")
    path.chmod(0o600)
    return path


def test_a_line_is_a_name_and_a_token_or_a_token_alone_and_the_first_is_sent(path: Path) -> None:
    source, tokens = TokenSource.find(path, ACTOR_VARIABLE, {}), Trust(token_file=path).tokens()
    assert source is not None
    assert source.read() == (Token(UNNAMED, FIRST), Token("alice", SECOND))
    assert tokens is not None
    assert tokens.get()[0].secret == FIRST
    assert format_tokens(source.read()) == path.read_text()


def test_no_secret_shows_where_tokens_are_printed(path: Path) -> None:
    assert FIRST not in repr(TokenSource("", path).read()[0])
    assert FIRST not in repr(TokenSource("", None, FIRST))


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_something_else_than_a_regular_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    place = {"pipe": tmp_path / "pipe", "device": Path("/dev/zero"), "directory": tmp_path}[kind]
    if kind == "pipe":
        os.mkfifo(place)
    for read in (TokenSource("", place).read, partial(read_authorities, place)):
        with pytest.raises(
            ConfigError, match=rf"{place}: cannot be read: expected a regular file, found a directory, "
        ):
            read()


def test_a_file_that_every_user_can_read_is_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TokenSource("", path).read()
    assert "chmod" not in caplog.text
    path.chmod(0o644)
    TokenSource("", path).read()
    assert f"every user of this host can read it; chmod 600 {path}" in caplog.text


def test_a_given_file_precedes_the_environments_file_which_precedes_the_environments_token(path: Path) -> None:
    other = path.with_name("other")
    other.write_text(SECOND)
    environment = {f"{ACTOR_VARIABLE}_FILE": str(other), ACTOR_VARIABLE: "third-token-of-all"}
    found = [
        TokenSource.find(path, ACTOR_VARIABLE, environment),
        TokenSource.find(None, ACTOR_VARIABLE, environment),
        TokenSource.find(None, ACTOR_VARIABLE, {ACTOR_VARIABLE: "third-token-of-all"}),
    ]
    assert [source.read()[0].secret for source in found if source] == [FIRST, SECOND, "third-token-of-all"]
    assert TokenSource.find(None, ACTOR_VARIABLE, {}) is None


def test_a_file_in_the_users_home_is_named_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = TokenSource.find(None, ACTOR_VARIABLE, {f"{ACTOR_VARIABLE}_FILE": "~/token"})
    assert found is not None
    assert (found.where, found.path) == (f"token file {tmp_path}/token", tmp_path / "token")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "one token per line, found none"),
        ("short", "line 1: expected a token of 16 or more .* found 5"),
        ("é", "be read"),
        ("a b short-short-short-short", "line 1: expected a name and a token, or a token alone, found 3 words"),
        (f"{'short' * 7} {FIRST}", "line 1: expected a name of up to 32 letters"),
        (f"10.0.0.1 {FIRST}", "line 1: expected a name of .*, found an address or another word"),
        (f"bob {FIRST}\n\nalice {FIRST}", "line 3: expected another token than that of 'bob', found the same"),
    ],
)
def test_a_file_without_proper_tokens_is_an_error_that_shows_none(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        Trust(token_file=path).tokens()
    assert "short" not in str(error.value)


@pytest.mark.parametrize(
    ("metadata", "token"),
    [
        ([("user-agent", "x"), authorization(FIRST)], FIRST),
        ([("authorization", f"bEARER {FIRST} ")], FIRST),
        ([("authorization", f"Basic {FIRST}")], ""),
        ([("authorization", FIRST)], ""),
        ([("authorization", "")], ""),
        ([], ""),
    ],
)
def test_a_token_is_read_from_the_metadata_of_a_call(metadata: list[tuple[str, str]], token: str) -> None:
    assert bearer(metadata) == token
