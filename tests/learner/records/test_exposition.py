"""The HTTP server of /metrics, attacked over real sockets."""

from __future__ import annotations

import gzip
import socket
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client.registry import Collector

from common.data import Record
from common.errors import AddressError
from learner.loop.server import LearnerServer
from learner.records import exposition
from learner.records.exposition import MAX_CONNECTIONS, MetricsServer, gauge
from tests.conftest import PATIENCE, MakeConfig, kill, wait_for
from tests.learner.ingest.by_hand import Client, Talk
from tests.learner.scrapes import REPORT, full_run, scrape_ingest, scrape_trainer

SECONDS = PATIENCE


class Two(Collector):
    def collect(self) -> Iterable[object]:  # type: ignore[override]
        yield gauge("two", "Always 2.", 2)


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer(Two(), "127.0.0.1", 0)
    yield made
    made.close()


def open_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port or 0), SECONDS)


def say(server: MetricsServer, request: bytes) -> bytes:
    """All that is answered to these bytes."""
    with connect(server) as wire, wire.makefile("rb") as answer:
        wire.sendall(request)
        return answer.read()


def scrape(server: MetricsServer, **headers: str) -> tuple[str, bytes]:
    """Content type and body of a scrape."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - an address of our own
        return answer.headers["Content-Type"], answer.read()


def test_a_scraper_gets_the_format_and_the_compression_that_it_asks_for(server: MetricsServer) -> None:
    kind, text = scrape(server)
    assert kind.startswith("text/plain")
    assert b"two 2.0\n" in text
    kind, packed = scrape(server, **{"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"})
    assert kind.startswith("application/openmetrics-text")
    assert gzip.decompress(packed).endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"POST /metrics HTTP/1.1", b"HTTP/1.0 405"),
        (b"GET /metrics HTTP/2", b"Error code: 400"),
        (b"\xff \xff \xff", b"Error code: 400"),
        (b"GET /" + 100_000 * b"x" + b" HTTP/1.1", b"HTTP/1.0 414"),
    ],
    ids=["no reading", "another protocol", "no words", "too long"],
)
def test_a_request_that_is_no_scrape_is_refused(server: MetricsServer, request_line: bytes, status: bytes) -> None:
    answer = say(server, request_line + b"\r\n\r\n")
    assert status in answer
    assert b"two" not in answer


def test_hundreds_of_idle_connections_take_a_few_descriptors_and_threads_and_keep_no_scraper_out(
    server: MetricsServer,
) -> None:
    threads, descriptors = threading.active_count(), open_descriptors()
    with ExitStack() as held:
        for _ in range(30):
            for _ in range(10):  # The kernel drops those beyond what waits to be accepted, and they try again later.
                held.enter_context(connect(server)).sendall(b"GET /metrics HTTP/1.1\r\n")
            assert b"two 2.0" in scrape(server)[1]
        # The thread of a connection that was ended closes its descriptor, and ends, a moment later.
        wait_for(lambda: threading.active_count() <= threads + MAX_CONNECTIONS, "the threads of surplus ones")
        wait_for(lambda: open_descriptors() <= descriptors + 300 + MAX_CONNECTIONS, "the descriptors of surplus ones")


def test_a_scraper_that_says_nothing_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "SECONDS", 0.1)
    made = MetricsServer(Two(), "127.0.0.1", 0)
    with connect(made) as wire:
        assert wire.recv(1) == b""
    made.close()


class Broken(Collector):
    def collect(self) -> Iterable[object]:  # type: ignore[override]
        raise RuntimeError("a figure cannot be read")


def test_a_scrape_that_fails_is_told_in_the_log_and_the_next_one_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    registered = Two()
    made = MetricsServer(registered, "127.0.0.1", 0)
    registered.collect = Broken().collect  # type: ignore[method-assign]
    assert say(made, b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 500")
    del registered.collect
    assert b"two 2.0" in scrape(made)[1]
    made.close()
    assert "metrics: a scrape failed" in caplog.text
    assert "a figure cannot be read" in caplog.text


def test_a_metrics_port_that_is_taken_is_named_and_free_again_after_close() -> None:
    first = MetricsServer(Two(), "127.0.0.1", 0)
    with pytest.raises(AddressError, match=f"cannot listen on 127.0.0.1:{first.port}"):
        MetricsServer(Two(), "127.0.0.1", first.port)
    first.close()
    again = MetricsServer(Two(), "127.0.0.1", first.port)
    assert again.port == first.port
    again.close()


def test_no_port_serves_nothing() -> None:
    server = MetricsServer(Two(), "127.0.0.1", None)
    assert server.port is None
    server.close()


def test_without_a_scraper_there_is_no_wait(server: MetricsServer) -> None:
    assert not server._scrapes.wait_for_next()
    scrape(server)
    assert not server._scrapes.wait_for_next(), "a single look is no scraper"


def test_a_scraper_that_comes_regularly_is_shown_the_last_figures(server: MetricsServer) -> None:
    shown, ended = list[bool](), threading.Event()

    def scrape_regularly() -> None:
        while not ended.wait(0.2):
            scrape(server)

    scraper = threading.Thread(target=scrape_regularly)
    scraper.start()
    try:
        for _ in range(3):
            scrape(server)
        shown.append(server._scrapes.wait_for_next())
    finally:
        ended.set()
        scraper.join()
    assert shown == [True]


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
