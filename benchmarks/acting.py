"""An acting service beside bare servers that answer the same messages of the same clients, in alternating turns.

Clients have one lane each, and a separate connection; see ``benchmarks.acting_clients``. ``gRPC`` and ``WebSocket``
are the doors of ``policy-server``, with a saved policy. Beside each stands a bare server (``benchmarks.acting_echo``),
which has no sessions, checks and limits: ``bare`` answers without looking, ``network`` has the actions of the same
network chosen in batches. All run throughout, and one of them at a time gets messages.

Paces: ``30 Hz`` is 64 sessions that send a step at most 30 times a second, as games do; ``flat out`` is 64 sessions
that send the next step as soon as they have an action. Times are from sending a step to its action, at the client.
``server µs`` is the server's processor time for each action, without that of the clients, which share its machine.
``p99 ratio`` and ``rate ratio`` compare with the bare server of the door.

Idle: what 254 sessions that send one step a second cost in memory and in processor time, beside two that are silent,
in alternating turns with the bare servers of the same door.
"""

from __future__ import annotations

import argparse
import logging
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from benchmarks.light_fleet import Pushed, own_kilobytes, started
from benchmarks.report import add_choice, cpu_seconds, report, wait_until
from common.agents.dqn import DQN
from common.config.actor_config import ActorConfig
from common.parts import build_parts
from common.plugins.part_config import EnvConfig, PluginConfig
from learner.storage.checkpoint import Checkpoints

SECONDS: Final = 4.0
SESSIONS: Final = 64
IDLE_SESSIONS: Final = 256
PROCESSES: Final = 2
PATIENCE: Final = 120.0
PACES: Final = {"30 Hz": 30.0, "flat out": 0.0}
DOORS: Final = {"gRPC": "bare gRPC", "WebSocket": "bare WebSocket"}
"""The bare server of each door."""
IDLE_FLOORS: Final = {"gRPC": {"bare gRPC": "grpc", "network": "network"}, "WebSocket": {"bare WebSocket": "websocket"}}
"""By door, the bare servers that stand beside it while sessions are nearly idle."""
PICTURES: Final = {"type": "Box", "low": 0, "high": 255, "shape": [4, 84, 84], "dtype": "uint8"}
SPACES: Final = {"cnn": {"observation": PICTURES, "action": {"type": "Discrete", "n": 6}}}
NETWORKS: Final = {"2x256": {"units": [256, 256]}, "cnn": {"network": {"target": "common.agents.networks:NatureCnn"}}}


def config_of(kind: str) -> ActorConfig:
    """CartPole's spaces for two layers of 256, and stacks of four pictures for Nature's CNN."""
    return ActorConfig(
        env=EnvConfig(target="gymnasium:make", params={"id": "CartPole-v1"}, spaces=SPACES.get(kind)),
        agent=PluginConfig(target="common.agents.dqn:DQN", params=NETWORKS[kind]),
    )


def make_agent(kind: str) -> DQN:
    """The policy, untrained and greedy."""
    agent = build_parts(config_of(kind), seed=1).agent
    assert isinstance(agent, DQN)
    agent.eval()
    return agent


@dataclass(frozen=True)
class Server:
    """A process that answers clients.

    Args:
        name: in the table.
        pid: of the process.
        door: by which its clients speak.
        address: where it listens.
    """

    name: str
    pid: int
    door: str
    address: str


@contextmanager
def serving(kind: str) -> Iterator[list[Server]]:
    """The doors of an acting service, as users start it."""
    with tempfile.TemporaryDirectory() as directory:
        Checkpoints(Path(directory), config_of(kind), "bench").save("best", make_agent(kind), opt_steps=12_000)
        words = ["--run", f"{directory}/best", "--listen", "127.0.0.1:0", "--websocket", "127.0.0.1:0"]
        command = [str(Path(sys.executable).with_name("policy-server")), *words]
        log = Path(directory, "log")

        def listens_at() -> list[str]:
            return re.findall(r" on (127\.0\.0\.1:\d+)$", log.read_text(), re.MULTILINE)

        with log.open("w") as output, subprocess.Popen(command, stderr=output) as service:
            try:
                wait_until(lambda: len(listens_at()) == len(DOORS), "the service listens")
                doors = zip(DOORS, ("grpc", "websocket"), listens_at(), strict=True)
                yield [Server(name, service.pid, door, address) for name, door, address in doors]
            finally:
                service.terminate()
                logging.getLogger(__name__).info("%s", log.read_text()[-2000:])


