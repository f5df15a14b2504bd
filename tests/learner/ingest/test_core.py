from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from common.data import ModelVersion
from common.wire.codec import encode
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import PROTOCOL_VERSION, NotJoinedError
from learner.ingest import service
from learner.ingest.core import IngestCore, TrainerWatch
from learner.ingest.joining import join
from learner.ingest.pushing import push
from learner.ingest.refusals import Context
from learner.shared.actor_table import ActorState
from learner.shared.control import ControlBlock
from tests.clocks import Clock
from tests.conftest import counting_config
from tests.learner.ingest.cores import LoneCore
from tests.parts import counting_schema, expected_rows

SCHEMA = counting_schema()
ACTOR = 77


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LoneCore]:
    """A core that keeps a replay ratio of 2."""
    config = counting_config(tmp_path / "run", replay={"samples_per_insert": 2.0, "error_buffer": 10.0})
    made = LoneCore(tmp_path / "shared", config, SCHEMA)
    yield made
    made.close()


def enter(core: IngestCore, incarnation: int = ACTOR) -> int:
    """Join and open a stream; the actor's row."""
    join(core, pb.JoinRequest(protocol_version=PROTOCOL_VERSION, incarnation=incarnation, host="here", pid=7))
    row = core.row_of(incarnation)
    core.registry.set_state(row, ActorState.ONLINE)
    return row


def batch(seq: int, **changes: Any) -> Request:
    known = {"incarnation": ACTOR, "seq": seq, "schema_hash": SCHEMA.hash, "rows": 5}
    return Request(pb.PushItemsRequest(**known | changes), (encode(SCHEMA, expected_rows(0, 5), 5),))


def test_an_actor_that_has_not_joined_has_no_row(lone: LoneCore) -> None:
    with pytest.raises(NotJoinedError, match="incarnation 000000000000004d has not joined"):
        lone.core.row_of(ACTOR)


def test_a_tick_publishes_the_totals_of_the_actors_and_is_a_sign_of_life(lone: LoneCore) -> None:
    core, control = lone.core, lone.core.control
    core.tick()
    assert (control.actors_online, control.episodes, control.return_mean) == (0, 0, 0.0)
    report = pb.Report(env_steps=6, episode_returns=[1.0, 2.0], episode_lengths=[2, 4])
    push(core, enter(core), batch(1, report=report))
    core.tick()
    assert control.ingest_beats == 2
    assert (control.actors_online, control.env_steps, control.episodes) == (1, 6, 2)
    assert (control.return_mean, control.length_mean) == (1.5, 3.0)


def test_means_that_the_ingest_process_before_this_one_wrote_stay_until_an_episode_ends(lone: LoneCore) -> None:
    lone.core.control.return_mean = 7.0
    lone.core.tick()
    assert lone.core.control.return_mean == 7.0


def test_models_that_are_sent_and_requests_with_nothing_new_are_counted(lone: LoneCore) -> None:
    core = lone.core
    answer = core.model(ModelVersion(0, 0), takes_delta=False)
    assert answer is not None
    assert core.model(answer.version, takes_delta=False) is None
    assert (core.control.fetches, core.control.not_modified) == (1, 1)
    assert core.control.model_bytes_sent == answer.n_bytes == lone.publisher.blob_bytes


def test_an_actor_is_held_until_the_trainer_has_drawn_the_number_that_settling_asks_for(lone: LoneCore) -> None:
    core = lone.core
    row = enter(core)
    push(core, row, batch(1))
    assert core.settle_turns() == 0, "the ratio allows these steps"
    push(core, row, batch(2))
    push(core, row, batch(3))
    assert core.turns.holds(row)
    while release_at := core.settle_turns():
        assert release_at > core.control.sampled
        core.control.sampled = release_at
    assert not core.turns.holds(row)


def test_an_actor_is_held_back_unless_the_trainer_has_seen_all_steps_and_waits_for_more(lone: LoneCore) -> None:
    """The ratio allows a draw, but a queue may need more rows for it: if actors waited too, neither could go on.

    Steps that the trainer has not seen may be all that it needs, and it may be slow to wake up.
    """
    core = lone.core
    row = enter(core)
    core.control.sampled = 1
    for seq in range(1, 4):
        push(core, row, batch(seq))
    for seq in range(4, 7):
        assert core.turns.holds(row)
        core.control.trainer_waits_for = core.memory.steps + 1
        assert core.settle_turns() == 0
        assert not core.turns.holds(row)
        push(core, row, batch(seq))
    assert core.turns.holds(row)


