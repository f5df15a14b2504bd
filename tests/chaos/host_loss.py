"""The learner's host vanishes with its disk, at any moment; another host goes on from the mirror, and so do the actors.

Each loss kills all processes of the learner and removes the run's directory. The next learner is started by ``--resume
URL`` at the address of the one before. At some losses another learner resumes at the same time: only one of them stays.
"""

from __future__ import annotations

import math
import random
import shutil
import signal
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from common.errors import TakenOverError
from learner.storage.mirror import Mirror
from tests.chaos.fleet import BACK_SECONDS, Fleet, Standing
from tests.chaos.power import torn
from tests.chaos.report import scratch, tell
from tests.conftest import Command, signal_each, wait_for, with_descendants
from tests.e2e.test_by_hand import ENDLESS, steps_by_actor
from tests.e2e.test_resume import kept

N_ACTORS: Final = 3
CAPACITY: Final = 1_000_000
"""So many rows are not made while acknowledgements wait for the mirror, so all of them can be counted."""
RIVALRY: Final = 0.25
"""Share of the losses after which two learners resume at once."""


class MirroredFleet(Fleet):
    """A fleet whose learner's host may vanish.

    Args:
        directory: all files are below it.
        n_actors: at one time.
        mirror_seconds, acknowledge: settings of the mirror.
    """

    def __init__(self, directory: Path, n_actors: int, *, mirror_seconds: float, acknowledge: str) -> None:
        self._root, self.url, self._hosts_so_far = directory, f"file://{directory}/mirror", 0
        self._joined: Standing | None = None
        storage = {"mirror": self.url, "mirror_seconds": mirror_seconds, "acknowledge": acknowledge}
        replay = {"capacity": CAPACITY}
        trainer = {**ENDLESS, "checkpoint_seconds": 1.0}
        push = {"spool_bytes": 200_000, "window": 64}
        super().__init__(directory, n_actors, storage=storage, replay=replay, trainer=trainer, push=push)

    def vanish(self) -> tuple[int, float]:
        """Kill the host, and remove its directory.

        Returns:
            Steps that were stored, and how many seconds old the newest state of the mirror is.
        """
        tree = with_descendants(self.server.process.pid)
        signal_each(tree, signal.SIGSTOP)  # So that what is stored is what was stored at the loss.
        stored, at = self.standing().stored, time.time()
        signal_each(tree, signal.SIGKILL)
        self.server.wait()
        shutil.rmtree(self.run_dir)
        newest = Mirror(self.url).find_newest()
        assert newest is not None
        return stored, at - newest.at

    def go_on(self, *, with_rival: bool) -> float:
        """Resume on another host; with a rival, which has another address, until a learner has the actors' address.

        Returns:
            The time at which training and all actors went on, with the learner that stays; of ``time.monotonic``.
        """
        rival = self._resume_elsewhere("--listen", "127.0.0.1:0") if with_rival else None
        while True:
            self.server = self._resume_elsewhere("--listen", self._address)  # The mirror may have the rival's.
            self.run_dir, self._joined = self._root / f"host-{self._hosts_so_far}", None
            wait_for(lambda: self._has_ended() or self._is_back(), f"all go on; logs in {self._root}", BACK_SECONDS)
            at = time.monotonic()
            if rival is None:
                return at
            wait_for(lambda: self._has_ended() or rival.process.poll() is not None, "one of two learners ends")
            if not self._has_ended():
                assert rival.wait() == TakenOverError.exit_code, rival.output()
                self.ready()
                return at
            assert self.server.wait() == TakenOverError.exit_code, self.server.output()

    def _has_ended(self) -> bool:
        """Whether the learner that has the actors' address has ended."""
        return self.server.process.poll() is not None

    def _is_back(self) -> bool:
        """Whether all take part, and are further than they were when all had joined."""
        if self._joined is None:
            if steps_by_actor(self.run_dir).keys() < {actor.process.pid for actor in self.actors}:
                return False
            self.open()
            self._joined = self.standing()
        return self.is_further(self._joined)

    def _resume_elsewhere(self, *options: str) -> Command:
        self._hosts_so_far += 1
        run_dir = self._root / f"host-{self._hosts_so_far}"
        return self._start_learner("--resume", self.url, "--run-dir", str(run_dir), *options)


def lose_hosts(
    losses: int, seed: int, shortest: float, longest: float, mirror_seconds: float, *, n_actors: int = N_ACTORS
) -> dict[str, Any]:
    """Lose the learner's host so often, in a run whose acknowledgements wait for the disk, and in one for the mirror.

    Each loss comes after a random time in seconds. Returns the figures of each run.

    Raises:
        AssertionError: the run cannot be resumed, an actor does not go on, a row is torn or doubled, two learners
            write, or ``acknowledge`` is ``mirrored`` and an acknowledged row is lost.
    """
    return {
        acknowledge: _lose_hosts(
            random.Random(seed), losses, (shortest, longest), mirror_seconds, acknowledge, n_actors=n_actors
        )
        for acknowledge in ("disk", "mirrored")
    }


def _lose_hosts(
    rng: random.Random,
    losses: int,
    between: tuple[float, float],
    mirror_seconds: float,
    acknowledge: str,
    *,
    n_actors: int,
) -> dict[str, Any]:
    taken = []
    with scratch() as directory:
        with MirroredFleet(directory, n_actors, mirror_seconds=mirror_seconds, acknowledge=acknowledge) as fleet:
            fleet.ready()
            wait_for(lambda: Mirror(fleet.url).find_newest() is not None, "a first state")
            for number in range(1, losses + 1):
                time.sleep(rng.uniform(*between))  # The moment is what is random here.
                since, (stored, lag), began = fleet.standing(), fleet.vanish(), time.monotonic()
                has_rival = rng.random() < RIVALRY
                back = fleet.go_on(with_rival=has_rival) - began
                left = fleet.resumed_with()
                assert kept(fleet.run_dir) > 0
                found = torn(fleet.run_dir)
                assert (found.torn, found.doubled, found.mislinked) == (0, 0, 0), found
                taken.append(
                    {
                        "stored": stored,
                        "lost": stored - left,
                        "lost_seconds": lag,
                        "back_seconds": back,
                        "rival": has_rival,
                    }
                )
                tell(f"loss {number} of {losses}, {acknowledge}, after {since.stored} steps: {taken[-1]}")
            audited = fleet.end() if acknowledge == "mirrored" else None
            if audited is None:
                fleet.stop()
        found = torn(fleet.run_dir) if audited is None else audited
        assert (found.torn, found.doubled, found.mislinked) == (0, 0, 0), found
        assert audited is None or audited.is_clean, audited
    return {
        "losses": losses,
        "mirror_seconds": mirror_seconds,
        "rows": found.rows,
        "torn": found.torn,
        "doubled": found.doubled,
        "acknowledged_lost": audited.lost if audited is not None else None,
        "rivals": sum(loss["rival"] for loss in taken),
        "lost": _summarize(loss["lost"] for loss in taken),
        "lost_seconds": _summarize(loss["lost_seconds"] for loss in taken),
        "back_seconds": _summarize(loss["back_seconds"] for loss in taken if not loss["rival"]),
        "back_seconds_of_two": _summarize(loss["back_seconds"] for loss in taken if loss["rival"]),
    }


def _summarize(values: Iterable[float]) -> dict[str, float]:
    found = [*values] or [math.nan]
    return {"median": statistics.median(found), "worst": max(found)}
