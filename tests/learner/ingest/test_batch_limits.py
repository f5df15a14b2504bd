from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from common.errors import RunDirectoryError
from common.wire.pb import crossborder_pb2 as pb
from learner.ingest.batch_limits import BatchLimits
from learner.loop import learner_parts
from learner.loop.server import LearnerServer
from tests.conftest import MakeConfig
from tests.learner.ingest.by_hand import Client, Talk, refusal


def test_batches_within_the_former_limits_are_taken_after_a_resume_with_lower_limits(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, server_config = {"capacity": 10_000}, {"grace_seconds": 0.1}
    with LearnerServer(make_config(replay=replay, push={"n_buffer": 3000}, server=server_config)) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        talk.say(client.batch(1))
        talk.cancel()
    monkeypatch.setattr(learner_parts, "MESSAGE_BYTES", 60_000)
    with LearnerServer(make_config(replay=replay, server=server_config), resume=True) as server:
        client, newcomer = Client(server), Client(server, incarnation=78)
        joined = client.join()
        assert (joined.last_seq, joined.limits.max_rows, joined.limits.max_message_bytes) == (1, 625, 60_000)
        assert Talk(client.stub).say(client.batch(2, count=2000)).acked_seq == 2
        newcomer.join()
        with pytest.raises(grpc.RpcError) as error:
            Talk(newcomer.stub).say(newcomer.batch(1, count=626))
        assert "rows: expected 1 to 625, found 626" in refusal(error)[2]


def limits(max_rows: int, max_message_bytes: int) -> pb.Limits:
    return pb.Limits(max_rows=max_rows, max_message_bytes=max_message_bytes, silence_seconds=9.0)


def test_the_largest_value_of_each_limit_over_all_starts_is_kept(tmp_path: Path) -> None:
    for max_rows, max_message_bytes in ((10, 500), (20, 400), (5, 5)):
        found = BatchLimits(tmp_path, limits(max_rows, max_message_bytes), 1000)
    assert found.present == limits(5, 5)
    assert found.largest == limits(20, 500)


def test_no_batch_is_larger_than_a_replay_that_was_made_anew_and_smaller(tmp_path: Path) -> None:
    BatchLimits(tmp_path, limits(20, 500), 1000)
    assert BatchLimits(tmp_path, limits(5, 500), 10).largest == limits(10, 500)
    assert BatchLimits(tmp_path, limits(5, 500), 1000).largest == limits(20, 500), "the file keeps the largest"


def test_a_damaged_file_is_logged_and_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "limits.json").write_text('{"max_rows": ')
    assert BatchLimits(tmp_path, limits(5, 5), 1000).largest == limits(5, 5)
    assert "limits.json is damaged" in caplog.text
    assert BatchLimits(tmp_path, limits(4, 4), 1000).largest == limits(5, 5)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "limits.json").mkdir()
    with pytest.raises(RunDirectoryError, match=r"limits\.json: cannot be read: Is a directory"):
        BatchLimits(tmp_path, limits(5, 5), 1000)
