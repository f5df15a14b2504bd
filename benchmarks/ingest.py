"""Steps per second that the learner stores from one actor: from its environment to the replay, by default settings.

    python -m benchmarks.ingest                       all cases; missing recordings are made first
    python -m benchmarks.ingest cartpole noise        some of them

``learner-server`` and ``actor-worker`` run as users run them. Environments replay recordings and the agent does
nothing, so a figure is that of the system: the environment's step, lanes, recorder, batches, compression,
gRPC, ingest and links. ``steps/s`` are counted at the learner's /metrics. After the last turn the actor ends, and the
benchmark fails if the learner has not stored each of its steps.

The floor is a bare gRPC stream of random bytes, with messages as large as the actor's and as many messages on their
way. ``of the floor`` compares bytes per second, and ``floor's CPU`` the processor time of both sides for a byte. Actor
and floor take turns, in which the other is paused; each figure is the median of its turns, and each ratio the median of
the turns' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks import recordings
from benchmarks.floor import measure_floor
from benchmarks.pairs import Pair, acting
from benchmarks.report import add_choice, report, run_as_actors_do
from common.config.actor_config import PushConfig
from crossborder.certificates.authority import make_files

TURNS: Final = 3
SECONDS: Final = 3.0
LANES: Final = 64
ROBOTS: Final = 4096
CASES: Final = {
    "cartpole": ((1, False), (1, True)),
    "pong": ((1, False), (1, True), (LANES, False)),
    "robots": ((ROBOTS, False),),
}
"""Lanes, and whether with TLS and a token; other pictures have one lane and ``LANES``, in the clear."""
WINDOW: Final = PushConfig().window
Part = dict[str, Any]


def part_of(directory: Path, kind: str, lanes: int) -> Part:
    """The configuration of a case.

    Args:
        directory: of the recordings.
        kind: the name of a recording, or "robots", which are random floats.
        lanes: 1, or that many lanes of one vector environment.
    """
    if kind == "robots":
        env: Part = {"target": "benchmarks.recorded:physics", "params": {"lanes": lanes}}
        return {"env": env, "replay": {"capacity": 1_000_000}}
    params = {"directory": str(directory), "name": kind}
    env = {"target": "benchmarks.recorded:Recorded", "params": params}
    if lanes > 1:
        env = {"target": "benchmarks.recorded:lanes_of", "params": {**params, "lanes": lanes}}
    if kind == "cartpole":
        return {"env": env, "replay": {"capacity": 1_000_000}}
    return {"env": {**env, "frame_stack": 4}, "replay": {"capacity": 50_000}}


def secure(part: Part, directory: Path) -> tuple[Part, tuple[str, ...]]:
    """The configuration with TLS and a token, and an actor's options for them."""
    make_files(directory, ["localhost"], 1, renew=False)
    tls = {"certificate": str(directory / "server.pem"), "key": str(directory / "server.key")}
    token = str(directory / "actor.token")
    server = {"listen": "127.0.0.1:0", "tls": tls, "actor_token_file": token}
    return {**part, "server": server}, ("--ca", str(directory / "ca.pem"), "--token-file", token)


def in_turns(pair: Pair, turns: int) -> dict[str, float]:
    """The figures of an actor beside its floor."""
    size = int(pair.measure(SECONDS)["bytes/message"])
    found = []
    for _ in range(turns):
        ours = pair.measure(SECONDS)
        pair.pause()
        floor = measure_floor(size, WINDOW, SECONDS)
        floor_steps = floor.per_second * size / ours["bytes/step"]
        floor_cpu = floor.cpu_seconds / size * ours["bytes/step"] * 1e6
        cpu = ours["actor CPU s/M"] + ours["ingest CPU s/M"]
        found.append(
            {
                **ours,
                "floor steps/s": floor_steps,
                "of the floor": ours["steps/s"] / floor_steps,
                "floor's CPU": floor_cpu / cpu,
                "load": os.getloadavg()[0],
            }
        )
    return {name: statistics.median(turn[name] for turn in found) for name in found[0]}


def measure(recorded: Path, kind: str, lanes: int, encrypted: bool, turns: int) -> Mapping[str, object]:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as directory:
        part, options = part_of(recorded, kind, lanes), tuple[str, ...]()
        if encrypted:
            part, options = secure(part, Path(directory))
        with acting(part, *options) as pair:
            figures = in_turns(pair, turns)
            stored = int(pair.compare())
    name = f"{kind}, TLS and a token" if encrypted else kind
    row = {"environment": name, "lanes": lanes, **figures, "stored, as pushed": stored}
    sys.stderr.write(f"{json.dumps(row)}\n")
    return row


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.ingest", description=__doc__)
    pictures = [*(game.lower() for game in recordings.GAMES), "noise"]
    kinds = ["cartpole", *pictures, "robots"]
    add_choice(parser, "kinds", kinds)
    parser.add_argument("--recordings", type=Path, default=Path("/tmp/recordings"), help="missing ones are made")  # noqa: S108
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args()
    recordings.ensure(given.recordings)
    cases = [
        (kind, lanes, encrypted)
        for kind in given.kinds
        for lanes, encrypted in CASES.get(kind, ((1, False), (LANES, False)))
    ]
    rows = [measure(given.recordings.resolve(), *case, given.turns) for case in cases]
    push = PushConfig()
    settings = f"push.n_buffer {push.n_buffer}, window {push.window}, flush_seconds {push.flush_seconds}"
    report("ingest", f"{settings}; acknowledged, stored exactly once", rows, given.turns)


if __name__ == "__main__":
    run_as_actors_do("benchmarks.ingest")
    main()
