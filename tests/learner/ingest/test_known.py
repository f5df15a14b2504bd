from __future__ import annotations

from pathlib import Path

import pytest

from common.wire.tokens import TokenSource
from learner.ingest.known import SETTLE_SECONDS, KnownTokens, digest_of
from tests.common.process.test_clocks import Clock
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


def test_a_mistake_in_one_line_leaves_the_others_and_is_told(
    known: KnownTokens, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, "carol short", f"bob {BOBS}")
    assert names(known) == [None, "bob"]
    assert "line 1: expected a token of 16 or more printable ASCII characters, found 5" in caplog.text
