"""The front that is shipped, as a real HAProxy with the shipped configuration before a real learner."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from actor.client.assembly import assemble
from common.wire.channel import get_model, open_channel, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import WINDOW_BYTES
from crossborder.certificates.authority import make_files
from crossborder.inspecting.crossborder_health import check_health
from tests.conftest import PATIENCE, ROOT, Command, endpoints, most_memory
from tests.e2e.test_by_hand import steps_by_actor
from tests.security.conftest import Secured, join
from tests.security.hostile import CONTINUATION, HEADERS, Hostile, frame

CONFIGURATION = ROOT / "deploy/components/front/haproxy.cfg"

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin") or ""

pytestmark = pytest.mark.skipif(not HAPROXY, reason="not installed: haproxy")


@contextmanager
def fronted(certs: Path, learner: str) -> Iterator[str]:
    """The address of a front before this learner."""
    both = certs / "front.pem"
    both.write_bytes((certs / "server.pem").read_bytes() + (certs / "server.key").read_bytes())
    log = certs / "front.log"
    with socket.create_server(("127.0.0.1", 0)) as listening, log.open("w") as output:
        host, port = listening.getsockname()
        environment = {
            **os.environ,
            "FRONT_LISTEN": f"fd@{listening.fileno()}",
            "FRONT_CERTIFICATE": str(both),
            "LEARNER": learner,
            "LEARNER_NAME": "localhost",
            "LEARNER_CA": str(certs / "ca.pem"),
        }
        process = subprocess.Popen(
            [HAPROXY, "-db", "-f", str(CONFIGURATION)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[listening.fileno()],
        )
    try:
        yield f"{host}:{port}"
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.wait(PATIENCE)


class Large(Secured):
    """With a model of 7 MB."""

    changes: ClassVar[dict[str, Any]] = {
        "agent": {"target": "common.agents.dqn:DQN", "params": {"units": [1300, 1300]}}
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Large(tmp_path_factory.mktemp("fronted"))
    with made.server:
        yield made


@pytest.fixture(scope="module")
def front(secured: Secured) -> Iterator[str]:
    with fronted(secured.certs, secured.address) as address:
        yield address


def test_the_health_probe_and_a_join_pass(secured: Secured, front: str) -> None:
    check_health(front, secured.trust(), PATIENCE)
    assert join(front, secured.trust()) == join(secured.address, secured.trust())


def test_a_model_of_many_messages_passes(secured: Secured, front: str) -> None:
    with open_channel(front, watch_credentials(front, secured.trust()).get()) as channel:
        file = assemble(get_model(channel)(pb.GetModelRequest(), timeout=PATIENCE))
    assert file is not None
    assert len(file.data) > 6_500_000


def test_a_call_header_that_never_ends_closes_its_connection_and_ingest_sees_none_of_it(
    secured: Secured, front: str
) -> None:
    pid = secured.server.ingest.pid
    before = most_memory(pid)
    hostile = Hostile(front, secured.certs)
    flood = frame(CONTINUATION, 0, 1, b"\x40\x01a\x01b" * 3000)
    for _ in range(3):
        wire = hostile.http2()
        wire.send(frame(HEADERS, 0, 1, b"\x40\x01a\x01b"))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            wire.send(flood * 5000)  # 90 MB
    hostile.close()
    assert join(front, secured.trust()), "honest callers are served"
    assert most_memory(pid) - before < WINDOW_BYTES


def test_a_real_actor_trains_a_run_to_its_end(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    certs, run_dir = tmp_path / "certs", tmp_path / "run"
    make_files(certs, ["gpu-host"], 1, renew=False)
    server = start(
        "learner-server",
        *("--config", str(write_config(trainer={"max_opts": 200}))),
        *("--certificate", f"{certs}/server.pem", "--key", f"{certs}/server.key"),
        *("--token-file", f"{certs}/actor.token"),
    )
    with fronted(certs, endpoints(run_dir)["learner"]) as address:
        actor = start(
            "actor-worker",
            *("--learner", address, "--ca", f"{certs}/ca.pem", "--token-file", f"{certs}/actor.token"),
        )
        assert (server.wait(), actor.wait()) == (0, 0), server.output() + actor.output()
    assert steps_by_actor(run_dir)[actor.process.pid] > 0


def test_streams_outlive_the_learners_own_patience() -> None:
    seconds = {
        words[1]: int(words[2].removesuffix("s"))
        for words in map(str.split, CONFIGURATION.read_text().splitlines())
        if words[:1] == ["timeout"]
    }
    assert min(seconds["client"], seconds["server"], seconds["http-keep-alive"]) > 2 * 30, "server.lost_seconds"
