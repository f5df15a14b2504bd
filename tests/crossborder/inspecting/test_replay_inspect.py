"""``replay-inspect`` on runs of real parts, going on or finished."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import Column, Schema
from common.wire.pb import crossborder_pb2 as pb
from crossborder.inspecting.replay_inspect import main
from learner.loop.in_turns import train_in_turns
from learner.loop.server import LearnerServer, train_async
from tests.conftest import MakeConfig
from tests.learner.datasets.saved import save_batches
from tests.learner.ingest.by_hand import Client, Talk


def inspect(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([str(run), "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_that_is_going_on_can_be_looked_at(host: LearnerServer, capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(host)
    client.join()
    talk = Talk(client.stub)
    talk.say(client.batch(1, report=pb.Report(env_steps=5)))
    found = inspect(host.run.dir.path, capsys, "--rows", "2")
    talk.end()
    assert (found["rows"], found["capacity"], found["rows_stored"], found["first"]) == (5, 1_000_000, 5, 0)
    assert [column["name"] for column in found["schema"]] == [column.name for column in client.schema.columns]
    assert [(actor["host"], actor["state"], actor["items"]) for actor in found["actors"]] == [("here", "online", 5)]
    assert [(item["index"], item["reward"]) for item in found["newest"]] == [(4, 4.0), (3, 3.0)]
    rewards = found["histograms"]["reward"]
    assert (rewards["n"], rewards["mean"], rewards["low"], rewards["high"]) == (5, 2.0, 0.0, 4.0)
    assert (sum(rewards["counts"]), rewards["edges"][0], rewards["edges"][-1]) == (5, 0.0, 4.0)


def test_more_rows_than_a_table_has_room_for_are_asked_for_as_json(
    host: LearnerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(host.run.dir.path), "--rows", "101"]) == 2
    assert "--rows: expected at most 100 without --json, found 101; add --json" in capsys.readouterr().err
    assert inspect(host.run.dir.path, capsys, "--rows", "101")["newest"] == []


def test_a_damaged_table_of_actors_is_named(host: LearnerServer, capsys: pytest.CaptureFixture[str]) -> None:
    host.actor_table["state"][5] = 9
    assert main([str(host.run.dir.path)]) == 4
    assert "actors: expected the states of actors" in capsys.readouterr().err


def test_an_empty_replay_has_nothing_to_show(host: LearnerServer, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect(host.run.dir.path, capsys)
    assert (found["rows"], found["oldest_seconds"], found["actors"], found["newest"]) == (0, None, [], [])
    assert found["histograms"] == {}


def test_a_finished_run_shows_how_old_its_rows_are_and_its_priorities(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {
        "replay": {"capacity": 200, "prioritized": {}},
        "push": {"initial_priorities": True, "n_buffer": 10},
        "trainer": {"max_opts": 50, "eval_interval": 0},
        "agent": {"target": "tests.parts:RatingAgent"},
    }
    run = train_async(make_config(**changes), 1).run_dir
    found = inspect(run, capsys)
    assert 0 < found["rows"] <= 200
    assert found["oldest_seconds"] > 0
    assert found["actors"][0]["state"] == "left"
    assert set(found["histograms"]) == {"reward", "first priority", "priority"}
    assert main([str(run)]) == 0
    shown = capsys.readouterr().out
    for what in ("of 200 rows", "columns", "actors", "newest rows", "reward: mean", "priority: mean", "█"):
        assert what in shown


def test_a_run_in_turns_with_pictures_has_no_actors(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {"target": "tests.frame_parts:filmed_counting_env", "frame_stack": 4}
    agent = {"target": "tests.frame_parts:FilmCritic", "params": {"in_turns": True}}
    run = train_in_turns(make_config(env=env, agent=agent, trainer={"max_opts": 20})).run_dir
    found = inspect(run, capsys, "--rows", "1")
    assert found["rows_stored"] > found["steps_stored"] > 0
    assert (found["actors"], found["oldest_seconds"]) == ([], None)
    assert found["newest"][0]["obs"]["shape"] == [32, 32]
    assert main([str(run)]) == 0
    assert "steps ever stored" in capsys.readouterr().out.replace("\n", "")


def test_values_that_are_not_finite_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = Schema((Column("reward", "<f4"), Column("obs", "<f4", (9,))))
    items = {"reward": np.array([1.0, np.nan], np.float32), "obs": np.full((2, 9), np.nan, np.float32)}
    save_batches(tmp_path, schema, 10, [(7, items)])
    assert main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "[9] nan…nan" in shown
    assert "1 rows, and 1 with NaN or infinity" in " ".join(shown.split())
    assert inspect(tmp_path, capsys)["histograms"]["reward"]["n_nonfinite"] == 1


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["missing", "empty"])
def test_a_directory_without_a_run_ends_with_an_error_that_says_so(
    tmp_path: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cartpole-1").mkdir()
    make(tmp_path / "cartpole-2")
    assert main([str(tmp_path / "cartpole-2")]) == 4
    expected = "expected that of a run, found no layout.json" if (tmp_path / "cartpole-2").exists() else "did you mean"
    assert expected in capsys.readouterr().err
