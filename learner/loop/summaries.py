"""The summaries at the end of a run, in border's two CSV formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actor.stat import ActorStat
from common.data import Array
from learner.shared.actor_table import ActorState


@dataclass(frozen=True)
class AsyncTrainStat:
    """The summary of training, for all three ways to train; the time counts from the first published model."""

    samples_per_sec: float
    duration: float
    opt_per_sec: float

    def fmt(self) -> str:
        row = f"{self.samples_per_sec:.1f}, {self.opt_per_sec:.1f}, {self.duration:.2f}"
        return f"samples/sec, opt_steps/sec, duration\n{row}\n"


def actor_stats(table: Array) -> list[ActorStat]:
    """Every actor process the run has known, by actor id."""
    known = table[table["state"] != ActorState.UNUSED]
    rows = known[np.argsort(known["actor_id"], kind="stable")]
    return [ActorStat(int(r["actor_id"]), int(r["env_steps"]), float(r["seconds"])) for r in rows]


def actor_stats_fmt(stats: Sequence[ActorStat]) -> str:
    lines = ["actor_id, samples, samples/sec, duration"]
    for stat in stats:
        rate = stat.env_steps / stat.duration if stat.duration else 0.0
        lines.append(f"{stat.actor_id}, {stat.env_steps}, {rate:.1f}, {stat.duration:.2f}")
    return "\n".join(lines) + "\n"
