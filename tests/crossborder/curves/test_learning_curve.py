from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from common.errors import ConfigError
from crossborder.curves.learning_curve import read_curve, read_points
from learner.loop.in_turns import train_in_turns
from tests.conftest import MakeConfig
from tests.learner.loop.test_in_turns import IN_TURNS

HEAD = "opt_steps,seconds,samples_total,eval_reward,loss"


def write_run(run: Path, *rows: str, head: str = HEAD, config: object = None) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "metrics.csv").write_text("\n".join([head, *rows]) + "\n")
    if config is not None:
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def test_rows_without_the_record_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "100,1.5,400,20,0.5", "150,2,600,,0.4", "200,3,800,30,0.3")
    curve = read_curve(run)
    assert (curve.x.tolist(), curve.y.tolist()) == ([400, 800], [20, 30])
    curve = read_curve(run, "opt-steps", "loss")
    assert (curve.x.tolist(), curve.y.tolist()) == ([100, 150, 200], [0.5, 0.4, 0.3])
    assert read_curve(run, "seconds").x.tolist() == [1.5, 3]


def test_a_score_that_came_late_is_put_in_its_place_and_of_two_at_one_place_the_last_counts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "200,3,800,30,", "100,1,400,20,", "300,4,1200,1,", "300,4,1200,40,")
    curve = read_curve(run, "opt-steps")
    assert (curve.x.tolist(), curve.y.tolist()) == ([100, 200, 300], [20, 30, 40])


def test_a_last_row_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "100,1,400,20,0.5", "200,3")
    assert read_curve(run).x.tolist() == [400]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_the_value_with_which_a_run_diverged_is_left_out(tmp_path: Path, value: str) -> None:
    """Sorted with the scores of other runs, NaN would count as the best one."""
    run = write_run(tmp_path / "run", "100,1,400,20,0.5", f"200,3,800,{value},0.4")
    assert (read_curve(run).x.tolist(), read_curve(run).y.tolist()) == ([400], [20])
    assert len(read_points(run)) == 2, "a sweep takes it for a bad value"
    with pytest.raises(ConfigError, match="expected rows with loss, found none"):
        read_curve(write_run(tmp_path / "other", f"100,1,400,20,{value}"), record="loss")


def test_the_configuration_names_the_curve_and_its_task(tmp_path: Path) -> None:
    config = {"name": "dqn", "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}}}
    row = "100,1,400,20,0.5"
    curve = read_curve(write_run(tmp_path / "a", row, config=config))
    assert (curve.name, curve.task, curve.settings["env.params.id"]) == ("dqn", "CartPole-v1", "CartPole-v1")
    own = read_curve(write_run(tmp_path / "b", row, config={"env": {"target": "mine:Env"}}))
    assert (own.name, own.task) == ("b", "mine:Env")
    bare = read_curve(write_run(tmp_path / "c", row))
    assert (bare.name, bare.task) == ("c", "unknown")


def test_a_run_that_has_been_resumed_is_one_curve(make_config: MakeConfig) -> None:
    for max_opts in (100, 300):
        config = make_config(agent=IN_TURNS, trainer={"max_opts": max_opts})
        result = train_in_turns(config, resume=True)
    assert read_curve(result.run_dir, "opt-steps", "loss").x.tolist() == [100, 200, 300]
    assert read_curve(result.run_dir, "env-steps", "loss").name == "counting"


@pytest.mark.parametrize(
    ("name", "record", "told"),
    [
        ("runn", "eval_reward", r"runn/metrics.csv: cannot be read: .*did you mean '.*run'"),
        ("run", "eval_rewrd", r"expected a column eval_rewrd, found none \(did you mean 'eval_reward'\?\)"),
        (
            "run",
            "eval_reward",
            r"expected rows with eval_reward, found none: the run has not .* yet; --record (train_return|loss) plots",
        ),
    ],
)
def test_a_curve_that_cannot_be_read_is_told_with_the_nearest_name(
    tmp_path: Path, name: str, record: str, told: str
) -> None:
    write_run(tmp_path / "run", "100,1,400,,0.5")
    with pytest.raises(ConfigError, match=told):
        read_curve(tmp_path / name, record=record)
