from __future__ import annotations

from pathlib import Path

from actor.stat import ActorStat
from learner.loop.summaries import AsyncTrainStat, actor_stats, actor_stats_fmt
from learner.shared.actor_table import ActorState, map_actor_table


def test_invariant_14_both_summaries_have_borders_csv_formats() -> None:
    trainer = AsyncTrainStat(samples_per_sec=1000.0, duration=2.5, opt_per_sec=400.0)
    assert trainer.fmt() == "samples/sec, opt_steps/sec, duration\n1000.0, 400.0, 2.50\n"
    actors = [ActorStat(0, 500, 2.0), ActorStat(1, 0, 0.0)]
    assert actor_stats_fmt(actors) == "actor_id, samples, samples/sec, duration\n0, 500, 250.0, 2.00\n1, 0, 0.0, 0.00\n"


def test_actors_are_listed_by_id_also_those_that_have_gone(tmp_path: Path) -> None:
    table = map_actor_table(tmp_path, create=True)
    for row, (actor_id, state) in enumerate([(1, ActorState.LEFT), (0, ActorState.LOST), (1, ActorState.ONLINE)]):
        table[row]["actor_id"], table[row]["state"], table[row]["env_steps"] = actor_id, state, row + 10
    assert [(s.actor_id, s.env_steps) for s in actor_stats(table)] == [(0, 11), (1, 10), (1, 12)]
