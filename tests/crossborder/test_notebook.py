"""Training from Python: the same parts as the commands have, on real processes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.agents.dqn import DQN
from common.config.run_config import load_config
from common.data import Record
from common.errors import ConfigError, FaultError
from common.interfaces import ReplayBuffer
from crossborder import load_policy, read_records, train
from learner.loop.learner import Outcome
from tests.conftest import counting_values
from tests.e2e.test_exact import assert_same

CARTPOLE = {
    "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}},
    "agent": {"target": "common.agents.dqn:DQN", "params": {"units": [8], "batch_size": 8}},
    "replay": {"capacity": 1000},
    "trainer": {"max_opts": 40, "warmup_period": 20, "eval_interval": 20, "record_interval": 10, "sync_interval": 10},
    "evaluator": {"episodes": 1},
}


def test_a_configuration_is_trained_in_turns_and_its_policy_acts(tmp_path: Path) -> None:
    run = train(CARTPOLE, settings={"run_dir": str(tmp_path / "run"), "trainer.max_opts": 60}, progress=False)
    assert (run.outcome, run.opt_steps) == (Outcome.MAX_OPTS, 60)
    assert CARTPOLE["trainer"] == {**CARTPOLE["trainer"], "max_opts": 40}, "the caller's values are changed"  # type: ignore[dict-item]
    policy = load_policy(run.run_dir / "best")
    assert policy(np.zeros(4, np.float32)) in (0, 1)


def test_actors_train_a_run_that_is_resumed_by_the_same_call(tmp_path: Path) -> None:
    values = counting_values(tmp_path / "run")
    run = train(values, actors=1, settings={"trainer.max_opts": 200})
    again = train(values, actors=1, settings={"trainer.max_opts": 300}, resume=True)
    assert (run.opt_steps, again.opt_steps, again.run_dir) == (200, 300, run.run_dir)


class InterruptedDQN(DQN):
    """Is interrupted at the end of its 15th call of ``opt`` that learns, where the learner has not counted it yet."""

    is_interrupted = False
    learnt = 0

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        record = super().opt(buffer)
        self.learnt += record is not None
        if self.is_interrupted and self.learnt == 15:
            signal.raise_signal(signal.SIGINT)
        return record


def test_an_interrupted_run_in_turns_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"{__name__}:InterruptedDQN"
    alone, interrupted = ({"agent.target": target, "run_dir": tmp_path / name} for name in ("alone", "interrupted"))
    train(CARTPOLE, settings=alone, progress=False)
    monkeypatch.setattr(InterruptedDQN, "is_interrupted", True)
    with pytest.raises(KeyboardInterrupt, match=r"the run has ended in order; its run_dir is .*/interrupted$"):
        train(CARTPOLE, settings=interrupted, progress=False)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "interrupted" / "checkpoints").glob("15")], "the opt step is whole"
    train(CARTPOLE, settings=interrupted, resume=True, progress=False)
    assert_same(tmp_path / "alone", tmp_path / "interrupted")


def test_a_second_interrupt_ends_training_at_once(tmp_path: Path) -> None:
    values, marker = counting_values(tmp_path / "run"), tmp_path / "marker"
    values["env"] = {"target": "tests.parts:InterruptedEnv", "params": {"marker": str(marker), "at": 30}}
    settings = {"agent.params": {"in_turns": True}, "trainer.max_opts": 1_000_000}
    with pytest.raises(KeyboardInterrupt):
        train(values, settings=settings, progress=False)
    assert marker.read_text() == "one interrupt"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (tmp_path / "run" / "final").exists()


class ExitingDQN(DQN):
    """Calls ``sys.exit`` in its 15th call of ``opt``."""

    calls = 0

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        self.calls += 1
        if self.calls == 15:
            sys.exit(0)
        return super().opt(buffer)


class UnbuildableDQN(DQN):
    """Calls ``sys.exit`` while it is built."""

    def __init__(self, **_: Any) -> None:
        sys.exit(0)


@pytest.mark.parametrize("agent", [ExitingDQN, UnbuildableDQN])
def test_a_part_that_calls_exit_does_not_end_the_program_that_trains(tmp_path: Path, agent: type[DQN]) -> None:
    settings = {"agent.target": f"{__name__}:{agent.__name__}", "run_dir": tmp_path / "run"}
    with pytest.raises(FaultError, match=r"^one of your parts raised SystemExit\(0\), which would end this program"):
        train(CARTPOLE, settings=settings, progress=False)


def test_records_are_a_table_with_a_column_for_each_key(tmp_path: Path) -> None:
    run = train(CARTPOLE, settings={"run_dir": str(tmp_path / "run")}, progress=False)
    records = read_records(run.run_dir)
    assert list(records["opt_steps"]) == [10, 20, 30, 40]
    assert list(records["eval_reward"].notna()) == [False, True, False, True]
    with (run.run_dir / "metrics.csv").open("a") as file:
        file.write("50,1.25,8")  # A learner that is writing this row, or was killed in the midst of it.
    assert read_records(run.run_dir).equals(records)


def test_a_run_that_is_not_there_is_named_with_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "cartpole").mkdir()
    with pytest.raises(ConfigError, match=r"cartpol/metrics\.csv: cannot be read: No such file.*cartpole"):
        read_records(tmp_path / "cartpol")


@pytest.mark.parametrize("text", ["", "opt_steps,loss\n1,2\n1,2,3\n"], ids=["empty", "a row with too many values"])
def test_records_that_are_no_table_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"metrics\.csv: expected a CSV file, found another kind of file: "):
        read_records(tmp_path)


def test_settings_are_values_of_python_as_they_are(tmp_path: Path) -> None:
    settings = {"run_dir": tmp_path / "run", "agent.params.units": (4,), "agent.params.lr": np.float64(1e-5)}
    run = train(CARTPOLE, settings=settings, progress=False)
    params = load_config(run.run_dir / "config.yaml").agent.params
    assert (params["units"], params["lr"]) == ([4], 1e-5), "a number is no text such as 1e-05, which YAML takes for one"


def test_a_program_that_computes_in_float64_trains_all_the_same(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert train(CARTPOLE, settings={"run_dir": tmp_path / "run"}, progress=False).opt_steps > 0
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_numbers_of_numpy_are_saved_as_plain_numbers(tmp_path: Path) -> None:
    values = {**CARTPOLE, "run_dir": str(tmp_path / "run"), "seed": np.int64(3)}
    settings = {
        "agent.params.batch_size": np.int64(4),
        "agent.params.units": np.array([4, 8]),
        "agent.params.tau": np.float32(0.5),
        "agent.params.explorer": {"final_step": np.int32(100)},
        "agent.params.dueling": np.True_,
    }
    run = train(values, settings=settings, progress=False, actors=np.int64(0))  # type: ignore[arg-type]
    config = load_config(run.run_dir / "config.yaml")
    assert config.seed == 3
    assert config.agent.params == {
        "batch_size": 4,
        "units": [4, 8],
        "tau": 0.5,
        "explorer": {"final_step": 100},
        "dueling": True,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"actors": -1}, "actors: expected a whole number, 0 or more, found -1"),
        ({"actors": "2"}, "actors: expected a whole number, 0 or more, found '2'"),
        ({"actors": True}, "actors: expected a whole number, 0 or more, found True"),
        ({"resume": "RUN"}, "resume: expected True or False, found 'RUN'"),
        ({"resume": True}, "resume: expected run_dir in the configuration or in settings, found none"),
        ({"progress": 1}, "progress: expected True or False, found 1"),
        ({"config": None}, "config: expected a path, found None"),
        ({"settings": ["trainer.max_opts"]}, r"settings: expected values by dotted keys, .* found \['trainer"),
        ({"settings": {"agent.params.lr": torch.ones(())}}, r"agent.params.lr: expected a number, .* found tensor"),
        ({"config": {**CARTPOLE, "agent": {"params": {"units": {4}}}}}, r"agent.params.units: expected .* found \{4\}"),
        ({"settings": {"agent.params.units": [range(2)]}}, r"agent.params.units: expected .* found range\(0, 2\)"),
        ({"settings": {1: 2}}, r"settings: expected values by dotted keys, .* found \{1: 2\}"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_anything_starts(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(**{"config": CARTPOLE, **arguments})


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.max_opt"):
        train(CARTPOLE, settings={"trainer.max_opt": 60})
