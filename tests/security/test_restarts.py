"""What a learner does with files of tokens and certificates that are changed while its processes start again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crossborder.certificates.authority import make_files
from tests.chaos.fleet import oldest_child
from tests.conftest import Command, kill, wait_for
from tests.e2e.test_by_hand import CALM, trains
from tests.security.conftest import Secured, join, replace, write


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Secured]:
    """A learner that no other test uses."""
    made = Secured(tmp_path)
    with made.server:
        yield made


def test_ingest_is_started_again_with_the_good_lines_of_a_token_file(fresh: Secured) -> None:
    tokens = fresh.certs / "actor.token"
    trust = fresh.trust(token_file=write(fresh.certs / "own.token", tokens.read_text()))
    with tokens.open("a") as file:
        file.write("too short\n")
    kill(fresh.server.ingest.pid)
    assert join(fresh.address, trust)
    assert fresh.server.ingest.restarts == 1
    assert fresh.server.learner.life.failure is None


@pytest.mark.parametrize("change", ["absent", "of another key"])
def test_ingest_is_started_again_once_its_certificate_can_be_used(
    fresh: Secured, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = fresh.certs / "server.key"
    before = key.read_bytes()
    if change == "absent":
        key.unlink()
    else:
        replace(key, fresh.sign("127.0.0.1").key_pem)
    kill(fresh.server.ingest.pid)
    wait_for(lambda: "ingest is started again once its files can be used" in caplog.text, "it waits")
    replace(key, before)
    assert join(fresh.address, fresh.trust())
    assert fresh.server.ingest.restarts == 1
    assert fresh.server.learner.life.failure is None


def test_the_next_learner_of_a_standby_waits_until_its_files_can_be_used(
    tmp_path: Path, start: Callable[..., Command], write_config: Callable[..., Path]
) -> None:
    certs = tmp_path / "certs"
    make_files(certs, ["gpu-host"], 1, renew=False)
    server = {
        "tls": {"certificate": str(certs / "server.pem"), "key": str(certs / "server.key")},
        "actor_token_file": str(certs / "actor.token"),
    }
    config = write_config(**{**CALM, "server": server})
    keeper = start("learner-server", "--config", str(config), "--standby")
    wait_for(lambda: trains(tmp_path / "run"), "training begins")
    (certs / "server.key").rename(tmp_path / "away")
    kill(oldest_child(oldest_child(keeper.process.pid)))
    wait_for(lambda: "learner is started again once its files can be used" in keeper.output(), "it waits")
    (tmp_path / "away").rename(certs / "server.key")
    wait_for(lambda: "resumed at opt step" in keeper.output(), "another learner goes on")
    keeper.signal(signal.SIGTERM)
    assert keeper.wait() == 143, keeper.output()
