"""The figures of every part are in ``tests/learner/records/test_exposition.py``."""

from __future__ import annotations

from pathlib import Path

from learner.loop.server import LearnerServer
from learner.loop.trainer_metrics import _read_run_delay
from tests.conftest import MakeConfig, endpoints
from tests.learner.scrapes import scrape


def test_a_run_whose_directory_was_moved_is_scraped_without_its_free_bytes(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    with LearnerServer(make_config(server={"grace_seconds": 0.1})) as server:
        directory = server.run.dir.path
        port = endpoints(directory)["trainer_metrics_port"]
        assert "disk_free_bytes" in scrape(port)
        directory.rename(tmp_path / "moved")
        found = scrape(port)
        (tmp_path / "moved").rename(directory)
    assert "disk_free_bytes" not in found
    assert "opt_steps_total" in found


def test_the_time_for_which_the_trainer_waits_for_a_processor_is_what_linux_counts(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    assert _read_run_delay(path) is None
    path.write_text("0\n")
    assert _read_run_delay(path) is None
    path.write_text("353307116894 2500000000 7\n")
    assert _read_run_delay(path) == 2.5
