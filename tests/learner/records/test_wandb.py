from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import PluginError
from learner.loop.in_turns import train_in_turns
from tests.conftest import MakeConfig
from tests.learner.loop.test_in_turns import IN_TURNS

CANARY = "gold-from-the-river"


@pytest.fixture(autouse=True)
def nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The real W&B, offline, without a user's own settings; its process ends with the test."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    import wandb  # It takes half a second, which only these tests need.

    yield
    wandb.teardown()


BLOCK = 1 << 15


def records_of(path: Path) -> list[Any]:
    """The records of a W&B file: a LevelDB log after a header of 7 bytes.

    Each part of a record is a checksum, its length, its kind (1 whole, 2 first, 3 middle, 4 last) and its bytes.
    """
    from wandb.proto import wandb_internal_pb2

    data, at, begun, found = path.read_bytes(), 7, b"", []
    while at < len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        begun += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            found.append(wandb_internal_pb2.Record.FromString(begun))  # type: ignore[attr-defined] # made when imported
            begun = b""
    return found


def written(run_dir: Path) -> list[Any]:
    """The records of all lives of a run, in their order."""
    files = sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [record for path in files for record in records_of(path)]


def history(records: list[Any]) -> list[dict[str, float]]:
    rows = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    return [{".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in row.item} for row in rows]


def runs(records: list[Any]) -> list[Any]:
    return [record.run for record in records if record.WhichOneof("record_type") == "run"]


def config_of(run: Any) -> dict[str, Any]:
    return {item.key: json.loads(item.value_json) for item in run.config.update}


def trained(make_config: MakeConfig, max_opts: int) -> Path:
    params = {"project": "p", "group": "g", "tags": ["t"]}
    own = {"target": "tests.learner.records.test_wandb:RecorderWithToken", "params": {"access_token": CANARY}}
    recorders = [{"target": "learner.records.wandb:WandbRecorder", "params": params}, own]
    config = make_config(agent=IN_TURNS, recorders=recorders, trainer={"max_opts": max_opts})
    run_dir = train_in_turns(config, resume=True).run_dir
    import wandb

    wandb.teardown()  # W&B's own process may write the last records after the run's end, but before its own.
    return run_dir


class RecorderWithToken:
    """A recorder whose parameters hold a secret."""

    def __init__(self, run_dir: Path, access_token: str) -> None:
        assert access_token == CANARY

    def write(self, opt_steps: int, record: object) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def test_records_are_written_over_opt_steps_with_the_configuration(make_config: MakeConfig) -> None:
    run_dir = trained(make_config, 300)
    records = written(run_dir)
    rows = history(records)
    assert [(row["opt_steps"], row["samples_total"]) for row in rows] == [(100, 101), (200, 201), (300, 301)]
    assert all("loss" in row for row in rows)
    axes = {record.metric.step_metric for record in records if record.WhichOneof("record_type") == "metric"}
    assert "opt_steps" in axes
    run = runs(records)[0]
    assert (run.project, run.run_group, [*run.tags], run.display_name) == ("p", "g", ["t"], "run")
    config = config_of(run)
    assert (config["trainer"]["max_opts"], config["agent"]["params"]["in_turns"]) == (300, True)


def test_a_resumed_run_goes_on_in_the_wandb_run_of_its_own_id(make_config: MakeConfig) -> None:
    trained(make_config, 100)
    run_dir = trained(make_config, 200)
    records = written(run_dir)
    run_id = json.loads((run_dir / "run.json").read_text())["run_id"]
    assert {run.run_id for run in runs(records)} == {run_id}
    assert [row["opt_steps"] for row in history(records)] == [100, 200]


def test_no_file_of_wandb_holds_a_secret_of_the_configuration(make_config: MakeConfig) -> None:
    run_dir = trained(make_config, 100)
    assert CANARY in (run_dir / "config.yaml").read_text(), "the file that only the owner can read has it"
    files = [path for path in (run_dir / "wandb").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    (first, *_) = runs(written(run_dir))
    assert config_of(first)["recorders"][1]["params"] == {"access_token": "***"}


def test_without_credentials_the_advice_is_to_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    from learner.records.wandb import WandbRecorder  # It imports wandb.

    with pytest.raises(PluginError, match=r"W&B: .*; say wandb login, or set mode: offline"):
        WandbRecorder(tmp_path, mode="online")
