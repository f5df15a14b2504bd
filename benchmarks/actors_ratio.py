"""Which side waits, by the number of actors and by the replay ratio, with equal numbers of environment steps.

    python -m benchmarks.actors_ratio                  all cases, three seeds each
    python -m benchmarks.actors_ratio --seeds 0        only writes the tables and the picture again

Each run is ``configs/cartpole.yaml`` until the replay has 20,000 steps. CartPole costs next to nothing, so one actor is
faster than the trainer; where a step sleeps 5 ms, as in a slow simulator or a robot, one actor is slower. All actors
wait at a gate before their first step until all are there: the seconds are those of training, without start-up. During
a run nothing is evaluated. The policies that it saved are scored afterwards, by 20 greedy episodes each.

``trainer waits`` and ``actors wait`` are shares of these seconds, ``lag`` is the policy lag at the end in opt steps.
Runs are kept in ``benchmarks/results/actors_ratio.json``; a run that is there already is not repeated. At the end, the
tables of docs/replay-ratio.md and docs/images/actors.png are written from all runs that are kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
import torch

from benchmarks.kept import runs_of, train_missing, write_tables
from benchmarks.report import wait_until
from common.config.run_config import RunConfig, load_config
from common.lanes.policy import Policy
from learner.loop.server import LearnerServer
from learner.storage.checkpoint import load_policy

NAME: Final = "actors_ratio"
PAGE: Final = Path("docs/replay-ratio.md")
PICTURE: Final = Path("docs/images/actors.png")
STEPS: Final = 20_000
POLICIES: Final = 10
EPISODES: Final = 20
ALL_THERE: Final = "all actors wait at the gate"


@dataclass(frozen=True)
class Case:
    """A number of actors, a replay ratio, and how long a step of the environment sleeps."""

    actors: int
    ratio: int = 32
    step_ms: int = 0

    @property
    def way(self) -> str:
        """The name under which its runs are kept."""
        return f"{self.actors} actors, ratio {self.ratio}, {self.step_ms} ms"


ACTORS: Final = (1, 2, 4, 8, 16)
BY_ACTORS: Final = {step_ms: [Case(actors, step_ms=step_ms) for actors in ACTORS] for step_ms in (0, 5)}
BY_RATIO: Final = [Case(4, ratio) for ratio in (4, 8, 16, 32, 64)]
CASES: Final = tuple(dict.fromkeys([*BY_ACTORS[0], *BY_ACTORS[5], *BY_RATIO]))


class Gated(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose steps take a while, and whose first episode waits until ``gate/open`` exists.

    Args:
        gate: a folder in which each environment writes a file when it begins to wait; None: there is no gate.
        step_ms: milliseconds that each step sleeps.
    """

    def __init__(self, gate: str | None, step_ms: int) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._gate, self._step_seconds = gate, step_ms / 1000

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, the first one when the gate opens."""
        if self._gate is not None:
            Path(self._gate, str(os.getpid())).touch()
            wait_until(Path(self._gate, "open").exists, ALL_THERE)
            self._gate = None
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        time.sleep(self._step_seconds)
        return super().step(action)


def configure(case: Case, seed: int, directory: Path) -> RunConfig:
    """The shipped configuration with this ratio and environment, until the replay has ``STEPS`` steps."""
    path = Path("configs/cartpole.yaml")
    plain = load_config(path)
    batch = plain.agent.params["batch_size"]
    interval = (STEPS - plain.trainer.warmup_period) * case.ratio // batch // POLICIES
    (directory / "gate").mkdir()
    ours = {
        "env": f"{{target: benchmarks.{NAME}:Gated, params: {{gate: {directory}/gate, step_ms: {case.step_ms}}}, "
        "eval_params: {gate: null, step_ms: 0}}",
        "replay.samples_per_insert": case.ratio,
        "trainer.target_score": "null",
        "trainer.max_opts": interval * POLICIES,
        "trainer.eval_interval": 0,
        "trainer.save_interval": interval,
        "server.listen": "127.0.0.1:0",
        "metrics.listen": "null",
        "seed": seed,
        "run_dir": directory / "run",
    }
    return load_config(path, [f"{key}={value}" for key, value in ours.items()])


def train(case: Case, seed: int) -> dict[str, Any]:
    """One run: its seconds, the shares of waiting, its policy lag, and the scores of the policies that it saved."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = configure(case, seed, directory)
        with LearnerServer(config, local_actors=case.actors) as server:
            watch = Watch(server, directory / "gate", case.actors)
            result = server.train()
            watch.join()
            actors = server.actor_table[server.actor_table["env_steps"] > 0]
            figures = {
                "seconds": round(watch.seconds, 2),
                "steps": result.samples_total,
                "opt_steps": result.opt_steps,
                "trainer_waits": round(watch.trainer_waits / watch.seconds, 3),
                "actors_wait": round(float(np.mean(actors["wait_seconds"])) / watch.seconds, 3),
                "lag": round(float(server.control.policy_lag), 1),
                "load": round(os.getloadavg()[0], 1),
            }
        folders = sorted((int(path.name), path) for path in (directory / "run").iterdir() if path.name.isdigit())
        per_opt = case.ratio / config.agent.params["batch_size"]
        curve = [[round(opts / per_opt), score(load_policy(path))] for opts, path in folders]
    return {**figures, "curve": curve}


