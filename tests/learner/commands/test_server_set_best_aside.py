"""``learner-server set-best-aside``: a wrong score is taken back, also if it has ended the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from common.config.run_config import RunConfig
from common.errors import CheckpointError
from common.settings import validate
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.learner import Outcome
from learner.storage.checkpoint import read_best
from tests.conftest import Command
from tests.learner.loop.test_in_turns import cartpole


def ends_at_once(run_dir: Path) -> RunConfig:
    """A run whose first score reaches its target."""
    values = cartpole(run_dir, 3).model_dump(mode="json")
    values["trainer"] |= {"max_opts": 1000, "eval_interval": 5, "target_score": 1.0}
    return validate(RunConfig, values)


def test_a_score_that_ended_the_run_is_taken_back_and_the_run_goes_on(
    tmp_path: Path, start: Callable[..., Command]
) -> None:
    config = ends_at_once(tmp_path / "run")
    assert train_in_turns(config).outcome is Outcome.TARGET
    best = read_best(tmp_path / "run")
    assert best is not None
    with Trainer(config, resume=True) as trainer:
        assert trainer.learner.outcome is Outcome.TARGET, "nothing was taken back yet"
    command = start("learner-server", "set-best-aside", "--run", str(tmp_path / "run"))
    assert command.wait() == 0
    assert (
        f"best/ of opt step 5 with the score {best.score:g} is best-5/ now; the next score is the" in command.output()
    )
    line = json.loads((tmp_path / "run" / "audit.jsonl").read_text())
    assert {**line, "time": ""} == {
        "time": "",
        "event": "best",
        "outcome": "set aside",
        "opt_steps": 5,
        "score": best.score,
        "kept": "best-5",
    }
    with Trainer(config, resume=True) as trainer:
        assert trainer.learner.outcome is None
    again = start("learner-server", "set-best-aside", "--run", str(tmp_path / "run"))
    assert again.wait() == CheckpointError.exit_code
    assert "expected a run with a policy in best/, found none that can be read" in again.output()
