from __future__ import annotations

import time
from importlib.metadata import version

from common.data import Record
from learner.loop.server import LearnerServer
from tests.conftest import MakeConfig, kill, wait_for
from tests.learner.ingest.by_hand import Client, Talk
from tests.learner.scrapes import REPORT, full_run, scrape_ingest, scrape_trainer


def test_the_trainer_tells_of_steps_scores_replay_models_and_checkpoints(make_config: MakeConfig) -> None:
    before = time.time()
    with full_run(make_config) as server:
        found, newest = scrape_trainer(server), server.status()
        run_id, model_bytes = server.run.dir.identity.run_id, server.publisher.blob_bytes
    after = time.time()
    expected = {
        "opt_steps_total": 100,
        "samples_drawn_total": 3200,
        "record[samples_total]": 9,  # Ten rows, one of them final.
        "divergences_total": 0,
        "evaluations_total": 2,
        "evaluations_skipped_total": 0,
        "best_score": newest.best_score,
        "replay_size_steps": 16,
        "replay_size_rows": 20,
        "replay_capacity_rows": 100,
        "replay_bytes": 100 * (34 + 8),  # A row and its two links.
        "replay_ratio_target": 8,
        "trainer_wait_seconds_total": 0,
        "model_publishes_total": 11,
        "model_bytes": model_bytes,
        "model_version_opt_steps": 100,
        "checkpoint_saves_total[best]": 1,
        "checkpoint_saves_total[periodic]": 2,
        "checkpoint_saves_total[final]": 0,
        "checkpoint_failures_total": 0,
        "child_restarts_total[ingest]": 0,
        "child_restarts_total[evaluator]": 0,
        "child_restarts_total[actor]": 0,
    }
    assert {key: found[key] for key in expected} == expected
    for key in ("opt", "evaluation", "model_publish", "checkpoint"):
        assert 0 < found[f"{key}_seconds_total"] < after - before
    for key in ("last_opt_timestamp_seconds", "last_evaluation_timestamp_seconds"):
        assert before < found[key] < after
    assert before < found["last_checkpoint_timestamp_seconds[periodic]"] < after
    assert 0 < found["replay_oldest_age_seconds"] < after - before
    assert found["disk_free_bytes"] > 0
    assert [key for key in found if key.startswith("run_info[") and run_id in key]
    assert [key for key in found if key.startswith("build_info[") and version("crossborder") in key]
    assert found["process_resident_memory_bytes"] > 0


def test_a_restart_of_ingest_is_counted_and_its_totals_go_on(host: LearnerServer) -> None:
    client = Client(host)
    client.join()
    Talk(client.stub).say(client.batch(1, report=REPORT))
    kill(host.ingest.pid)
    wait_for(lambda: scrape_trainer(host)["child_restarts_total[ingest]"] == 1, "the restart")
    found = scrape_ingest(host)
    assert (found["stored_steps_total"], found["batches_total"], found["actor_spool_bytes[0]"]) == (5, 1, 380)
    assert found["ack_seconds_count"] == 0, "histograms begin anew"


def test_checkpoints_that_went_wrong_are_counted(make_config: MakeConfig) -> None:
    def opt(buffer: object) -> Record:
        return {"loss": 1.0}

    with LearnerServer(make_config(trainer={"save_interval": 1})) as server:
        server.learner.agent.opt = opt  # type: ignore[method-assign]
        (server.run.dir.path / ".1.part").touch()  # In the way of the first checkpoint's directory.
        for _ in range(3):
            server.learner.step()
        found = scrape_trainer(server)
    assert found["checkpoint_failures_total"] == 1
    assert found["checkpoint_saves_total[periodic]"] == 2


def test_events_that_have_not_happened_yet_have_no_metric(host: LearnerServer) -> None:
    found = scrape_trainer(host)
    first_state = "last_checkpoint_timestamp_seconds[state]"  # A run begins with one.
    assert [key for key in found if key.startswith("last_")] == [first_state]
    assert found["replay_oldest_age_seconds"] == 0
    assert "replay_ratio_target" not in found, "both sides run free"
