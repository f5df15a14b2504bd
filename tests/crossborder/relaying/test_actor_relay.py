"""The command of a relay, as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import threading

import pytest

from actor.client.connector import Connector
from common.errors import ConfigError
from common.wire.trust import Trust
from crossborder.relaying.actor_relay import main
from learner.loop.server import LearnerServer
from tests.conftest import PATIENCE, ROOT, python_of


def test_it_serves_until_it_is_asked_to_end(host: LearnerServer) -> None:
    words = ["--learner", host.ingest.address, "--listen", "127.0.0.1:0"]
    command = [*python_of("actor-relay"), *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"listens on (\S+)", process.stderr.readline())
        assert found is not None
        connector = Connector(found[1], 1, PATIENCE, threading.Event(), Trust())
        assert connector.join().run_id == host.run.dir.identity.run_id
        connector.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_an_address_beyond_loopback_without_a_certificate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--learner", "127.0.0.1:1", "--listen", "0.0.0.0:0"]
    assert main(words) == ConfigError.exit_code
    assert "expected --listen-certificate and --listen-key" in capsys.readouterr().err
