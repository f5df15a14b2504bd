"""Earlier models of the run as opponents: none changes within an episode, whoever is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from learner.models.model_pool import Games
from tests.conftest import Command, free_port, is_alive, kill, wait_for
from tests.duels import ENV, find_opponents
from tests.e2e.test_by_hand import ENDLESS, steps_by_actor
from tests.e2e.test_resume import kept, resumed_at


def played_against(run_dir: Path) -> set[int]:
    """The models against which games have ended."""
    return {opponent for _, opponent in Games(run_dir / "pool" / "games.json").results}


def is_beyond(run_dir: Path, opt_steps: int) -> bool:
    """Whether the run could be resumed at a later opt step."""
    return kept(run_dir) > opt_steps


def test_no_opponent_changes_within_an_episode_though_actors_and_the_learner_are_killed(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    """The models change at every opt step, and so does the pool."""
    run_dir, address = tmp_path / "run", f"127.0.0.1:{free_port()}"
    config = write_config(
        env={**ENV, "info": {"opponent": "int64"}},
        agent={"target": "tests.duels:Versioned"},
        trainer={**ENDLESS, "sync_interval": 1, "checkpoint_seconds": 0.1},
        replay={"samples_per_insert": 16},
        pool={"every": 1, "size": 50},
    )
    server = start("learner-server", "--config", str(config), "--listen", address)
    allowed = ("--allow", "tests.duels:Duel", "tests.duels")
    actors = start("actor-worker", "--learner", address, "--num-actors", "2", *allowed)
    for _ in range(2):
        after = kept(run_dir)
        wait_for(partial(is_beyond, run_dir, after + 40), "a checkpoint further on")
        kill(next(filter(is_alive, steps_by_actor(run_dir))))
        wait_for(partial(is_beyond, run_dir, after + 80), "a checkpoint after the kill of an actor")
        kill(server.process.pid)
        server.wait()
        server = start("learner-server", "--resume", str(run_dir))
        goes_on_at = resumed_at(server)
        wait_for(partial(is_beyond, run_dir, goes_on_at + 10), "it goes on")
    wait_for(lambda: len(played_against(run_dir)) > 10, "games against more models")
    server.signal(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM, server.output()
    assert actors.wait() == 0, actors.output()
    episodes, changes, opponents = find_opponents(run_dir)
    assert changes == 0
    assert episodes > 20
    assert played_against(run_dir) <= opponents
    assert len([*(run_dir / "pool").glob("*.safetensors")]) == 50
