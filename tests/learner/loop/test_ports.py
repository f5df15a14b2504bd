"""Where a learner listens, in its first life and in later ones."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from common.config.run_config import MetricsConfig, RunConfig, load_config
from common.config.server_config import ServerConfig
from learner.loop.ports import Ports
from learner.loop.server import LearnerServer
from learner.storage.rundir import FORMER_ENDPOINTS, RunDir
from tests.conftest import MakeConfig, free_port
from tests.learner.storage.test_rundir import begin


def resumed(path: Path, former: str | dict[str, Any] | None) -> RunDir:
    """The directory of a run that goes on; ``former`` is what its former life left in ``endpoints.json``."""
    run = RunDir(path)
    begin(run)
    run.close()
    if former is not None:
        (path / "endpoints.json").write_text(former if isinstance(former, str) else json.dumps(former))
    return RunDir(path, resume=True)


def had(learner: int, trainer: int | None) -> dict[str, Any]:
    return {"learner": f"10.0.0.1:{learner}", "trainer_metrics_port": trainer, "ingest_metrics_port": None}


def with_settings(config: RunConfig, **sections: Any) -> RunConfig:
    return config.model_copy(update=sections)


def test_a_run_that_goes_on_first_tries_the_ports_that_it_had(make_config: MakeConfig, tmp_path: Path) -> None:
    port = free_port(2)
    config, directory = make_config(), resumed(tmp_path / "run", had(port, port))
    assert Ports(config, directory).addresses == (f"127.0.0.1:{port}", "127.0.0.1:0")
    assert Ports(config, directory).find_metrics_ports() == (port, 0)
    usual = with_settings(config, server=ServerConfig(), metrics=MetricsConfig())
    assert Ports(usual, directory).addresses == (f"127.0.0.1:{port}", "127.0.0.1:50051", "127.0.0.1:0")
    directory.close()


def test_ports_that_the_configuration_names_come_before_those_that_the_run_had(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    named = {"listen": "127.0.0.1:7"}
    config = make_config(server=named, metrics=named)
    directory = resumed(tmp_path / "run", had(5, 5))
    ports = Ports(config, directory)
    assert (ports.addresses, ports.find_metrics_ports()) == (("127.0.0.1:7",), (7,))
    directory.close()


def test_metrics_move_if_another_program_has_one_of_their_former_ports(make_config: MakeConfig, tmp_path: Path) -> None:
    port = free_port(2)
    directory = resumed(tmp_path / "run", had(5, port))
    with socket.create_server(("127.0.0.1", port + 1)):
        first, second = Ports(make_config(), directory).find_metrics_ports()
    assert (first != port, second) == (True, 0)
    nowhere = with_settings(make_config(), metrics=MetricsConfig(listen=None))
    assert Ports(nowhere, directory).find_metrics_ports() == (None,)
    directory.close()


def test_the_log_names_former_ports_that_another_program_has(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = resumed(tmp_path / "run", had(5, 6))
    Ports(make_config(), directory).write("127.0.0.1:8", 6, 7)
    assert "other programs have the usual ports (127.0.0.1:5): free ones take their place" in caplog.text
    assert json.loads((tmp_path / "run" / "endpoints.json").read_text())["learner"] == "127.0.0.1:8"
    directory.close()


@pytest.mark.parametrize("text", ["", "[1, 2, 3]", "{}", '{"learner": "a", "trainer_metrics_port": 1}'])
def test_a_run_whose_list_of_ports_is_damaged_goes_on_at_those_of_its_configuration(
    text: str, make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = resumed(tmp_path / "run", text)
    assert Ports(make_config(), directory).addresses == ("127.0.0.1:0",)
    assert FORMER_ENDPOINTS in caplog.text
    directory.close()


def test_a_life_that_was_killed_before_it_listened_leaves_the_ports_of_the_life_before(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    resumed(tmp_path / "run", had(5, 6)).close()
    again = RunDir(tmp_path / "run", resume=True)
    assert Ports(make_config(), again).addresses == ("127.0.0.1:5", "127.0.0.1:0")
    again.close()
    first = resumed(tmp_path / "other", None)
    assert Ports(make_config(), first).addresses == ("127.0.0.1:0",)
    first.close()
    assert not caplog.messages


def test_free_ports_stay_free_ports_in_the_configuration_of_a_run_that_goes_on(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    addresses = []
    for resume in (False, True):
        with LearnerServer(make_config(server={"grace_seconds": 0.1}), resume=resume) as server:
            addresses.append(server.ingest.address)
    assert addresses[0] == addresses[1] != "127.0.0.1:0"
    assert load_config(tmp_path / "run" / "config.yaml").server.listen == "127.0.0.1:0"
