from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from common.errors import CheckpointError
from learner.replay.recovery import Watermark
from learner.storage.checkpoint import Saves
from learner.storage.training_state import RunState, StateFiles, read_newest_state, read_newest_watermark


def files(directory: Path, run_id: str = "run", keep: int = 3) -> StateFiles:
    return StateFiles(directory / "checkpoints", {"run_id": run_id, "incarnation": 2}, Saves(), keep=keep)


def write(to: StateFiles, *steps: int) -> None:
    for step in steps:
        to.write(RunState(step, {"w": torch.full((3,), float(step))}, json.dumps({"at": step})))


def newest(directory: Path) -> int:
    found = read_newest_state(directory / "checkpoints", "run")
    assert found is not None
    assert found.tensors["w"].tolist() == [float(found.opt_steps)] * 3
    assert json.loads(found.values) == {"at": found.opt_steps}
    return found.opt_steps


def test_the_newest_state_is_read_back_and_its_manifest_says_what_it_is(tmp_path: Path) -> None:
    write(files(tmp_path), 9, 10)
    assert newest(tmp_path) == 10
    manifest = json.loads((tmp_path / "checkpoints" / "10" / "manifest.json").read_text())
    assert manifest.pop("sha256").keys() == {"state.json", "state.safetensors"}
    assert manifest == {"format": 1, "run_id": "run", "incarnation": 2, "opt_steps": 10}


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    write(files(tmp_path, keep=2), 8, 9, 10, 11)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "11"]


def test_without_checkpoints_no_state_is_read(tmp_path: Path) -> None:
    assert read_newest_state(tmp_path / "checkpoints", "run") is None


def test_what_a_killed_write_left_behind_is_neither_read_nor_in_the_way(tmp_path: Path) -> None:
    write(files(tmp_path), 9)
    (tmp_path / "checkpoints" / ".10.part").mkdir()
    assert newest(tmp_path) == 9
    write(files(tmp_path), 10)
    assert newest(tmp_path) == 10


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
def test_a_damaged_state_is_refused_with_its_reason_and_the_one_before_is_taken(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(files(tmp_path), 9, 10)
    damaged = tmp_path / "checkpoints" / "10" / name
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with caplog.at_level(logging.ERROR):
        assert newest(tmp_path) == 9
    (message,) = caplog.messages
    assert "checkpoints/10: " in message
    assert ("no readable checkpoint" if name == "manifest.json" else f"{name} is damaged") in message


def test_without_any_whole_state_nothing_is_made_up(tmp_path: Path) -> None:
    write(files(tmp_path), 9)
    (tmp_path / "checkpoints" / "9" / "state.json").unlink()
    with pytest.raises(CheckpointError, match="none of 1 checkpoints can be used"):
        read_newest_state(tmp_path / "checkpoints", "run")


def test_a_state_of_another_run_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(files(tmp_path, run_id="other"), 9)
    with pytest.raises(CheckpointError, match="none of 1"):
        read_newest_state(tmp_path / "checkpoints", "run")
    assert "run_id: expected run, found other" in caplog.text


def test_a_place_that_cannot_be_written_is_an_error_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be saved: .*Not a directory"):
        write(files(tmp_path), 1)


def test_a_state_with_nan_is_refused_and_the_state_before_stays(tmp_path: Path) -> None:
    kept = files(tmp_path, keep=1)
    write(kept, 9)
    with pytest.raises(CheckpointError, match="opt step 10: expected numbers, found NaN in w"):
        kept.write(RunState(10, {"w": torch.tensor([1.0, torch.nan])}, "{}"))
    assert newest(tmp_path) == 9


WATERMARKS = [Watermark(0, n, 0, n, [(7, n, n)]) for n in range(3)]


def test_the_watermark_of_the_newest_state_is_found_whatever_else_is_damaged(tmp_path: Path) -> None:
    def watermark() -> Watermark | None:
        return read_newest_watermark(tmp_path / "checkpoints", "run")

    assert watermark() is None
    for step, written in enumerate([*WATERMARKS, None]):
        files(tmp_path).write(RunState(step, {"w": torch.zeros(1)}, "{}"), written)
    assert watermark() == WATERMARKS[2], "the newest that has one"
    (tmp_path / "checkpoints" / "2" / "state.safetensors").unlink()
    assert watermark() == WATERMARKS[2]
    (tmp_path / "checkpoints" / "2" / "replay.json").write_text(WATERMARKS[0].to_json())
    assert watermark() == WATERMARKS[1]
    for damaged in ({}, {"format": 1, "run_id": "run", "opt_steps": 1}):
        (tmp_path / "checkpoints" / "1" / "manifest.json").write_text(json.dumps(damaged))
        assert watermark() is None
