"""What a learner does with files of tokens and certificates that are changed while its processes start again."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from actor.client.connector import Connector
from actor.manager import ActorManager
from common.errors import AuthenticationError, CrossborderError
from crossborder.certificates.authority import make_files, sign
from tests.chaos.fleet import oldest_child
from tests.conftest import PATIENCE, Command, kill, wait_for
from tests.e2e.test_by_hand import CALM, trains
from tests.security.conftest import Secured, join, replace, write
from tests.security.test_tokens import audited


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


def test_an_actor_whose_own_certificate_has_expired_joins_once_it_is_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = Secured(tmp_path, tls={"client_ca": str(tmp_path / "certs" / "ca.pem")})
    certificate, key = made.certs / "actor.pem", made.certs / "actor.key"

    def put(days: int) -> None:
        signed = sign(made.authority, "actor", (), days)
        replace(key, signed.key_pem)
        replace(certificate, signed.certificate_pem)

    put(days=-1)
    with made.server, ThreadPoolExecutor(1) as threads:
        joins = threads.submit(join, made.address, made.trust(certificate=certificate, key=key))
        wait_for(lambda: f"own certificate, {certificate}, expired at" in caplog.text, "it waits")
        put(days=1)
        assert joins.result(PATIENCE)


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


def test_an_actor_that_has_joined_waits_for_a_certificate_of_its_learner_that_it_can_trust(
    fresh: Secured, start: Callable[..., Command]
) -> None:
    own = write(fresh.certs / "own.token", (fresh.certs / "actor.token").read_text())
    worker = start(
        *("actor-worker", "--learner", fresh.address, "--allow", "tests.parts"),
        *("--ca", fresh.path("ca.pem"), "--token-file", str(own)),
    )
    wait_for(lambda: "joined run" in worker.output(), "it joins")
    fresh.serve(fresh.sign("example.org"))
    kill(fresh.server.ingest.pid)
    wait_for(lambda: "certificate is not for this host name" in worker.output(), "it refuses the learner")
    fresh.serve(fresh.sign("127.0.0.1"))
    wait_for(lambda: "joined run" in worker.output().partition("is not for this host name")[2], "it joins again")
    write(fresh.certs / "actor.token", "another " + "x" * 20)
    assert worker.wait() == AuthenticationError.exit_code, "a refused token ends it"


def joins(secured: Secured) -> int:
    return len(audited(secured, event="join"))


def test_a_worker_that_is_killed_is_started_again_once_its_token_can_be_read(
    fresh: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    own = write(fresh.certs / "own.token", (fresh.certs / "actor.token").read_text())
    failures = list[CrossborderError]()
    trust = fresh.trust(token_file=own, allow=("tests.parts",))
    manager = ActorManager(fresh.address, 1, failures.append, trust, PATIENCE)
    try:
        wait_for(lambda: joins(fresh) == 1, "it joins")
        own.rename(fresh.certs / "away")
        (pid,) = manager.pids
        kill(pid)
        wait_for(lambda: "waiting until this can be used: token file" in caplog.text, "it waits")
        (fresh.certs / "away").rename(own)
        wait_for(lambda: joins(fresh) == 2, "it joins again")
        assert (manager.restarts, failures) == (1, [])
    finally:
        manager.stop_and_join(PATIENCE)


def test_an_actor_connects_anew_while_its_own_files_are_absent(fresh: Secured) -> None:
    own = write(fresh.certs / "own.token", (fresh.certs / "actor.token").read_text())
    connector = Connector(fresh.address, 1, PATIENCE, threading.Event(), fresh.trust(token_file=own))
    with closing(connector):
        run_id = connector.join().run_id
        own.unlink()
        (fresh.certs / "ca.pem").rename(fresh.certs / "away.pem")
        connector.refresh(anew=True)
        assert connector.join().run_id == run_id


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
