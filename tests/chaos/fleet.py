"""A learner host and actors, each a process of its own. Actors outlive the host; whoever is killed is started again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

import yaml

from common.data import Array, Items
from learner.replay.memory import ReplayMemory
from learner.shared.actor_table import map_actor_table
from tests.chaos.audit import Audit, audit
from tests.chaos.wire import NAME, Wire
from tests.chaos.witness import noted
from tests.conftest import (
    Command,
    children_of,
    counting_values,
    endpoints,
    free_port,
    is_alive,
    kill,
    kill_whole,
    merged,
    named,
    wait_for,
)
from tests.e2e.test_by_hand import ENDLESS, steps_by_actor
from tests.e2e.test_resume import kept

Victim = Literal["actor", "ingest", "trainer", "host"]
PORT: Final = 50051
"""Of a learner that has a host of its own."""
ROWS: Final = 10
"""In each batch."""
CAPACITY: Final = 4_000_000
"""So many rows are never made, so nothing is overwritten and all can be counted."""
BACK_SECONDS: Final = 120.0
"""All must go on within this, also where many processes share few cores."""
VALUES: Final[dict[str, Any]] = {
    "step_processor": {"target": "tests.chaos.audit:Checksummed"},
    "trainer": {**ENDLESS, "checkpoint_seconds": 0.1},
    "replay": {"capacity": CAPACITY, "samples_per_insert": 32},
    "push": {"n_buffer": ROWS, "flush_seconds": 3600.0, "spool_bytes": 50_000},
}


@dataclass(frozen=True)
class Standing:
    """How far a run is."""

    kept: int
    """Opt steps that a resumed run would go on from."""
    stored: int
    """Steps ever stored."""
    steps: dict[int, int]
    """Environment steps, by process id of the actor."""


class Fleet:
    """Use as a context manager: what still runs at its end is killed.

    Args:
        directory: all files are below it.
        n_actors: at one time.
        wire: between the learner's host and the actors'; None: all are on this one.
        run_dir: where the learner writes; None: below ``directory`` too.
        standby: the learner runs under ``--standby``.
        forks: the learner is forked from a process that has imported torch; otherwise it starts as a user's does.
        changes: laid over the configuration of the counting run.
    """

    def __init__(
        self,
        directory: Path,
        n_actors: int,
        *,
        wire: Wire | None = None,
        run_dir: Path | None = None,
        standby: bool = False,
        forks: bool = True,
        **changes: Any,
    ) -> None:
        self._standby, self._forks = ["--standby"] * standby, forks
        self._hosts = (wire.learner, wire.actors) if wire else (None, None)
        self._directory, self.run_dir = directory, run_dir or directory / "run"
        self._notes = directory / "acknowledged"
        self._notes.mkdir()
        self._commands: list[Command] = []
        listen = f"127.0.0.1:{free_port()}" if wire is None else f"0.0.0.0:{PORT}"
        self._address = listen if wire is None else f"{NAME}:{PORT}"
        config = directory / "chaos.yaml"
        config.write_text(yaml.safe_dump(merged(merged(counting_values(self.run_dir), VALUES), changes)))
        self.server = self._start_learner("--config", str(config), "--listen", listen)
        self.ingest_deaths = 0
        """Of the present trainer's; the sixth in a minute would end the run."""
        self.actors = [self._start_actor() for _ in range(n_actors)]
        self.pids = {actor.process.pid for actor in self.actors}
        """Of all actors there ever were."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for command in self._commands:
            command.end()

    def _start(self, module: str, *arguments: str, prefix: Sequence[str]) -> Command:
        log = self._directory / f"{len(self._commands)}-{module}.log"
        command = Command(module, *arguments, log=log, prefix=prefix)
        self._commands.append(command)
        return command

    def _start_learner(self, *arguments: str) -> Command:
        host = self._hosts[0]
        prefix = host.prefix if host else () if self._forks else ("env",)
        return self._start("learner-server", *arguments, *self._standby, prefix=prefix)

    def _start_actor(self) -> Command:
        trust = ["--insecure", "--allow", "tests"] * (self._hosts[1] is not None)
        arguments = (str(self._notes), "--learner", self._address, *trust)
        host = self._hosts[1]
        return self._start("tests.chaos.witness", *arguments, prefix=host.prefix if host else ())

    def ready(self) -> None:
        """Wait until the run has come up and every actor takes part."""
        endpoints(self.run_dir)
        self.open()
        self._all_take_part()

    def open(self) -> None:
        """Look at the replay of the present run directory from now on."""
        self._memory = ReplayMemory.open_saved(self.run_dir / "shared" / "replay")

    def _all_take_part(self) -> None:
        living = {actor.process.pid for actor in self.actors}
        wait_for(lambda: steps_by_actor(self.run_dir).keys() >= living, "all join", BACK_SECONDS)
        self.goes_on(self.standing())

    def standing(self) -> Standing:
        return Standing(kept(self.run_dir), self._memory.steps, steps_by_actor(self.run_dir))

    def goes_on(self, since: Standing) -> None:
        """Wait until training and every actor that lives and took part then are further than ``since``."""
        what = f"all go on after {since}; logs in {self._directory}"
        wait_for(lambda: self.is_further(since), what, BACK_SECONDS)

    def is_further(self, since: Standing) -> bool:
        """Whether training and every actor that lives and took part then are further than ``since``."""
        living = {actor.process.pid for actor in self.actors} & since.steps.keys()
        now = self.standing()
        acting = all(now.steps.get(pid, 0) > since.steps[pid] for pid in living)
        return acting and now.kept > since.kept and now.stored > since.stored

    def take(self, steps: int) -> None:
        """Wait until so many more steps have come."""
        goal = self._memory.steps + steps
        wait_for(lambda: self._memory.steps >= goal, f"{steps} steps", BACK_SECONDS)

    def made(self) -> int:
        """Rows, at least, that all actors have packed into batches, whether or not anybody has heard of them."""
        return sum(ROWS * noted(self._notes, pid).made for pid in self.pids)

    def kill(self, victim: Victim, chosen: int = 0) -> None:
        """kill -9, and start again what is nobody's child; ``chosen`` says which actor."""
        if victim == "actor":
            self._kill_actor(chosen)
        elif victim == "ingest":
            self.ingest_deaths += 1
            kill(*named("ingest", self.trainer))
        elif victim == "trainer" and self._standby:
            kill(self.trainer)
            self.ingest_deaths = 0
        else:
            self._kill_host(whole_tree=victim == "host")

    @property
    def trainer(self) -> int:
        """The id of the trainer's process; the keeper of ``--standby`` has a process that forks it."""
        server = self.server.process.pid
        return oldest_child(oldest_child(server)) if self._standby else server

    def _kill_actor(self, chosen: int) -> None:
        self.actors[chosen].end()
        self.actors[chosen] = self._start_actor()
        self.pids.add(self.actors[chosen].process.pid)

    def _kill_host(self, *, whole_tree: bool) -> None:
        server = self.server.process.pid
        (kill_whole if whole_tree else kill)(server)
        self.server.wait()
        self.resume()

    def resume(self) -> None:
        """Start the learner again, which has been killed."""
        self.server = self._start_learner("--resume", str(self.run_dir))
        self.ingest_deaths = 0

    def resumed_with(self) -> int:
        """Steps ever stored when the learner went on."""
        found = re.search(r"resumed at opt step \d+ with \d+ steps to draw of (\d+) ever stored", self.server.output())
        assert found, self.server.output()
        return int(found[1])

    def stop(self) -> None:
        """End the run in order, once all who were started take part."""
        self._all_take_part()
        self.server.process.terminate()
        assert self.server.wait() == 143, self.server.output()
        assert [actor.wait() for actor in self.actors] == [0] * len(self.actors), "every actor hears of the end"
        failed = [command.log.name for command in self._commands if "Traceback" in command.output()]
        assert not failed, f"{failed} in {self._directory}"

    def end(self) -> Audit:
        """End the run in order; what became of its rows."""
        self.stop()
        rows, previous = self.stored()
        return audit(rows, self._promised(), previous)

    def stored(self) -> tuple[Items, Array]:
        """All rows, and by how many rows the row before lies back, ``[n]``, 0 for none."""
        memory = self._memory
        assert memory.committed < CAPACITY
        assert memory.links is not None
        rows = {name: column[: memory.committed] for name, column in memory.columns.items()}
        return rows, memory.links.previous[: memory.committed]

    def _promised(self) -> dict[int, int]:
        """Rows acknowledged, by tag of their environment: of actors that are here all steps, else what was noted."""
        table = map_actor_table(self.run_dir / "shared", create=False)
        rows = {tag: row for tag, row in enumerate(table) if row["pid"]}
        living = {actor.process.pid for actor in self.actors}
        return {
            tag: int(row["env_steps"])
            if row["pid"] in living
            else ROWS * noted(self._notes, int(row["pid"])).acknowledged
            for tag, row in rows.items()
        }

    @property
    def starts(self) -> int:
        """Times the learner was started."""
        return sum("learner-server" in command.log.name for command in self._commands)


def oldest_child(pid: int) -> int:
    """The id of the child that was started first."""
    return next(filter(is_alive, children_of(pid)))
