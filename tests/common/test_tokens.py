from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from common.tokens import ACTOR_VARIABLE, Tokens

FIRST, SECOND = "first-token-of-all", "second-token-of-all"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{FIRST}\n{SECOND}\n")
    return path


def test_every_line_is_accepted_and_the_first_is_sent(path: Path) -> None:
    tokens = Tokens.find(path, ACTOR_VARIABLE, {})
    assert tokens is not None
    assert tokens.first() == FIRST
    assert all(map(tokens.accept, (FIRST, SECOND)))


@pytest.mark.parametrize("given", ["", FIRST[:-1], FIRST + "x", f"{FIRST}\n{SECOND}", "fürst-token-of-all"])
def test_nothing_else_is_accepted(path: Path, given: str) -> None:
    tokens = Tokens.find(path, ACTOR_VARIABLE, {})
    assert tokens is not None
    assert not tokens.accept(given)


def test_a_file_goes_before_the_file_of_the_environment_and_that_before_a_token_in_it(path: Path) -> None:
    other = path.with_name("other")
    other.write_text(SECOND)
    environment = {f"{ACTOR_VARIABLE}_FILE": str(other), ACTOR_VARIABLE: "third-token-of-all"}
    found = [
        Tokens.find(path, ACTOR_VARIABLE, environment),
        Tokens.find(None, ACTOR_VARIABLE, environment),
        Tokens.find(None, ACTOR_VARIABLE, {ACTOR_VARIABLE: "third-token-of-all"}),
    ]
    assert [tokens.first() for tokens in found if tokens] == [FIRST, SECOND, "third-token-of-all"]
    assert Tokens.find(None, ACTOR_VARIABLE, {}) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("\n", "one token per line, found none"), ("short", "token 1: expected 16 or more .* found 5"), ("é", "be read")],
)
def test_a_file_without_proper_tokens_is_an_error_that_shows_none(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        Tokens.find(path, ACTOR_VARIABLE, {})
    assert "short" not in str(error.value)
