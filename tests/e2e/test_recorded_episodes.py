"""What an actor records can be learnt from: a learner, an actor with ``--record``, and training from their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.episode_files import read_episode
from learner.loop.offline import train_offline
from learner.loop.server import LearnerServer
from tests.conftest import Command, MakeConfig, counting_config
from tests.learner.loop.test_offline import IN_TURNS


def test_the_episodes_of_an_actor_are_a_dataset_to_train_from(
    make_config: MakeConfig, start: Any, tmp_path: Path
) -> None:
    episodes = tmp_path / "episodes"
    paced = make_config(env={"target": "tests.parts:PacedEnv"}, trainer={"max_opts": 100})
    with LearnerServer(paced) as server:
        words = ("--learner", server.ingest.address, "--allow", "any", "--record", str(episodes))
        actor: Command = start("actor-worker", *words)
        server.train()
    assert actor.wait() == 0, actor.output()
    files = sorted(episodes.iterdir())
    assert {path.suffix for path in files} == {".npz"}

    config = counting_config(tmp_path / "offline", agent=IN_TURNS, trainer={"max_opts": 50})
    result = train_offline(config, str(episodes))  # The agent checks each transition that it draws.
    assert result.samples_total == sum(len(read_episode(path)["reward"]) for path in files)