class Watch(threading.Thread):
    """Opens the gate once all actors wait at it, and takes the time from then to the last opt step.

    Args:
        gate: the folder.
        actors: the number of actors to wait for.
    """

    def __init__(self, server: LearnerServer, gate: Path, actors: int) -> None:
        super().__init__()
        self.seconds = self.trainer_waits = 0.0
        self._server, self._gate, self._actors = server, gate, actors
        self.start()

    def run(self) -> None:
        """Watch one run."""
        server = self._server
        wait_until(lambda: len(list(self._gate.iterdir())) == self._actors, ALL_THERE)
        began, waited = time.perf_counter(), server.control.trainer_wait_seconds
        (self._gate / "open").touch()
        while server.learner.opt_steps < server.config.trainer.max_opts and server.learner.life.failure is None:
            time.sleep(0.005)
        self.seconds = time.perf_counter() - began
        self.trainer_waits = server.control.trainer_wait_seconds - waited


def score(policy: Policy) -> float:
    """Mean return of greedy episodes, the same for each policy."""
    env = gymnasium.make("CartPole-v1")
    total = 0.0
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=1000 + episode)
        done = False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            total += float(reward)
            done = terminated or truncated
    return total / EPISODES


def table(cases: Sequence[Case], first: str) -> str:
    """Medians over the seeds; ``first`` names what differs: actors or ratio."""
    names = {"actors": "actors", "ratio": "replay ratio"}
    lines = [
        f"| {names[first]} | seconds | steps/s | opt steps/s | trainer waits | actors wait | policy lag | score |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for case in cases:
        runs = runs_of(NAME, way=case.way)
        if runs:
            median = {
                key: statistics.median(run[key] for run in runs) for key in runs[0] if key not in ("way", "curve")
            }
            scores = statistics.median(statistics.mean(score for _, score in run["curve"]) for run in runs)
            cells = [
                f"{getattr(case, first)}",
                f"{median['seconds']:.1f}",
                f"{median['steps'] / median['seconds']:,.0f}",
                f"{median['opt_steps'] / median['seconds']:,.0f}",
                f"{median['trainer_waits']:.0%}",
                f"{median['actors_wait']:.0%}",
                f"{median['lag']:.0f}",
                f"{scores:.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw() -> None:
    """Draw seconds and shares of waiting by actors, and scores by environment steps."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - actors import this module, and draw nothing

    figure = Figure(figsize=(15, 4.2), layout="constrained")
    seconds, waiting, scores = figure.subplots(1, 3)
    titles = {0: "a step takes no time", 5: "a step takes 5 ms"}
    for (step_ms, cases), colour in zip(BY_ACTORS.items(), ("tab:blue", "tab:orange"), strict=True):
        known = [case for case in cases if runs_of(NAME, way=case.way)]
        actors = [case.actors for case in known]

        def of(key: str, known: Sequence[Case] = known) -> list[float]:
            return [statistics.median(run[key] for run in runs_of(NAME, way=case.way)) for case in known]

        seconds.plot(actors, of("seconds"), "o-", color=colour, label=titles[step_ms])
        waiting.plot(actors, of("actors_wait"), "o-", color=colour, label=f"actors wait, {titles[step_ms]}")
        waiting.plot(actors, of("trainer_waits"), "x--", color=colour, label=f"trainer waits, {titles[step_ms]}")
    for case in BY_ACTORS[5]:
        runs = runs_of(NAME, way=case.way)
        if runs:
            curves = np.array([run["curve"] for run in runs])
            scores.plot(*np.median(curves, axis=0).T, label=f"{case.actors} actors")
    seconds.set(title="seconds for 20,000 steps", xlabel="actors", ylim=(0, None))
    waiting.set(title="share of the time that each side waits", xlabel="actors", ylim=(-0.02, 1.02))
    scores.set(title="score at equal steps (a step takes 5 ms)", xlabel="environment steps")
    for panel in (seconds, waiting):
        panel.set_xscale("log", base=2)
        panel.set_xticks(ACTORS, [str(actors) for actors in ACTORS])
    for panel in (seconds, waiting, scores):
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.savefig(PICTURE, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(f"benchmarks.{NAME}", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train_missing(NAME, {case.way: partial(train, case) for case in CASES}, range(arguments.seeds))
    tables = {
        "slow": table(BY_ACTORS[5], "actors"),
        "fast": table(BY_ACTORS[0], "actors"),
        "ratios": table(BY_RATIO, "ratio"),
    }
    write_tables(PAGE, tables)
    draw()


if __name__ == "__main__":
    main()
