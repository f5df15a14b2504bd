"""Cuts connections and kills services: ``python -m tests.clients [--cuts 100] [--kills 5] [--seed 1] [LANGUAGE ...]``.

A client plays episodes through an acting service, by a line that loses requests and answers. What the service has
recorded must be what the client has played: each step once, and after a kill the rest of the episode as an episode.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common.episode_files import read_episode
from tests.clients.counting import PLAIN
from tests.clients.driven import LANGUAGES, Driven, Served, command_of, save_policy
from tests.clients.line import Line
from tests.conftest import Command, free_port, kill, wait_for

STEPS = 4
Episode = tuple[list[list[float]], list[float]]
"""Observations, and rewards of the steps between them."""


class Exercise:
    """One client, and what the service should have recorded since it was started."""

    def __init__(self, folder: Path, command: Sequence[str], stack: ExitStack, seed: int) -> None:
        self._folder, self._stack, self._random = folder, stack, random.Random(seed)
        save_policy(folder / "run", PLAIN)
        self._port, self._lives = free_port(), 0
        self.steps = self.whole = 0
        self._start()
        self._line = stack.enter_context(Line.to(f"127.0.0.1:{self._port}"))
        self.client = Driven(command, folder / "client.log")
        stack.callback(self.client.end)
        self.client.call("open", address=f"ws://{self._line.address}", timeout=60, patience=300)

    def _start(self) -> None:
        def start(*words: str) -> Command:
            command = Command(*words, log=self._folder / f"service-{self._lives}.log")
            self._stack.callback(command.end)
            return command

        self._lives += 1
        self._expected = list[Episode]()
        self._records = self._folder / f"life-{self._lives}"
        self._served = Served(start, self._folder / "run", "--record", str(self._records), port=self._port)

    def play(self, number: int, fault: str) -> None:
        """Play an episode, during which a fault comes before a step that is drawn."""
        at, seen, rewards = self._random.randrange(STEPS), list[list[float]](), list[float]()
        for step in range(STEPS):
            is_last = step == STEPS - 1
            if step == at and fault == "kill":
                self.check()
                kill(self._served.command.process.pid)
                self._served.command.wait()
                self._start()
                seen, rewards = [], []
            elif step == at and fault == "cut":
                self._line.cut()
            elif step == at:
                self._line.breaks_at = fault
            rewards += [float(step)] if seen else []
            seen.append([float(number), float(step)])
            action = self.client.call("act", observation=seen[-1], reward=step, terminated=is_last)
            assert is_last or action == len(seen), f"expected action {len(seen)}, found {action}"
            self.steps += 1
        if rewards:
            self._expected.append((seen, rewards))

    def _files(self) -> list[Path]:
        return [*self._records.glob("*.npz")]

    def check(self) -> None:
        """Compare the episodes of this life with what the service has recorded."""
        wait_for(lambda: len(self._files()) == len(self._expected), f"{len(self._expected)} episodes are recorded")
        found = [read_episode(file) for file in self._files()]
        episodes = sorted((each["obs"].tolist(), each["reward"].tolist()) for each in found)
        assert episodes == sorted(self._expected), f"played {self._expected}, recorded {episodes}"
        self.whole += len(episodes)


def exercise(language: str, cuts: int, kills: int, seed: int) -> dict[str, Any]:
    """Have this many faults disturb a client; it fails if a step is missing or was counted twice."""
    command = command_of(language)
    if command is None:
        return {"skipped": "its tools are missing"}
    draw = random.Random(seed)
    faults = [draw.choice(("cut", "request", "answer")) for _ in range(cuts)] + ["kill"] * kills
    draw.shuffle(faults)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        played = Exercise(Path(folder), command, stack, seed)
        for number, fault in enumerate(faults):
            played.play(number, fault)
        losses = played.client.get("losses")
        played.client.call("close")
        played.check()
        assert losses == kills, f"expected {kills} lost sessions, found {losses}"
        return {"cuts": cuts, "kills": kills, "steps": played.steps, "episodes": played.whole, "lost": 0, "doubled": 0}


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.clients", description=__doc__)
    for name, default in (("cuts", 100), ("kills", 5), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help=", ".join(LANGUAGES))
    given = parser.parse_args()
    for language in given.languages or LANGUAGES:
        sys.stdout.write(f"{language}: {exercise(language, given.cuts, given.kills, given.seed)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
