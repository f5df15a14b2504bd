"""How punctual an actor with ``env.rate_hz`` is while it pushes camera pictures and a new policy arrives every second.

The actor is a separate process with SAC on two cameras of 128 x 128 x 3 and 14 numbers; its policy has 6.8 MB. The
learner host is real too (gRPC, ingest, replay), but for its training: its trainer only changes the policy and publishes
it. The environment notes when each of its steps begins, so the figures do not rely on the actor's own count. The floor
is a process that only waits for the same ticks. Real-time priority, as a robot's owner would give it to the actor:

    chrt -f 20 python -m benchmarks.control
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from actor.child_main import run_worker
from actor.worker import Actor
from benchmarks.report import report, run_as_actors_do
from common.agents.networks import ConvNet
from common.config.run_config import RunConfig
from common.errors import CrossborderError
from common.lanes.pace import LATE_SECONDS, Pace
from common.settings import validate
from common.wire.trust import Trust
from learner.loop.server import LearnerServer

SIDE: Final = 128
CAMERAS: Final = ("front", "wrist")
EPISODE_SECONDS: Final = 10
PUBLISH_SECONDS: Final = 1.0
PATIENCE: Final = 60.0
WORD: Final = "ADDRESS "


class TwoCameras(nn.Module):
    """Three layers of convolutions for each camera; the numbers go to the head without them."""

    def __init__(self, in_shape: Mapping[str, Sequence[int]], out_dim: int) -> None:
        super().__init__()
        layers = ((32, 8, 4), (64, 4, 2), (64, 3, 2))
        self.cameras = nn.ModuleDict({name: ConvNet(in_shape[name], 256, layers, None) for name in CAMERAS})
        self.head = nn.Linear(256 * len(CAMERAS) + in_shape["state"][0], out_dim)

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Observations of B rows to ``[B, out_dim]``."""
        features = [encode(obs[name]) for name, encode in self.cameras.items()]
        return self.head(torch.cat([*features, obs["state"]], dim=1))  # type: ignore[no-any-return]


class Robot(gymnasium.Env[Any, Any]):
    """Shows recorded pictures, and notes when its steps begin."""

    begun: Final[list[list[float]]] = []
    """For each episode, when each of its steps began, on the monotonic clock."""

    def __init__(self, rate_hz: float) -> None:
        picture = spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)
        state = spaces.Box(-np.inf, np.inf, (14,), np.float32)
        self.observation_space = spaces.Dict({**dict.fromkeys(CAMERAS, picture), "state": state})
        self.action_space = spaces.Box(-1, 1, (7,), np.float32)
        self._steps = round(EPISODE_SECONDS * rate_hz)
        random, ramp = np.random.default_rng(0), np.linspace(0, 200, SIDE)
        noise = random.integers(0, 8, (32, 3, SIDE, SIDE))
        self._pictures = (ramp[None, None, None] + noise).astype(np.uint8)
        self._state = random.normal(size=14).astype(np.float32)

    def _see(self) -> dict[str, np.ndarray[Any, Any]]:
        shown = len(self.begun[-1])
        pictures = {name: self._pictures[(shown + i) % len(self._pictures)] for i, name in enumerate(CAMERAS)}
        return {**pictures, "state": self._state}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.begun.append([])
        return self._see(), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002 - nothing moves
        self.begun[-1].append(time.monotonic())
        return self._see(), 0.0, False, len(self.begun[-1]) >= self._steps, {}


def run_config(rate_hz: float, directory: str) -> RunConfig:
    """The run: no evaluation, and a replay that is small enough for memory."""
    network = {"target": f"{MODULE}:TwoCameras"}
    params = {"network": network, "feature_dim": 352, "units": [512], "random_opts": 0}
    return validate(
        RunConfig,
        {
            "run_dir": f"{directory}/run",
            "env": {"target": f"{MODULE}:Robot", "params": {"rate_hz": rate_hz}, "rate_hz": rate_hz},
            "agent": {"target": "common.agents.sac:SAC", "params": params},
            "replay": {"capacity": 2000},
            "trainer": {"max_opts": 10**9, "eval_interval": 0, "warmup_period": 1},
            "server": {"listen": "127.0.0.1:0"},
            "metrics": {"listen": None},
        },
    )


