"""The transitions of a robot with two cameras, from its actor to its learner: here, and in LeRobot (HIL-SERL).

    python -m benchmarks.hil_serl EPISODES --python PYTHON     a directory of .npz files; an interpreter with lerobot

Both sides run as two processes over loopback, and replay the same episodes as fast as they can. ``transitions/s``
counts those that the learner has stored; ``CPU ms`` is processor time for one transition. ``policy ms`` is the time
from the learner's call that publishes 1.7 million parameters until the actor has loaded them. Then the learner is
killed (SIGKILL) while transitions arrive, and started again after a second: ``lost`` are those of the run that neither
learner has stored, of ``pushed``. Finally the actor is killed while transitions arrive, and another one is started
at once: ``new actor s`` is the time from the kill until the learner has stored a transition of the new actor.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, Final

from benchmarks.model import AGENT, fetch
from benchmarks.pairs import (
    ENVIRONMENT,
    PATIENCE,
    Pair,
    acting,
    actor,
    await_file,
    command,
    configuration,
    interrupt,
    learner_host,
    process,
    steps_taken,
)
from benchmarks.report import cpu_seconds, report, run_as_actors_do
from benchmarks.serving import serve_learner
from common.wire.channel import get_model, open_channel, watch_credentials
from learner.loop.server import local_trust
from tests.conftest import free_port

PEER: Final = Path(__file__).parent / "hil_serl_peer.py"
TURNS: Final = 3
SECONDS: Final = 5.0
EPISODES: Final = 16
POLICIES: Final = 50
"""Policies that are published, one after another."""
QUIET: Final = 5.0
PAUSE: Final = 1.0
"""Seconds between the kill of a learner and its next start."""
Row = dict[str, object]


# LeRobot


class Peer:
    """One of the peer's processes, which answers in lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._asks, self._answers = process, process.stdin, process.stdout
        self._said: Queue[dict[str, Any]] = Queue()
        self.last_stored: dict[str, Any] = {"stored": 0, "bytes": 0}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._answers:
            said = json.loads(line)
            if "stored" in said:
                self.last_stored = said
            else:
                self._said.put(said)

    def ask(self, line: str) -> None:
        """Write one line to the process."""
        self._asks.write(line + "\n")
        self._asks.flush()

    def answer(self, key: str) -> dict[str, Any]:
        """The next answer of the process with this key."""
        while key not in (said := self._said.get(timeout=PATIENCE)):
            pass
        return said


