"""Border's invariants that only a whole run can show; one run of three real actors serves them all.

1, 2, 3, 4, 7, 8 and 9 are shown on the learner loop alone in tests/learner/loop/test_learner.py, 10 also in
test_evaluator.py, 12 in ingest/test_joining.py, 14 in test_stat.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from common.data import Array, Items
from learner.loop.server import AsyncResult
from learner.shared.control import ControlBlock
from tests.conftest import counting_config, wait_for
from tests.e2e.test_counting import CAPACITY, steps_of, train_in_thread
from tests.parts import PACED, CountingEnv, check_rows, expected_rows
from tests.stored import assert_stored, stored_rows

SEED, N_BUFFER = 100, 7


@dataclass
class Run:
    result: AsyncResult
    rows: Items
    control: ControlBlock
    table: Array
    record: dict[str, float]
    """What was recorded of training, and of its episodes."""


class SucceedingEnv(CountingEnv):
    """Its episodes succeed where they terminate, and say so."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"is_success": terminated}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = counting_config(
        tmp_path_factory.mktemp("invariants") / "run",
        seed=SEED,
        env={**PACED, "target": "tests.e2e.test_border_invariants:SucceedingEnv"},
        push={"n_buffer": N_BUFFER, "flush_seconds": 600.0},
        trainer={"max_opts": 1_000_000, "eval_interval": 20, "record_interval": 5},
        replay={"capacity": CAPACITY, "samples_per_insert": 3.2},
        evaluator={"episodes": 2},
    )
    with train_in_thread(config, local_actors=3) as (server, results):
        table, memory = server.actor_table, server.run.memory
        assert memory is not None
        versions = memory.columns["version"]
        wait_for(lambda: (table["env_steps"] > 1000).sum() == 3, "every actor takes part")
        wait_for(lambda: (table["behaviour_opt_steps"] > 0).sum() == 3, "every actor has a model that has learnt")
        wait_for(lambda: len({*versions[: memory.committed].tolist()}) > 3, "rows of a fourth version")
        wait_for(lambda: server.learner.best_score > 0, "a score")
        record = dict[str, float]()

        def has_recorded() -> bool:
            record.update(server.learner.records.newest)
            return {"train_return", "train_length", "train_success"} <= record.keys()

        wait_for(has_recorded, "records have what the episodes came to")
        server.learner.request_stop()
    return Run(results[0], stored_rows(results[0].run_dir), server.control, server.actor_table, record)


def test_invariant_4_no_actor_steps_before_it_has_a_model(run: Run) -> None:
    """The agent fails when it is asked to act without one; a failed actor would have been replaced."""
    assert len(run.result.actors) == 3


def test_invariant_5_actors_adopt_only_strictly_newer_models(run: Run) -> None:
    """The agent fails when it is given another; here that there were newer ones to adopt."""
    assert len(run.result.actors) == 3
    assert len({*run.rows["version"].tolist()}) > 3
    known = run.table[run.table["pid"] > 0]
    assert (known["behaviour_opt_steps"] > 0).all()


def test_invariant_6_samples_total_counts_the_steps_accepted(run: Run) -> None:
    assert run.result.samples_total == (~run.rows["final"]).sum() == int(run.table["items"].sum())


def test_invariant_9_actors_always_explore_and_evaluations_never_do(run: Run) -> None:
    """The agent fails otherwise; here that both happened."""
    assert len(run.result.actors) == 3
    assert run.result.best_score > 0


def test_invariant_10_actor_i_has_the_runs_seed_plus_i(run: Run) -> None:
    tags = {SEED + actor: steps for actor, steps in steps_of(run.result).items()}
    assert sorted(tags) == [SEED, SEED + 1, SEED + 2]
    assert_stored(run.result.run_dir, tags)


def test_invariant_11_rows_travel_in_batches_of_n_buffer_several_at_once_if_they_wait(run: Run) -> None:
    rows = [len(expected_rows(0, steps)["final"]) for steps in steps_of(run.result).values()]
    full_or_last = sum(-(-n // N_BUFFER) for n in rows)
    assert 0 < run.control.batches <= full_or_last


def test_invariant_13_the_final_row_has_the_terminal_observation_and_no_episode_runs_into_the_next(run: Run) -> None:
    check_rows(run.rows)
    assert run.rows["terminated"].sum() > 100
    assert run.rows["truncated"].sum() > 100
    assert not (run.rows["terminated"] & run.rows["truncated"]).any()


def test_what_actors_get_in_training_is_recorded(run: Run) -> None:
    assert run.record["train_length"] == pytest.approx(7, abs=1)
    assert run.record["train_return"] > 0
