from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from common.errors import RefusedError
from learner.commands.admin_client import AdminClient, AdminTrust
from learner.loop.server import LearnerServer
from learner.replay.limiter import RatioLimiter
from learner.replay.ratio import LiveRatio
from learner.shared.control import ControlBlock
from tests.conftest import MORE_STEPS, MakeConfig, kill, wait_for
from tests.learner.ingest.by_hand import Client, Talk
from tests.learner.scrapes import scrape_trainer

QUICK = {"grace_seconds": 0.1}
RATIO = {"capacity": 1000, "samples_per_insert": 2.0, "error_buffer": 10.0}


def live(directory: Path, samples_per_insert: float | None, *, create: bool = False) -> LiveRatio:
    return LiveRatio(ControlBlock.open(directory, create=create), RatioLimiter(samples_per_insert, warmup=10))


def test_one_side_sees_what_the_other_changes_and_never_half_of_it(tmp_path: Path) -> None:
    writer, reader = live(tmp_path, 1.0, create=True), live(tmp_path, 1.0)
    writer.change(1.0, 1, 1)
    ended, torn = threading.Event(), []

    def look() -> None:
        while not ended.is_set():
            found = reader.limiter()
            if not found.samples_per_insert == found.inserted_before == found.sampled_before:
                torn.append(found)

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(2, 5000):
        writer.change(number, number, number)
    ended.set()
    thread.join()
    assert torn == []
    assert reader.samples_per_insert == 4999


@pytest.mark.parametrize(("configured", "expected"), [(2.0, 8.0), (3.0, 3.0), (None, None)])
def test_the_next_life_keeps_what_was_set_unless_it_is_configured_otherwise(
    tmp_path: Path, configured: float | None, expected: float | None
) -> None:
    first = live(tmp_path, 2.0, create=True)
    first.begin(0, 0)
    first.change(8.0, 500, 1000)
    second = live(tmp_path, configured)
    second.begin(700, 900)
    assert second.samples_per_insert == expected
    limiter = second.limiter()
    assert (limiter.inserted_before, limiter.sampled_before) == (700, 900), "without a burst"


def test_before_the_first_draw_of_a_life_the_draws_of_the_one_before_count(tmp_path: Path) -> None:
    ratio = live(tmp_path, 2.0, create=True)
    ratio.begin(700, 900)
    ratio.change(8.0, 720, 0)
    assert ratio.limiter().sampled_before == 900


@pytest.fixture
def server(make_config: MakeConfig) -> Iterator[LearnerServer]:
    """Keeps a ratio and answers admins; nobody trains."""
    with LearnerServer(make_config(server=QUICK, replay=RATIO)) as server:
        yield server


@pytest.fixture
def admin(server: LearnerServer) -> Iterator[AdminClient]:
    with closing(AdminClient(server.ingest.address, AdminTrust())) as client:
        yield client


def test_a_change_reaches_trainer_and_ingest_and_frees_whom_the_ratio_before_held_back(
    server: LearnerServer, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(server)
    client.join()
    talk = Talk(client.stub)
    server.control.trainer_waits_for = MORE_STEPS
    assert talk.say(client.batch(1, count=50)).acked_seq == 1
    server.control.trainer_waits_for, server.control.sampled = 0, 1
    assert talk.say(client.batch(2, count=50)).acked_seq == 1, "held back until 190 items are drawn"
    with caplog.at_level(logging.INFO):
        assert admin.set_replay_ratio(0.5) == 2.0
        wait_for(lambda: "replay ratio 0.5 instead of 2, from step 100 on" in caplog.text, "the log")
    while talk.hear().acked_seq < 2:
        pass
    assert admin.fetch_status().samples_per_insert == 0.5
    assert server.status().samples_per_insert == 0.5
    assert scrape_trainer(server)["replay_ratio_target"] == 0.5
    limiter = server.ratio.limiter()
    assert limiter.may_sample(120, 1 + 10 + 10)
    assert not limiter.may_sample(120, 1 + 10 + 11)
    admin.set_replay_ratio(None)
    assert server.status().samples_per_insert is None
    assert "replay_ratio_target" not in scrape_trainer(server)
    talk.end()


def test_a_ratio_that_no_configuration_may_have_is_refused_with_the_reason(
    server: LearnerServer, admin: AdminClient
) -> None:
    for ratio in (0.0, -1.0, 1e-320, 9e-7, 1e7, math.inf, math.nan):
        with pytest.raises(RefusedError, match=rf"replay\.samples_per_insert: .*, found {ratio}"):
            admin.set_replay_ratio(ratio)
        assert server.status().samples_per_insert == 2.0, ratio


def test_it_outlives_ingest_and_a_resumed_run_keeps_it(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server=QUICK, replay=RATIO)) as server:
        with closing(AdminClient(server.ingest.address, AdminTrust())) as admin:
            admin.set_replay_ratio(8.0)
        kill(server.ingest.pid)
        wait_for(lambda: server.ingest.restarts == 1, "the restart")
        with closing(AdminClient(server.ingest.address, AdminTrust())) as admin:
            assert admin.fetch_status().samples_per_insert == 8.0
    with LearnerServer(make_config(server=QUICK, replay=RATIO), resume=True) as server:
        assert server.status().samples_per_insert == 8.0
