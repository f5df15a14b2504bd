"""The figures of every part are in ``tests/learner/records/test_exposition.py``."""

from __future__ import annotations

from pathlib import Path

from learner.loop.server import LearnerServer
from learner.loop.trainer_metrics import _read_run_delay
from tests.conftest import MakeConfig, endpoints
from tests.learner.scrapes import full_run, scrape, scrape_trainer


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


def test_counters_begin_at_zero_with_each_life_so_that_none_falls_to_the_steps_of_a_checkpoint(
    make_config: MakeConfig,
) -> None:
    """Prometheus would take such a fall for a new begin at 0, and count the steps before it once more."""
    with full_run(make_config) as server:
        before, config = scrape_trainer(server), server.config
        server.learner.finish(lambda: None)
    with LearnerServer(config, resume=True) as server:
        found = scrape_trainer(server)
    assert (before["opt_steps_total"], before["samples_drawn_total"]) == (100, 3200)
    assert found["model_version_opt_steps"] == 100
    drawn = ("opt_steps_total", "samples_drawn_total", "source_samples_drawn_total[actors]")
    assert {key: found[key] for key in drawn} == dict.fromkeys(drawn, 0)


def test_the_time_for_which_the_trainer_waits_for_a_processor_is_what_linux_counts(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    assert _read_run_delay(path) is None
    path.write_text("0\n")
    assert _read_run_delay(path) is None
    path.write_text("353307116894 2500000000 7\n")
    assert _read_run_delay(path) == 2.5
