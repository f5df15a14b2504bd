from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learner.loop.in_turns import train_in_turns
from tests.conftest import MakeConfig
from tests.learner.loop.test_in_turns import IN_TURNS


def test_every_record_becomes_scalars_over_opt_steps(make_config: MakeConfig) -> None:
    recorders = [{"target": "learner.records.tensorboard:TensorBoardRecorder"}]
    result = train_in_turns(make_config(agent=IN_TURNS, recorders=recorders, trainer={"max_opts": 300}))
    events = EventAccumulator(str(Path(result.run_dir) / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("samples_total")] == [(100, 101), (200, 201), (300, 301)]
    assert "loss" in events.Tags()["scalars"]
