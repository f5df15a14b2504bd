from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learner.loop.in_turns import train_in_turns
from learner.records import tensorboard
from learner.records.tensorboard import TensorBoardRecorder
from tests.conftest import MakeConfig, wait_for
from tests.disks import Disk
from tests.learner.loop.test_in_turns import IN_TURNS


def test_every_record_becomes_scalars_over_opt_steps(make_config: MakeConfig) -> None:
    recorders = [{"target": "learner.records.tensorboard:TensorBoardRecorder"}]
    result = train_in_turns(make_config(agent=IN_TURNS, recorders=recorders, trainer={"max_opts": 300}))
    events = EventAccumulator(str(Path(result.run_dir) / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("samples_total")] == [(100, 101), (200, 201), (300, 301)]
    assert "loss" in events.Tags()["scalars"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # That is how tensorboard fails.
def test_records_go_on_after_a_full_disk(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "REPLACE_SECONDS", 0.0)
    recorder = TensorBoardRecorder(disk.path)
    steps = iter(range(1000))

    def is_written() -> bool:
        try:
            recorder.write(next(steps), {"loss": 1.0})
            recorder.flush()
        except OSError:
            return False
        return True

    assert is_written()
    disk.fill()
    wait_for(lambda: not is_written(), "the disk is full")
    disk.clear()
    wait_for(is_written, "records are written again")
    newest = next(steps)
    recorder.write(newest, {"loss": 1.0})
    recorder.close()
    events = EventAccumulator(str(disk.path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")][-1] == newest