def serve(rate_hz: float, cores: Sequence[int]) -> None:
    """Run the learner host until standard input is closed, without real-time priority."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    closed = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=await_end, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory, LearnerServer(run_config(rate_hz, directory)) as server:
        policy = server.learner.agent.model_info()
        n_bytes = sum(tensor.nbytes for tensor in policy.values())
        sys.stdout.write(f"{WORD}{server.ingest.address} {n_bytes}\n")
        sys.stdout.flush()
        for opt_steps in itertools.count(1):
            for tensor in policy.values():
                tensor.mul_(0.999)
            server.learner.publish(opt_steps)
            if closed.wait(PUBLISH_SECONDS):
                break


@contextmanager
def learner(rate_hz: float, cores: Sequence[int]) -> Iterator[tuple[str, int]]:
    """A learner host in a separate process: its address, and the bytes of its policy."""
    command = [sys.executable, "-m", MODULE, "--serve", str(rate_hz), "--learner-cores", *map(str, cores)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith(WORD)), "")
        if not line:
            raise SystemExit("the learner host did not start")
        address, n_bytes = line.removeprefix(WORD).split()
        yield address, int(n_bytes)
        process.stdin.close()


def act(address: str, seconds: float) -> None:
    """Act for this many seconds from the first step on."""
    Robot.begun.clear()
    actor = Actor(address, PATIENCE, Trust(), fail)

    def stop_later() -> None:
        while not Robot.begun:
            time.sleep(0.1)
        time.sleep(seconds)
        actor.stop()

    threading.Thread(target=stop_later, daemon=True).start()
    run_worker(actor)


def fail(error: CrossborderError) -> int:
    raise SystemExit(f"the actor failed: {error}")


def wait_only(rate_hz: float, seconds: float) -> list[list[float]]:
    """The times at which the waits for the same ticks end in a process that does nothing else."""
    pace, begun = Pace(rate_hz, threading.Event()), []
    for _ in range(round(rate_hz * seconds)):
        pace.wait()
        begun.append(time.monotonic())
    return [begun]


def punctuality(begun: Sequence[Sequence[float]], rate_hz: float) -> dict[str, float]:
    """Share of ticks that were met within 2 ms, and quantiles of the lateness in ms. A missed tick was not met."""
    lateness, missed = [], 0
    for times in begun:
        if len(times) < 2:
            continue
        since = np.array(times) - times[0]
        ticks = np.floor(since * rate_hz + 1e-3)  # A wait never ends early, but the first step may be noted late.
        lateness.append(np.maximum(0, since - ticks / rate_hz)[1:])
        missed += int(np.sum(np.diff(ticks) - 1))
    late = np.concatenate(lateness)
    p50, p99, p999 = np.quantile(late, (0.5, 0.99, 0.999)) * 1e3
    met = np.count_nonzero(late <= LATE_SECONDS) / (len(late) + missed)
    return {
        "ticks": len(late) + missed,
        "within 2 ms %": 100 * met,
        "p50 ms": p50,
        "p99 ms": p99,
        "p99.9 ms": p999,
        "max ms": late.max() * 1e3,
        "missed": missed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(MODULE, description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[20.0, 100.0], help="ticks per second")
    parser.add_argument("--seconds", type=float, default=62.0, help="of each measurement")
    every = sorted(os.sched_getaffinity(0))
    parser.add_argument("--actor-cores", type=int, nargs="+", default=every, help="the cores that the actor may use")
    parser.add_argument("--learner-cores", type=int, nargs="+", default=every, help="those of the learner host")
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve, arguments.learner_cores)
        return
    os.sched_setaffinity(0, arguments.actor_cores)
    rows: list[dict[str, object]] = []
    for rate_hz in arguments.rates:
        floor = punctuality(wait_only(rate_hz, arguments.seconds / 6), rate_hz)
        rows.append({"rate": rate_hz, "who": "floor", **floor, "load": os.getloadavg()[0]})
        with learner(rate_hz, arguments.learner_cores) as (address, n_bytes):
            model = f"{n_bytes / 1e6:.1f} MB"
            act(address, arguments.seconds)
        found = punctuality(Robot.begun, rate_hz)
        rows.append({"rate": rate_hz, "who": "actor", **found, "load": os.getloadavg()[0]})
    how = {os.SCHED_OTHER: "usual priority", os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR"}
    priority = how.get(os.sched_getscheduler(0), "another scheduler")
    report("control", f"policy of {model} each second; actor: {priority}", rows, runs=1)


MODULE: Final = "benchmarks.control"

if __name__ == "__main__":
    run_as_actors_do(MODULE)
    from benchmarks.control import main as run  # The environment that actors import has the same list of steps.

    run()
