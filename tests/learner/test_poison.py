"""One bad row among many: it neither gets in nor, where an earlier release let it in, ends a run for good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from common.config.run_config import RunConfig
from common.data import Items
from common.settings import validate
from common.wire.codec import encode
from common.wire.pb import crossborder_pb2 as pb
from crossborder.inspecting.replay_inspect import main as inspect
from learner.loop.learner import Outcome
from learner.loop.server import LearnerServer
from learner.replay.quarantine import read_records
from tests.learner.ingest.by_hand import Client, Talk, refusal

ROWS = 1000


def cartpole(run_dir: Path, **trainer: Any) -> RunConfig:
    return validate(
        RunConfig,
        {
            "run_dir": str(run_dir),
            "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}},
            "agent": {"target": "common.agents.dqn:DQN", "params": {"units": [8], "batch_size": 64}},
            "trainer": {"max_opts": 30, "eval_interval": 0, "warmup_period": 100, **trainer},
            "replay": {"capacity": 20_000},
            "server": {"listen": "127.0.0.1:0", "grace_seconds": 0.5},
            "metrics": {"listen": "127.0.0.1:0"},
        },
    )


def push(client: Client, seq: int, **bad: int) -> pb.PushItemsRequest:
    """A thousand rows, the seventh with these values."""
    rng = np.random.default_rng(seq)
    items: Items = {
        c.name: rng.integers(0, 2, (ROWS, *c.shape)).astype(c.dtype) if c.dtype != "|b1" else np.zeros(ROWS, bool)
        for c in client.schema.columns
    }
    for name, value in bad.items():
        items[name][7] = value
    return client.batch(seq, count=ROWS, payload=encode(client.schema, items, ROWS))


def test_one_bad_action_among_12000_rows_is_refused_kept_to_look_at_and_the_trainer_lives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LearnerServer(cartpole(tmp_path / "run")) as server:
        honest, faulty = Client(server, 77), Client(server, 78)
        honest.join()
        faulty.join(host="faulty-host")
        talk = Talk(honest.stub)
        for seq in range(1, 7):
            talk.say(push(honest, seq))
        with pytest.raises(grpc.RpcError) as error:
            Talk(faulty.stub).say(push(faulty, 1, action=2))
        assert refusal(error)[1:] == ("bad_items", "actor 1: column 'action': expected 0 to 1, found 2 in row 7")
        for seq in range(7, 13):
            assert talk.say(push(honest, seq)).acked_seq == seq
        assert server.train().outcome is Outcome.MAX_OPTS
        assert server.buffer.inserted == 12 * ROWS
    (record,) = read_records(tmp_path / "run" / "shared", "ingest")
    assert (record.actor_id, record.host, record.incarnation, record.seq) == (1, "faulty-host", f"{78:016x}", 1)
    assert (record.column, record.expected, record.found, record.row) == ("action", "0 to 1", "2", 7)
    assert record.values["action"] == 2
    assert inspect([str(tmp_path / "run"), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["quarantine"]
    assert shown["message"] == "column 'action': expected 0 to 1, found 2 in row 7"
    assert inspect([str(tmp_path / "run")]) == 0
    assert "1 batches refused or rows suspected" in capsys.readouterr().out


def test_a_replay_that_an_earlier_release_filled_with_bad_rows_is_resumed_without_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LearnerServer(cartpole(tmp_path / "run")) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        talk.say(push(client, 1))
        memory = server.run.memory
        memory.columns["action"][10:400] = 2  # As release 0.1 stored what an actor sent.
        with pytest.raises(Exception, match="out of bounds") as raised:
            server.train()
    (note,) = raised.value.__notes__
    assert f"from actor 0 on here ({77:016x})" in note
    assert "opt had last drawn" in note
    assert note in caplog.text
    suspects = read_records(tmp_path / "run" / "shared", "trainer")
    assert {record.reason for record in suspects} == {"drawn before opt raised"}
    assert any(record.values["action"] == 2 for record in suspects)
    with LearnerServer(cartpole(tmp_path / "run", max_opts=60), resume=True) as server:
        assert "390 rows of the replay hold values that are refused" in caplog.text
        assert f"390 from actor 0 on here ({77:016x})" in caplog.text
        assert server.train().outcome is Outcome.MAX_OPTS
    assert read_records(tmp_path / "run" / "shared", "trainer")[-1].reason == "found bad"