def test_an_actor_in_step_waits_for_the_share_of_another_and_then_for_the_draw(tmp_path: Path) -> None:
    config = counting_config(tmp_path / "run", trainer={"warmup_period": 1}, replay={"samples_per_insert": 1.0})
    lone = LoneCore(tmp_path / "shared", config, SCHEMA)
    core, other = lone.core, 78
    rows = enter(core), enter(core, other)
    core.control.batch_steps = 20

    def wait_for_rows() -> int:
        core.control.trainer_waits_for = core.memory.steps + 1
        return core.settle_turns()

    push(core, rows[1], batch(1, incarnation=other))
    push(core, rows[0], batch(1))
    push(core, rows[0], batch(2))
    assert wait_for_rows() == 1, "ingest asks for the bell at the next draw"
    assert [core.turns.holds(row) for row in rows] == [True, False]
    assert rows[1] in core.turns.take_freed()
    push(core, rows[1], batch(2, incarnation=other))
    assert [core.turns.holds(row) for row in rows] == [True, True], "the trainer has not looked at the last share"
    core.control.sampled, core.control.trainer_waits_for = 20, 0
    core.settle_turns()
    assert [core.turns.holds(row) for row in rows] == [False, False]
    assert set(rows) <= core.turns.take_freed()
    lone.close()


def test_who_has_given_a_share_waits_for_a_later_draw_although_an_admin_has_ended_the_ratio(tmp_path: Path) -> None:
    """The trainer notices that within a second. Until then ingest would wait for a draw of the past, without end."""
    config = counting_config(tmp_path / "run", trainer={"warmup_period": 1}, replay={"samples_per_insert": 1.0})
    lone = LoneCore(tmp_path / "shared", config, SCHEMA)
    core = lone.core
    row = enter(core)
    core.control.batch_steps = core.control.sampled = 5
    push(core, row, batch(1))
    core.ratio.change(None, core.memory.steps, 5)
    assert core.turns.holds(row)
    assert core.settle_turns() == 6
    lone.close()


def test_nobody_waits_for_a_share_when_training_is_over(tmp_path: Path) -> None:
    config = counting_config(tmp_path / "run", trainer={"warmup_period": 1}, replay={"samples_per_insert": 1.0})
    lone = LoneCore(tmp_path / "shared", config, SCHEMA)
    core = lone.core
    row = enter(core)
    core.control.batch_steps = 5
    push(core, row, batch(1))
    assert core.turns.holds(row)
    core.control.stopping = 1
    assert core.settle_turns() == 0
    assert not core.turns.holds(row)
    lone.close()


def test_the_warm_up_of_a_restored_replay_counts_steps_and_not_rows(tmp_path: Path) -> None:
    """A replay that was restored from a backup begins with fewer steps than rows: final rows are no steps."""
    replay: dict[str, Any] = {"samples_per_insert": 1.0, "error_buffer": 1.0}
    config = counting_config(tmp_path / "run", trainer={"warmup_period": 4}, replay=replay)
    lone = LoneCore(tmp_path / "shared", config, SCHEMA, began=1000, steps_began=100)
    row = enter(lone.core)
    lone.core.control.sampled = 1
    push(lone.core, row, batch(1))
    push(lone.core, row, batch(2))
    assert lone.core.turns.holds(row)
    lone.close()


def test_nobody_is_held_back_when_training_is_over(lone: LoneCore) -> None:
    core = lone.core
    row = enter(core)
    core.control.sampled = core.control.stopping = 1
    for seq in range(1, 10):
        push(core, row, batch(seq))
    assert not core.turns.holds(row)


def test_the_trainers_bell_rings_for_a_batch_only_while_the_trainer_waits(lone: LoneCore) -> None:
    core = lone.core
    row = enter(core)
    push(core, row, batch(1))
    assert not lone.bell.wait(0)
    core.control.trainer_waits_for = core.memory.steps + 1
    push(core, row, batch(2))
    assert lone.bell.wait(0)


