"""Rotation while training goes on: everything is renewed by the command that made it, and nobody is restarted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from common.wire.tokens import TokenSource
from tests.conftest import Command, endpoints, kill, named, wait_for
from tests.e2e.test_by_hand import CALM, grows, steps_by_actor

pytestmark = pytest.mark.own_children

Start = Callable[..., Command]


def certs(start: Start, directory: Path, *arguments: str) -> None:
    made = start("crossborder-certs", "--out", str(directory), "--host", "gpu-host", *arguments)
    assert made.wait() == 0, made.output()


def test_actors_of_this_and_of_other_hosts_go_on_when_tokens_and_certificates_are_renewed(
    start: Start, write_config: Callable[..., Path], tmp_path: Path
) -> None:
    files, run_dir = tmp_path / "certs", tmp_path / "run"
    certs(start, files)
    server = start(
        "learner-server",
        *("--config", str(write_config(**CALM)), "--listen", "0.0.0.0:0", "--local-actors", "1"),
        *("--certificate", f"{files}/server.pem", "--key", f"{files}/server.key", "--client-ca", f"{files}/ca.pem"),
        *("--token-file", f"{files}/actor.token"),
    )
    port = endpoints(run_dir)["learner"].rpartition(":")[2]
    other = start(
        "actor-worker",
        *("--learner", f"127.0.0.1:{port}", "--allow", "tests.parts"),
        *("--ca", f"{files}/ca.pem", "--certificate", f"{files}/actor.pem", "--key", f"{files}/actor.key"),
        *("--token-file", f"{files}/actor.token"),
    )
    wait_for(lambda: len(steps_by_actor(run_dir)) == 2, "both join")
    actors = set(steps_by_actor(run_dir))

    certs(start, files, "--renew")
    (ingest,) = named("ingest", server.process.pid)
    kill(ingest)
    wait_for(lambda: named("ingest", server.process.pid) not in ([], [ingest]), "ingest is started again")
    grows(run_dir, actors)

    server.process.terminate()
    assert (server.wait(), other.wait()) == (143, 0), server.output() + other.output()
    for token in TokenSource("actor", files / "actor.token").read():
        assert not any(token.secret in path.read_text() for path in (server.log, other.log, run_dir / "config.yaml"))