@contextmanager
def peer(python: str, *arguments: str) -> Iterator[Peer]:
    """One of the peer's processes, once it is ready."""
    with subprocess.Popen(
        [python, str(PEER), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            found = Peer(process)
            found.answer("ready")
            yield found
        finally:
            process.kill()


def settled(learner: Peer) -> dict[str, Any]:
    """The learner's counters once no transition has come for ``QUIET`` seconds."""
    stored = -1
    while learner.last_stored["stored"] != stored:
        stored = learner.last_stored["stored"]
        time.sleep(QUIET)
    return learner.last_stored


def await_stored(learner: Peer, n: int) -> dict[str, Any]:
    """The learner's counters once it has stored ``n`` transitions."""
    deadline = time.monotonic() + PATIENCE
    while learner.last_stored["stored"] < n:
        if time.monotonic() > deadline:
            raise SystemExit(f"lerobot: expected {n} transitions to arrive, found {learner.last_stored['stored']}")
        time.sleep(0.01)
    return learner.last_stored


def measure_peer(python: str, episodes: Path) -> Row:
    """LeRobot's row of the table."""
    port = str(free_port())
    with ExitStack() as stack:
        learner = stack.enter_context(peer(python, "learner", port))
        acts = stack.enter_context(peer(python, "actor", port, str(episodes)))
        rates, cpu = [], []
        for _ in range(1 + TURNS):
            before, cpu_before = learner.last_stored["stored"], _cpu(learner, acts)
            acts.ask(str(EPISODES))
            pushed = acts.answer("pushed")
            n = pushed["pushed"]
            after = await_stored(learner, before + n)
            rates.append(n / (after["time"] - pushed["began"]))
            cpu.append((_cpu(learner, acts) - cpu_before) / n * 1e3)
        latencies = [_policy_latency(learner, acts) for _ in range(POLICIES)]
        size = after["bytes"] / after["stored"]
    return {
        "transport": "LeRobot",
        "transitions/s": statistics.median(rates[1:]),
        "bytes": size,
        "CPU ms": statistics.median(cpu[1:]),
        "policy ms p50": statistics.median(latencies) * 1e3,
        **kill_peer(python, episodes),
        **kill_peers_actor(python, episodes),
    }


def _cpu(*processes: Peer) -> float:
    """Processor time of processes so far, in seconds."""
    return sum(cpu_seconds(each.process.pid) for each in processes)


def _policy_latency(learner: Peer, acts: Peer) -> float:
    learner.ask("publish")
    began: float = learner.answer("published")["published"]
    loaded: float = acts.answer("loaded")["time"]
    return loaded - began


def kill_peer(python: str, episodes: Path) -> Row:
    """Kill LeRobot's learner while transitions arrive, and start it again at the same port."""
    port = str(free_port())
    with ExitStack() as stack:
        first = stack.enter_context(peer(python, "learner", port))
        acts = stack.enter_context(peer(python, "actor", port, str(episodes)))
        acts.ask(str(EPISODES))
        pushed = acts.answer("pushed")["pushed"]
        await_stored(first, pushed)
        acts.ask(str(EPISODES))
        await_stored(first, pushed + 1)
        first.process.kill()
        pushed += acts.answer("pushed")["pushed"]
        time.sleep(PAUSE)
        second = stack.enter_context(peer(python, "learner", port))
        for _ in range(2):
            acts.ask(str(EPISODES))
            pushed += acts.answer("pushed")["pushed"]
            time.sleep(PAUSE)
        stored = first.last_stored["stored"] + settled(second)["stored"]
    return {"pushed": pushed, "lost": pushed - stored}


def kill_peers_actor(python: str, episodes: Path) -> Row:
    """Kill LeRobot's actor while transitions arrive, and start another one."""
    port = str(free_port())
    with ExitStack() as stack:
        learner = stack.enter_context(peer(python, "learner", port))
        first = stack.enter_context(peer(python, "actor", port, str(episodes)))
        first.ask(str(EPISODES))
        await_stored(learner, 1)
        killed = time.monotonic()
        first.process.kill()
        second = stack.enter_context(peer(python, "actor", port, str(episodes)))
        stored = learner.last_stored["stored"]
        second.ask(str(EPISODES))
        return {"new actor s": await_stored(learner, stored + 1)["time"] - killed}


# Ours


def part_of(episodes: Path) -> dict[str, Any]:
    """The configuration of a run whose actor replays the episodes."""
    env = {"target": "benchmarks.recorded:Episodes", "params": {"directory": str(episodes)}}
    return {"env": env, "replay": {"capacity": 4000}}


def measure_ours(episodes: Path) -> Row:
    """Our row of the table."""
    with acting(part_of(episodes)) as pair:
        turns = [pair.measure(SECONDS) for _ in range(1 + TURNS)][1:]
    found = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    return {
        "transport": "crossborder",
        "transitions/s": found["steps/s"],
        "bytes": found["bytes/step"],
        "CPU ms": (found["actor CPU s/M"] + found["ingest CPU s/M"]) / 1e3,
        "policy ms p50": statistics.median(policy_latencies()) * 1e3,
        **kill_ours(episodes),
        **kill_our_actor(episodes),
    }


def policy_latencies() -> list[float]:
    """Seconds from publishing to the loaded policy, of each of ``POLICIES`` versions."""
    with serve_learner("cartpole", AGENT) as server:
        credentials = watch_credentials(server.ingest.address, local_trust(server.config.server)).get()
        with open_channel(server.ingest.address, credentials) as channel:
            source, agent, found = get_model(channel), server.learner.agent, []
            for opt_steps in range(1, POLICIES + 1):
                began = time.perf_counter()
                server.learner.publish(opt_steps)
                fetch(source, agent)
                found.append(time.perf_counter() - began)
    return found


def kill_ours(episodes: Path) -> Row:
    """Kill our learner host while transitions arrive, and start it again with ``--resume``."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run_dir, log = directory / "run", stack.enter_context((directory / "learner.log").open("w"))
        part = part_of(episodes) | {"server": {"listen": f"127.0.0.1:{free_port()}"}}
        config = directory / "run.json"
        config.write_text(json.dumps(configuration(run_dir, part)))
        first = stack.enter_context(process(command("learner-server", "--config", str(config)), log))
        await_file(run_dir / "endpoints.json", first, directory / "learner.log")
        with actor(run_dir) as acts:
            time.sleep(2 * SECONDS)
            first.send_signal(signal.SIGKILL)
            first.wait(PATIENCE)
            (run_dir / "endpoints.json").unlink()
            time.sleep(PAUSE)
            again = stack.enter_context(process(command("learner-server", "--resume", str(run_dir)), log))
            await_file(run_dir / "endpoints.json", again, directory / "learner.log")
            time.sleep(2 * SECONDS)
            interrupt(acts)
            took = steps_taken(directory / "actor.log")
            interrupt(again)
        inspected = subprocess.run(
            command("replay-inspect", str(run_dir), "--json"),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            check=True,
        )
    stored = json.loads(inspected.stdout)["steps_stored"]
    return {"pushed": took, "lost": took - stored}


def kill_our_actor(episodes: Path) -> Row:
    """Kill our actor while transitions arrive, and start another one."""
    with learner_host(part_of(episodes)) as (run_dir, learner):
        with actor(run_dir) as first:
            pair = Pair(run_dir, learner.pid, first)
            await_more(pair, 0)
            killed = time.monotonic()
            first.kill()
            first.wait(PATIENCE)
        with actor(run_dir):
            time.sleep(0.5)  # The first actor's last message has been stored by then, and a new one still imports.
            await_more(pair, pair.stored())
            return {"new actor s": time.monotonic() - killed}


def await_more(pair: Pair, stored: float) -> None:
    """Wait until the learner has stored more than some steps."""
    deadline = time.monotonic() + PATIENCE
    while pair.stored() <= stored:
        if time.monotonic() > deadline:
            raise SystemExit(f"expected more than {stored:.0f} steps to arrive in {PATIENCE:.0f} s, found no more")
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.hil_serl", description=__doc__)
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--python", required=True, help="an interpreter with lerobot")
    arguments = parser.parse_args()
    rows = [measure_ours(arguments.episodes), measure_peer(arguments.python, arguments.episodes)]
    report("hil_serl", "ours acknowledged and stored exactly once", rows, TURNS)


if __name__ == "__main__":
    run_as_actors_do("benchmarks.hil_serl")
    main()