@contextmanager
def echoing(name: str, echo: str, kind: str) -> Iterator[Server]:
    """A bare server."""
    command = [sys.executable, "-m", "benchmarks.acting_echo", echo, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        door = "websocket" if echo == "websocket" else "grpc"
        yield Server(name, server.pid, door, f"127.0.0.1:{server.stdout.readline().strip()}")


class Clients:
    """Clients of one server in a few processes; their sessions are open while the context is."""

    def __init__(self, server: Server, sessions: int, kind: str) -> None:
        boot = {"door": server.door, "address": server.address, "kind": kind}
        shares = [len(range(i, sessions, PROCESSES)) for i in range(PROCESSES)]
        self._server, self._boots = server, [{**boot, "sessions": share} for share in shares]
        self._stack = ExitStack()

    def __enter__(self) -> Clients:
        self._children = self._stack.enter_context(started("clients", "benchmarks.acting_clients", self._boots))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def act(self, hertz: float, seconds: float) -> Pushed:
        """Have all clients send steps; ``cpu_seconds`` are those of the server."""
        before = cpu_seconds(self._server.pid)
        for child in self._children:
            child.tell({"hertz": hertz, "seconds": seconds})
        told = [child.next_event(PATIENCE) for child in self._children]
        milliseconds = sorted(chain.from_iterable(each["milliseconds"] for each in told))
        spent = cpu_seconds(self._server.pid) - before
        return Pushed(milliseconds, max(each["seconds"] for each in told), spent)


def measure(kind: str, turns: int, seconds: float) -> list[dict[str, object]]:
    """A row for each pace and server: medians of the turns."""
    with ExitStack() as stack:
        servers = [*stack.enter_context(serving(kind))]
        for name, echo in (("bare gRPC", "grpc"), ("network", "network"), ("bare WebSocket", "websocket")):
            servers.append(stack.enter_context(echoing(name, echo, kind)))
        clients = {server.name: stack.enter_context(Clients(server, SESSIONS, kind)) for server in servers}
        rows = list[dict[str, object]]()
        for pace, hertz in PACES.items():
            for each in clients.values():
                each.act(hertz, 1.0)  # It does not count.
            found = [{name: each.act(hertz, seconds) for name, each in clients.items()} for _ in range(turns)]
            rows += [_row(kind, pace, name, found) for name in clients]
        return rows


def _row(kind: str, pace: str, name: str, found: Sequence[Mapping[str, Pushed]]) -> dict[str, object]:
    mine = [turn[name] for turn in found]
    bare = [turn[DOORS.get(name, "bare gRPC")] if name in (*DOORS, "network") else turn[name] for turn in found]
    pairs = [*zip(mine, bare, strict=True)]
    return {
        "policy": kind,
        "pace": pace,
        "server": name,
        "actions/s": statistics.median(one.per_second for one in mine),
        "rate ratio": statistics.median(one.per_second / other.per_second for one, other in pairs),
        "p50 ms": statistics.median(one.percentile(50) for one in mine),
        "p99 ms": statistics.median(one.percentile(99) for one in mine),
        "p99 ratio": statistics.median(one.percentile(99) / other.percentile(99) for one, other in pairs),
        "server µs": statistics.median(one.cpu_seconds / len(one.milliseconds) * 1e6 for one in mine),
    }


def measure_idle(turns: int, seconds: float) -> list[dict[str, object]]:
    """A row for each door and bare server: memory of a session, and medians of the processor time of all sessions."""
    rows = list[dict[str, object]]()
    for place, (name, echoes) in enumerate(IDLE_FLOORS.items()):
        with ExitStack() as stack:
            servers = [stack.enter_context(serving("2x256"))[place]]
            servers += [stack.enter_context(echoing(title, echo, "2x256")) for title, echo in echoes.items()]
            clients, grown = dict[str, Clients](), dict[str, float]()
            for server in servers:
                stack.enter_context(Clients(server, PROCESSES, "2x256")).act(0.0, 1.0)  # All share what these take.
                before = own_kilobytes(server.pid)
                clients[server.name] = stack.enter_context(Clients(server, IDLE_SESSIONS - PROCESSES, "2x256"))
                clients[server.name].act(1.0, seconds)  # Its time does not count.
                grown[server.name] = (own_kilobytes(server.pid) - before) / (IDLE_SESSIONS - PROCESSES)
            found = [{title: each.act(1.0, seconds) for title, each in clients.items()} for _ in range(turns)]
            rows += [_idle_row(title, DOORS[name], found) | {"kB/session": grown[title]} for title in clients]
    return rows


def _idle_row(name: str, floor: str, found: Sequence[Mapping[str, Pushed]]) -> dict[str, object]:
    shares = [turn[name].cpu_seconds / turn[name].seconds for turn in found]
    return {
        "server": name,
        "sessions": IDLE_SESSIONS - PROCESSES,
        "cores": statistics.median(shares),
        "cores ratio": statistics.median(turn[name].cpu_seconds / turn[floor].cpu_seconds for turn in found),
        "p50 ms": statistics.median(turn[name].percentile(50) for turn in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choice(parser, "parts", [*NETWORKS, "idle"])
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="of each server (default: 5)")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="of a turn (default: 4)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)  # For what the clients and the service say.
    for kind in NETWORKS:
        if kind in arguments.parts:
            rows = measure(kind, arguments.turns, arguments.seconds)
            report("acting", "loopback, clients on the same machine", rows, arguments.turns)
    if "idle" in arguments.parts:
        rows = measure_idle(arguments.turns, 2 * arguments.seconds)
        report("acting idle", "loopback, one step a second", rows, arguments.turns)


if __name__ == "__main__":
    main()
