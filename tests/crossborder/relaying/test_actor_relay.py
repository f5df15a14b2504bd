"""The command of a relay, as a process."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable

import pytest

from actor.client.connector import Connector
from common.errors import ConfigError
from common.wire.trust import Trust
from crossborder.relaying.actor_relay import main
from learner.loop.server import LearnerServer
from tests.conftest import PATIENCE, Command, wait_for


@pytest.mark.parametrize("signalled", [Command.signal, Command.signal_another_thread])
def test_it_serves_until_it_is_asked_to_end(
    host: LearnerServer, start: Callable[..., Command], signalled: Callable[[Command, int], None]
) -> None:
    relay = start("actor-relay", "--learner", host.ingest.address, "--listen", "127.0.0.1:0")
    wait_for(lambda: "listens on" in relay.output(), "the relay listens")
    (address,) = re.findall(r"listens on (\S+)", relay.output())
    connector = Connector(address, 1, PATIENCE, threading.Event(), Trust())
    assert connector.join().run_id == host.run.dir.identity.run_id
    connector.close()
    signalled(relay, signal.SIGTERM)
    assert relay.wait() == 128 + signal.SIGTERM, relay.output()


def test_an_address_beyond_loopback_without_a_certificate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--learner", "127.0.0.1:1", "--listen", "0.0.0.0:0"]
    assert main(words) == ConfigError.exit_code
    assert "expected --listen-certificate and --listen-key" in capsys.readouterr().err