def test_actors_are_held_back_from_the_end_of_the_warm_up_on_also_before_the_first_draw(lone: LoneCore) -> None:
    """A trainer that is slow to take its first opt step would find too many steps."""
    core = lone.core
    row = enter(core)
    push(core, row, batch(1))
    assert not core.turns.holds(row)
    push(core, row, batch(2))
    assert core.turns.holds(row)


def test_a_resumed_run_counts_what_it_had_drawn_before_its_first_draw(lone: LoneCore) -> None:
    core = lone.core
    core.ratio.begin(inserted=0, sampled=1_000_000)
    row = enter(core)
    push(core, row, batch(1))
    assert not core.turns.holds(row)


def test_an_actor_that_was_away_for_long_hears_of_all_its_batches_that_are_mirrored(tmp_path: Path) -> None:
    """The log has lost their records. An actor that hears of fewer than it had acknowledged sends the rest twice."""
    storage = {"mirror": f"file://{tmp_path}/mirror", "acknowledge": "mirrored"}
    config = counting_config(tmp_path / "run", storage=storage, replay={"capacity": 80})
    lone = LoneCore(tmp_path / "shared", config, SCHEMA)
    core, other = lone.core, 78
    push(core, enter(core), batch(1))
    row = enter(core, other)
    for seq in range(1, core.memory.log.length + 1):
        push(core, row, batch(seq, incarnation=other))
    lone.mirror.mirrored = core.memory.committed - 5
    assert [core.last_seq(ACTOR), core.last_seq(other)] == [1, core.memory.log.length - 1]
    lone.close()


def test_of_an_actor_that_sends_on_while_the_mirror_is_away_no_more_is_kept_than_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_UNMIRRORED", 2)
    storage = {"mirror": f"file://{tmp_path}/mirror", "acknowledge": "mirrored"}
    lone = LoneCore(tmp_path / "shared", counting_config(tmp_path / "run", storage=storage), SCHEMA)
    core, row, ends = lone.core, enter(lone.core), list[int]()
    stream = service.ActorStream(core, cast(Context, None))  # It says nothing here.
    for seq in (1, 2, 3, 4):
        push(core, row, batch(seq))
        ends.append(core.memory.committed)
        assert stream._find_acknowledged(seq) == 0
    assert len(stream._unmirrored) == 2
    for end, acked in ((ends[0], 1), (ends[2], 0), (ends[3], 4)):
        lone.mirror.mirrored = end
        assert stream._find_acknowledged(0) == acked
    lone.close()


@pytest.fixture
def control(tmp_path: Path) -> ControlBlock:
    made = ControlBlock.open(tmp_path, create=True)
    made.start(1, 0)
    return made


def looks(watch: TrainerWatch, clock: Clock, seconds: int) -> float:
    for _ in range(seconds):
        clock.now += 1.0
        watch.look()
    return watch.silent_seconds


def test_a_training_loop_that_stands_still_is_logged_once_and_again_when_it_goes_on(
    control: ControlBlock, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    watch = TrainerWatch(control, 10.0, clock)
    control.trainer_beats = 1
    watch.look()
    assert looks(watch, clock, 10) == 10.0
    assert not caplog.records
    assert looks(watch, clock, 30) == 40.0
    control.trainer_beats += 1
    assert looks(watch, clock, 1) == 0.0
    assert [(record.levelname, record.getMessage()[:53]) for record in caplog.records] == [
        ("ERROR", "the trainer has shown no sign of life for 11 s (serve"),
        ("WARNING", "the trainer goes on"),
    ]


@pytest.mark.parametrize(("beats", "stopping"), [(0, 0), (5, 1)])
def test_silence_is_not_logged_before_training_begins_and_after_it_ends(
    control: ControlBlock, beats: int, stopping: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    control.trainer_beats, control.stopping = beats, stopping
    clock = Clock()
    assert looks(TrainerWatch(control, 10.0, clock), clock, 60) == 0.0
    assert not caplog.records


def test_without_a_limit_silence_is_measured_and_not_logged(
    control: ControlBlock, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    watch = TrainerWatch(control, None, clock)
    control.trainer_beats = 1
    watch.look()
    assert looks(watch, clock, 3600) == 3600.0
    assert not caplog.records
