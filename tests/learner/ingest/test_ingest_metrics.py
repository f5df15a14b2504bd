from __future__ import annotations

import grpc
import pytest

from common.wire.pb import crossborder_pb2 as pb
from learner.loop.server import LearnerServer
from tests.conftest import MakeConfig, wait_for
from tests.e2e.test_counting import train_in_thread
from tests.learner.ingest.bad_batches import BAD_BATCHES
from tests.learner.ingest.by_hand import Client, Talk, refusal
from tests.learner.scrapes import REPORT, Figures, full_run, scrape_ingest


def test_ingest_tells_of_items_models_actors_and_of_each_actor(make_config: MakeConfig) -> None:
    with full_run(make_config) as server:
        found = scrape_ingest(server)
        assert server.control.episode_record() == {"train_return": 4.0, "train_length": 25.0, "train_success": 1.0}
        payload, model_bytes = 20 * server.run.parts.schema.row_bytes, server.publisher.blob_bytes
    expected = {
        "stored_steps_total": 18,
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
        "fleet_policy_lag_opt_steps[1]": 100,
        "fleet_episode_return[0.5]": 5,
        "policy_lag_seconds_count": 2,
        "actors[online]": 1,
        "actor_env_steps_total[0]": 60,
        "actor_stored_steps_total[0]": 18,
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
        "actor_intervened_steps_total[0]": 11,
        "actor_env_seconds_total[0]": 4,
        "actor_inference_seconds_total[0]": 2.5,
        "actor_wait_seconds_total[0]": 1.5,
        "actor_spool_bytes[0]": 380,
        "actor_reconnects_total[0]": 2,
        "actor_dropped_rows_total[0]": 7,
        "actor_env_rebuilds_total[0]": 3,
        "dropped_rows_total": 7,
        "env_rebuilds_total": 3,
        "env_hangs_total": 1,
        "env_seconds_total": 4,
        "inference_seconds_total": 2.5,
        "wait_seconds_total": 1.5,
        "intervened_steps_total": 11,
        "reconnects_total": 2,
        "spool_bytes": 380,
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
        return found.get("actor_stored_steps_total[0]", 0) > 100

    config = make_config(trainer={"max_opts": 10**9}, replay={"samples_per_insert": 1.6})
    with train_in_thread(config, local_actors=1) as (server, _):
        wait_for(has_told, "items of an actor")
        server.learner.request_stop()
    assert all(found[f"actor_{what}_seconds_total[0]"] > 0 for what in ("env", "inference", "wait"))
    assert found["actor_reconnects_total[0]"] == 0


def test_series_of_actors_are_as_many_as_there_are_ids(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"max_actors": 2, "grace_seconds": 0.1})) as server:
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


@pytest.mark.parametrize(("max_actors", "shown"), [(256, True), (257, False)])
def test_actors_have_series_of_their_own_in_small_fleets(max_actors: int, shown: bool, make_config: MakeConfig) -> None:
    assert make_config(server={"max_actors": max_actors}).shows_each_actor is shown


def test_refused_batches_are_counted_by_reason(host: LearnerServer) -> None:
    client = Client(host)
    for make, name, _ in BAD_BATCHES.values():
        client.join()
        with pytest.raises(grpc.RpcError) as error:
            Talk(client.stub).say(make(client))
        assert refusal(error)[1] == name
    found = scrape_ingest(host)
    refused = {key: value for key, value in found.items() if key.startswith("refused_batches_total")}
    counts = {"schema": 1, "payload": 2, "sequence": 2, "rows": 2, "report": 9, "values": 6, "bounds": 1}
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
