"""The examples a user starts from run as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from common.config.run_config import load_config
from learner.storage.checkpoint import load_agent
from tests.conftest import ROOT, Command

SHORT_SEQUENCES = {"replay.view.params.length": 10, "replay.view.params.burn_in": 2}
OF_CARTPOLE = {"trainer.target_score": 60, "trainer.eval_interval": 200}
SOONER = {
    "own_agent": OF_CARTPOLE,
    "own_network": OF_CARTPOLE,
    "own_view": OF_CARTPOLE,
    "recurrent_cartpole": {"trainer.target_score": 30, "trainer.eval_interval": 100, **SHORT_SEQUENCES},
}
"""Scores that show that an example learns, where its own target takes long."""
LONGEST_S = 800
"""Seconds an example may train: 20 alone, ten times that beside other tests, twice on a slow machine, and twice for an
unlucky start."""
LONG = pytest.mark.timeout(LONGEST_S + 40)
FREE_PORTS = ("--listen", "127.0.0.1:0", "--set", "metrics.listen=127.0.0.1:0")


@LONG
@pytest.mark.parametrize("config", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_trains_to_its_target(start: Callable[..., Command], tmp_path: Path, config: Path) -> None:
    run_dir = tmp_path / "run"
    sooner = SOONER.get(config.stem, {})
    target = sooner.get("trainer.target_score", load_config(config).trainer.target_score)
    assert target is not None
    server = start(
        "learner-server",
        "--config",
        str(config),
        "--local-actors",
        "2" if config.stem == "own_parts" else "1",
        "--run-dir",
        str(run_dir),
        *(word for key, value in sooner.items() for word in ("--set", f"{key}={value}")),
        *FREE_PORTS,
    )
    assert server.wait(LONGEST_S) == 0, server.output()
    assert "the target score was reached" in server.output()
    assert load_agent(run_dir / "best", ["examples"])[2]["score"] >= target


@pytest.mark.parametrize(("name", "lines"), [("own_parts.py", 80), ("own_agent.py", 61)])
def test_an_example_takes_fewer_lines_than(name: str, lines: int) -> None:
    assert len((ROOT / "examples" / name).read_text().splitlines()) < lines


@LONG
def test_cartpole_is_learnt_from_two_actors(start: Callable[..., Command], tmp_path: Path) -> None:
    """Far enough to show that it learns; `make demo` goes all the way."""
    run_dir = tmp_path / "run"
    sooner = ("--set", "trainer.target_score=60", "--set", "trainer.eval_interval=250")
    arguments = ("--local-actors", "2", "--run-dir", str(run_dir), *sooner)
    server = start("learner-server", "--config", "configs/cartpole.yaml", *arguments, *FREE_PORTS)
    assert server.wait(LONGEST_S) == 0, server.output()
    for name in ("best/meta.json", "final/model.safetensors", "config.yaml", "metrics.csv", "learning_curve.png"):
        assert (run_dir / name).stat().st_size > 0
