"""What a mirror costs: acknowledgements and training, with it and without, while 2,000 rows/s of pictures come.

    python -m benchmarks.mirror

Turns alternate. In each turn ``learner-server`` and ``actor-worker`` run as users run them. Two actors replay a
recording of Pong at 1,000 steps/s each, and act at random. In an opt step the agent draws 32 transitions and runs
Nature's network over them, forwards and backwards. Opt steps follow one another without a replay ratio. The mirror is
a directory of this host, so it takes the disk's time too. Each ratio is the median of the turns' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from benchmarks import recordings
from benchmarks.idle import Idle
from benchmarks.pairs import acting, child_of, read_metrics, sample
from benchmarks.report import cpu_seconds, report, run_as_actors_do
from common.data import Record
from common.interfaces import EnvSpec, ReplayBuffer
from learner.ingest.refusals import quantile_between

TURNS: Final = 3
SECONDS: Final = 20.0
SETTLING: Final = 5.0
ACTORS, HZ = 2, 1000.0


class Learning(Idle):
    """Acts at random, and learns nothing useful."""

    def __init__(self, spec: EnvSpec, seed: int, epsilon: float, device: str) -> None:
        super().__init__(spec, seed, epsilon, device)
        layers = [
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
        ]
        self._network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6))

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        obs = torch.as_tensor(np.asarray(buffer.batch(32)["obs"]), dtype=torch.float32)
        self._network(obs).square().mean().backward()
        return {"loss": 0.0}


def part_of(directory: Path, storage: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a turn."""
    params = {"directory": str(directory), "name": "pong"}
    return {
        "agent": {"target": "benchmarks.mirror:Learning"},
        "env": {"target": "benchmarks.recorded:Recorded", "params": params, "frame_stack": 4, "rate_hz": HZ},
        "replay": {"capacity": 50_000},
        "trainer": {"max_opts": 10**9, "eval_interval": 0, "warmup_period": 1000, "checkpoint_seconds": 10},
        "metrics": {"listen": "127.0.0.1:0"},
        "storage": dict(storage),
    }


def buckets(text: str) -> list[tuple[float, int]]:
    """The buckets of the delays of acknowledgements."""
    lines = (line for line in text.splitlines() if line.startswith("crossborder_ack_seconds_bucket"))
    return [(float(line.split('le="')[1].split('"')[0]), int(float(line.split()[-1]))) for line in lines]


def measure(recorded: Path, *, mirrored: bool) -> dict[str, float]:
    """The figures of one turn."""
    with tempfile.TemporaryDirectory() as place:
        storage = {"mirror": f"file://{place}/mirror"} if mirrored else {}
        with acting(part_of(recorded, storage), "--num-actors", str(ACTORS)) as pair:
            ports = json.loads((pair.run_dir / "endpoints.json").read_text())
            trainer, ingest = ports["trainer_metrics_port"], ports["ingest_metrics_port"]
            while not sample(read_metrics(trainer), "crossborder_opt_steps_total"):
                time.sleep(0.5)
            time.sleep(SETTLING)
            mirror = child_of(pair.learner, "mirror_child") if mirrored else None
            texts, cpu = (read_metrics(trainer), read_metrics(ingest)), cpu_seconds(mirror) if mirror else 0.0
            began = time.perf_counter()
            time.sleep(SECONDS)
            later, seconds = (read_metrics(trainer), read_metrics(ingest)), time.perf_counter() - began
            cpu = (cpu_seconds(mirror) if mirror else 0.0) - cpu
            rates = {
                name: (sample(after, metric) - sample(before, metric)) / seconds
                for name, metric, before, after in (
                    ("opt steps/s", "crossborder_opt_steps_total", texts[0], later[0]),
                    ("rows/s", "crossborder_stored_steps_total", texts[1], later[1]),
                )
            }
            p99 = quantile_between(buckets(texts[1]), buckets(later[1]), 0.99)
            sent, lag = 0.0, 0.0
            if mirrored:
                first, last = (sample(text[0], "crossborder_mirror_bytes_total") for text in (texts, later))
                sent, lag = (last - first) / 1e6 / seconds, sample(later[0], "crossborder_mirror_lag_seconds")
            of_mirror = {"mirror's processor": cpu / seconds, "mirror MB/s": sent, "lag s": lag}
            found = {**rates, "ack p99 ms": 1000 * (p99 or 0.0), **of_mirror}
            sys.stderr.write(f"{json.dumps({'mirrored': mirrored, **found})}\n")
            return found


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.mirror", description=__doc__)
    parser.add_argument("--recordings", type=Path, default=Path("/tmp/recordings"), help="missing ones are made")  # noqa: S108
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args()
    recordings.ensure(given.recordings)
    recorded = given.recordings.resolve()
    pairs = [(measure(recorded, mirrored=False), measure(recorded, mirrored=True)) for _ in range(given.turns)]
    rows = [
        {"run": name, **{key: statistics.median(pair[i][key] for pair in pairs) for key in pairs[0][i]}}
        for i, name in enumerate(("without a mirror", "with a mirror"))
    ]
    ratios: dict[str, object] = dict.fromkeys(pairs[0][0], "")
    for key in ("opt steps/s", "rows/s", "ack p99 ms"):
        ratios[key] = statistics.median(mirrored[key] / alone[key] for alone, mirrored in pairs)
    report("mirror", "ratios are medians of the turns' ratios", [*rows, {"run": "ratio", **ratios}], given.turns)


if __name__ == "__main__":
    run_as_actors_do("benchmarks.mirror")
    main()
