from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.data import Record
from common.wire.codec import encode
from common.wire.pb import crossborder_pb2 as pb
from learner.loop.server import LearnerServer
from tests.conftest import MakeConfig, endpoints, kill, wait_for
from tests.e2e.test_counting import train_in_thread
from tests.learner.ingest.test_service import BAD, SECONDS, Client, Talk, refusal
from tests.parts import expected_items

Figures = dict[str, float]
REPORT = pb.Report(
    env_steps=50,
    seconds=9.0,
    episode_returns=[3.0, 5.0],
    episode_lengths=[20, 30],
    env_seconds=4.0,
    inference_seconds=2.5,
    wait_seconds=1.5,
    spool_bytes=380,
    reconnects=2,
    dropped_items=7,
    env_rebuilds=3,
    env_hangs=1,
    episode_successes=[True],
)


def scrape(port: int) -> Figures:
    """The value of each series, by the metric's name with label values in brackets; without the prefix."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        sample.name.removeprefix("crossborder_") + "".join(f"[{v}]" for v in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape_trainer(server: LearnerServer) -> Figures:
    return scrape(endpoints(server.run.dir.path)["trainer_metrics_port"])


def scrape_ingest(server: LearnerServer) -> Figures:
    return scrape(endpoints(server.run.dir.path)["ingest_metrics_port"])


@contextmanager
def full_run(make_config: MakeConfig) -> Iterator[LearnerServer]:
    """A run in which everything that has a metric has happened; one actor, spoken by hand, has sent 20 items."""
    config = make_config(
        trainer={"eval_interval": 50, "save_interval": 50, "record_interval": 50},
        replay={"capacity": 100, "samples_per_insert": 8.0},
        evaluator={"episodes": 1},
        server={"grace_seconds": 0.5},
    )
    with LearnerServer(config) as server:
        client = Client(server)
        client.join()
        for _ in client.stub.GetModel(pb.GetModelRequest(), timeout=SECONDS):
            pass
        talk = Talk(client.stub)
        acting = pb.ModelVersion(incarnation=1, opt_steps=0)
        sent: dict[str, Any] = {"count": 10, "behaviour": acting}
        sent["payload"] = encode(client.schema, expected_items(0, 10), 10)
        talk.say(client.batch(1, report=REPORT, **sent))
        while server.learner.opt_steps < 100:
            server.learner.step()
        talk.say(client.batch(2, report=pb.Report(env_steps=60, seconds=10.0), **sent))
        wait_for(lambda: server.control.env_steps == 60, "totals of both batches")
        yield server


def test_the_trainer_tells_of_steps_scores_replay_models_and_checkpoints(make_config: MakeConfig) -> None:
    before = time.time()
    with full_run(make_config) as server:
        found, newest = scrape_trainer(server), server.status()
        run_id, model_bytes = server.run.dir.identity.run_id, server.publisher.blob_bytes
    after = time.time()
    expected = {
        "opt_steps_total": 100,
        "samples_drawn_total": 3200,
        "record[samples_total]": 10,
        "divergences_total": 0,
        "evaluations_total": 2,
        "evaluations_skipped_total": 0,
        "best_score": newest.best_score,
        "replay_size_items": 20,
        "replay_capacity_items": 100,
        "replay_bytes": 100 * 38,
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


def test_ingest_tells_of_items_models_actors_and_of_each_actor(make_config: MakeConfig) -> None:
    with full_run(make_config) as server:
        found = scrape_ingest(server)
        assert server.control.episode_record() == {"train_return": 4.0, "train_length": 25.0, "train_success": 1.0}
        payload, model_bytes = 20 * server.run.parts.schema.row_bytes, server.publisher.blob_bytes
    expected = {
        "items_total": 20,
        "batches_total": 2,
        "payload_bytes_total": payload,
        "duplicate_batches_total": 0,
        "ack_hold_seconds_total": 0,
        "ack_seconds_count": 2,
        "model_fetches_total": 1,
        "model_bytes_sent_total": model_bytes,
        "joins_total": 1,
        "env_steps_total": 60,
        "episodes_total": 2,
        "episode_return_mean": 4,
        "episode_length_mean": 25,
        "policy_lag_steps_count": 2,
        "policy_lag_steps_sum": 100,
        "policy_lag_steps_bucket[0.0]": 1,
        "policy_lag_steps_bucket[64.0]": 1,
        "policy_lag_steps_bucket[128.0]": 2,
        "policy_lag_steps_bucket[+Inf]": 2,
        "policy_lag_seconds_count": 2,
        "actors[online]": 1,
        "actor_env_steps_total[0]": 60,
        "actor_items_total[0]": 20,
        "actor_episode_return[0]": 5,
        "actor_policy_lag_opt_steps[0]": 100,
    }
    assert {key: found[key] for key in expected} == expected
    assert found["policy_lag_seconds_sum"] > 0
    assert found["ack_seconds_sum"] > 0
    assert found["actor_last_seen_seconds[0]"] >= 0
    assert found["process_resident_memory_bytes"] > 0


def test_items_of_a_model_from_before_a_resume_have_lagged_at_least_since_then(host: LearnerServer) -> None:
    client = Client(host)
    client.join()
    earlier = pb.ModelVersion(incarnation=host.control.incarnation - 1, opt_steps=7)
    Talk(client.stub).say(client.batch(1, behaviour=earlier))
    found = scrape_ingest(host)
    assert (found["policy_lag_steps_count"], found["policy_lag_steps_sum"]) == (1, 0), "the run went back behind it"
    assert found["policy_lag_seconds_count"] == 1
    assert found["policy_lag_seconds_sum"] > 0


def test_an_actors_own_figures_come_with_its_heartbeats(host: LearnerServer) -> None:
    client = Client(host)
    client.join()
    heartbeat = pb.PushItemsRequest(incarnation=client.incarnation, report=REPORT)
    Talk(client.stub).say(heartbeat)
    found = scrape_ingest(host)
    expected = {
        "actor_env_steps_total[0]": 50,
        "actor_env_seconds_total[0]": 4,
        "actor_inference_seconds_total[0]": 2.5,
        "actor_wait_seconds_total[0]": 1.5,
        "actor_spool_bytes[0]": 380,
        "actor_reconnects_total[0]": 2,
        "actor_dropped_items_total[0]": 7,
        "actor_env_rebuilds_total[0]": 3,
        "dropped_items_total": 7,
        "env_rebuilds_total": 3,
        "env_hangs_total": 1,
    }
    assert {key: found[key] for key in expected} == expected
    assert "actor_policy_lag_opt_steps[0]" not in found, "it has sent no batch"
    assert "actor_episode_return[0]" not in found, "episodes are counted with batches"
    row = host.actor_table[0]
    assert (row["env_seconds"], row["spool_bytes"]) == (4.0, 380), "the trainer can read them too"


def test_a_real_actor_tells_where_its_time_goes(make_config: MakeConfig) -> None:
    found: Figures = {}

    def has_told() -> bool:
        found.update(scrape_ingest(server))
        return found.get("actor_items_total[0]", 0) > 100

    with train_in_thread(make_config(trainer={"max_opts": 10**9}), local_actors=1) as (server, _):
        wait_for(has_told, "items of an actor")
        server.learner.request_stop()
    assert all(found[f"actor_{what}_seconds_total[0]"] > 0 for what in ("env", "inference", "wait"))
    assert found["actor_reconnects_total[0]"] == 0


def test_series_of_actors_are_as_many_as_there_are_ids(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"max_actors": 2, "grace_seconds": 0.5})) as server:
        for incarnation in range(1, 7):
            client = Client(server, incarnation)
            client.join()
            leaving = incarnation not in (2, 6)
            Talk(client.stub).say(client.batch(0, rows=0, payload=b"", report=pb.Report(leaving=leaving)))
        found = scrape_ingest(server)
    assert found["actors[left]"] == 4
    assert sorted(key for key in found if key.startswith("actor_env_steps_total")) == [
        "actor_env_steps_total[0]",
        "actor_env_steps_total[1]",
    ]


def test_refused_batches_are_counted_by_reason(host: LearnerServer) -> None:
    client = Client(host)
    client.join()
    for make, name, _ in BAD.values():
        with pytest.raises(grpc.RpcError) as error:
            Talk(client.stub).say(make(client))
        assert refusal(error)[1] == name
    found = scrape_ingest(host)
    refused = {key: value for key, value in found.items() if key.startswith("refused_batches_total")}
    counts = {"schema": 1, "payload": 2, "sequence": 2, "rows": 2, "report": 8, "values": 2, "bounds": 1}
    assert refused == {f"refused_batches_total[{reason}]": count for reason, count in counts.items()}
    assert found["out_of_bounds_values_total[action]"] == 2


def test_refused_joins_are_counted_by_reason(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"max_actors": 1})) as server:
        Client(server, 1).join()
        for wrong in ({"protocol_version": 9}, {"incarnation": 0}, {"incarnation": 2}, {"incarnation": 3}):
            with pytest.raises(grpc.RpcError):
                Client(server).join(**wrong)
        found = scrape_ingest(server)
    counts = {"protocol_mismatch": 1, "bad_items": 1, "too_many_actors": 2, "over_limit": 0, "stopping": 0}
    assert {reason: found[f"joins_refused_total[{reason}]"] for reason in counts} == counts


def test_a_restart_of_ingest_is_counted_and_its_totals_go_on(host: LearnerServer) -> None:
    client = Client(host)
    client.join()
    Talk(client.stub).say(client.batch(1, report=REPORT))
    kill(host.ingest.pid)
    wait_for(lambda: scrape_trainer(host)["child_restarts_total[ingest]"] == 1, "the restart")
    found = scrape_ingest(host)
    assert (found["items_total"], found["batches_total"], found["actor_spool_bytes[0]"]) == (5, 1, 380)
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


def test_nothing_is_said_of_what_has_not_happened_yet(host: LearnerServer) -> None:
    found = scrape_trainer(host)
    first_state = "last_checkpoint_timestamp_seconds[state]"  # A run begins with one.
    assert [key for key in found if key.startswith("last_")] == [first_state]
    assert found["replay_oldest_age_seconds"] == 0
    assert "replay_ratio_target" not in found, "both sides run free"
