"""Where a learner listens, in its first life and in later ones."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from common.config.run_config import MetricsConfig, load_config
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


def had(learner: int, trainer: int | None, ingest: int | None) -> dict[str, Any]:
    return {"learner": f"10.0.0.1:{learner}", "trainer_metrics_port": trainer, "ingest_metrics_port": ingest}


def test_a_run_that_goes_on_first_tries_the_ports_that_it_had(make_config: MakeConfig, tmp_path: Path) -> None:
    config, directory = make_config(), resumed(tmp_path / "run", had(5, 6, 8))
    ports = Ports(config, directory)
    assert ports.addresses == ("127.0.0.1:5", "127.0.0.1:0")
    assert (ports.trainer_metrics, ports.ingest_metrics) == ((6, 0), (8, 0))
    usual = Ports(config.model_copy(update={"server": ServerConfig(), "metrics": MetricsConfig()}), directory)
    assert usual.addresses == ("127.0.0.1:5", "127.0.0.1:50051", "127.0.0.1:0")
    assert (usual.trainer_metrics, usual.ingest_metrics) == ((6, 9464, 0), (8, 9465, 0))
    directory.close()


def test_ports_that_the_configuration_names_come_before_those_that_the_run_had(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    port = free_port(3)
    address, metrics = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    directory = resumed(tmp_path / "run", had(5, 5, 5))
    ports = Ports(make_config(server={"listen": address}, metrics={"listen": metrics}), directory)
    assert (ports.addresses, ports.trainer_metrics, ports.ingest_metrics) == ((address,), (port + 1,), (port + 2,))
    nowhere = Ports(make_config(metrics={"listen": None}), directory)
    assert (nowhere.trainer_metrics, nowhere.ingest_metrics) == ((None,), (None,))
    directory.close()


def test_the_log_names_former_ports_that_another_program_has(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = resumed(tmp_path / "run", had(5, 6, 7))
    Ports(make_config(), directory).write("127.0.0.1:9", 6, 8)
    assert "other programs have the usual ports (5, 7): free ones take their place" in caplog.text
    assert json.loads((tmp_path / "run" / "endpoints.json").read_text()) == {**had(5, 6, 8), "learner": "127.0.0.1:9"}
    directory.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2, 3]",
        "{}",
        '{"learner": "a", "trainer_metrics_port": 1, "ingest_metrics_port": 2}',
        '{"learner": "a:1", "trainer_metrics_port": 99999, "ingest_metrics_port": 2}',
        '{"learner": "a:1", "trainer_metrics_port": -3, "ingest_metrics_port": Infinity}',
    ],
)
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
    resumed(tmp_path / "run", had(5, None, None)).close()
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
