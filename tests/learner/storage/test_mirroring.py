"""A run that goes on is mirrored again and again: each state has its rows, and names few segments."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from common.errors import TakenOverError
from learner.replay.memory import ReplayMemory
from learner.storage import mirroring as mirroring_module
from learner.storage.mirror import Mirror, MirrorAwayError, Past, Source, read_past
from learner.storage.mirrored_state import MirroredState, Segment
from learner.storage.restoring import _restore_state
from tests.learner.replay.memories import CAPACITY, check_linked, open_linked, writing
from tests.learner.storage.mirrored import ACTOR, RUN_ID, MirroredRun, keep_nothing


def newest_segments(run: MirroredRun) -> list[Segment]:
    newest = run.mirror.find_newest()
    assert newest is not None
    return newest.segments


def test_each_state_has_the_rows_and_cursors_that_were_there_when_it_was_written(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    for life in range(3):
        for _ in range(3):
            run.store(4)
            assert run.mirroring.write_state()
            assert run.block.mirrored == run.memory.committed
        stored, steps, before = run.memory.committed, run.memory.steps, run.memory
        run.store(4)  # These are lost.
        memory = run.vanish()
        assert (memory.committed, memory.steps, memory.first()) == (stored, steps, 0)
        check_linked(memory)
        assert memory.is_settled()
        assert memory.drawable == before.count_drawable(0, stored)
        run.begin_again()
        assert run.block.mirrored == stored, "nothing is sent again"
        assert run.writer.last_seq(ACTOR) == 12 * (life + 1)


def test_rows_that_were_overwritten_are_in_the_mirror_no_more(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path, capacity=64)
    for _ in range(40):
        run.store(3)
        run.mirroring.write_state()
    segments = newest_segments(run)
    assert segments[0].end > run.memory.first() >= segments[0].start
    assert [s.start for s in segments[1:]] == [s.end for s in segments[:-1]]
    memory = run.vanish()
    assert (len(memory), memory.committed) == (64, 600)
    check_linked(memory)
    n_objects = len(list((tmp_path / "mirror" / "objects").iterdir()))
    assert n_objects <= 2 * len(segments)


def test_rows_that_are_overwritten_before_they_are_sent_leave_a_gap_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = MirroredRun(tmp_path, capacity=64)
    run.store(4)
    run.mirroring.write_state()
    run.store(40)
    run.mirroring.write_state()
    memory = run.vanish()
    assert memory.committed == 220
    assert memory.first() >= 156
    check_linked(memory)


def test_many_small_segments_are_joined_level_by_level(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path, capacity=10_000)
    for _ in range(300):
        run.store(1)
        run.mirroring.write_state()
    segments = newest_segments(run)
    assert len(segments) < 3 * mirroring_module.FANOUT
    assert {segment.level for segment in segments} == {0, 1, 2}
    assert sum(segment.steps for segment in segments) == run.memory.steps == segments[-1].steps_end
    check_linked(run.vanish())


def test_a_large_replay_is_sent_over_several_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring_module, "SEGMENT_BYTES", 50 * 8 * 10)
    run = MirroredRun(tmp_path, capacity=1000, seconds=0.0)
    run.store(100)
    states = 1
    while not run.mirroring.write_state():
        states += 1
        assert newest_segments(run)[-1].end == run.block.mirrored
    assert states > 5
    memory = run.vanish()
    assert memory.committed == 500
    check_linked(memory)


def test_a_state_counts_the_steps_before_its_end_although_the_log_has_lost_the_records_of_the_last_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring_module, "SEGMENT_BYTES", 1)
    run = MirroredRun(tmp_path, seconds=0.0)
    run.store(20)
    run.memory.log.keep(10, 20)
    assert not run.mirroring.write_state(), "there are further rows"
    steps = run.memory.count_steps(0, 50)
    memory = run.vanish()
    assert (memory.committed, memory.steps) == (50, steps)


def test_a_state_that_ends_before_others_rows_has_only_cursors_of_its_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring_module, "SEGMENT_BYTES", 50 * 8 * 10)
    run = MirroredRun(tmp_path, capacity=1000, seconds=0.0)
    run.store(100)
    run.mirroring.write_state()
    memory = run.vanish()
    assert 0 < memory.committed < 500
    (cursor,) = memory.cursors[memory.cursors["seq"] > 0]
    assert int(cursor["seq"]) * 5 == memory.committed


def test_after_a_power_cut_the_mirror_gets_the_rows_that_came_in_the_place_of_lost_ones(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    run.store(10)
    run.mirroring.write_state()
    run.store(10)
    run.mirroring.write_state()
    # The power fails: the second ten batches are lost, and another actor's come in their place.
    lost = run.run / "shared" / "replay"
    lost.rename(tmp_path / "lost")
    run.memory = open_linked(run.run / "shared", create=True, capacity=512)
    run.begin_again()
    run.store(10)
    run.begin_again()
    assert run.block.mirrored == 50, "the rows that are the same are not sent again"
    run.store(12, rows=4)
    run.mirroring.write_state()
    memory = run.vanish()
    assert memory.committed == 98
    check_linked(memory)
    assert memory.log.read(int(memory.header.batches) - 1).rows == 4  # type: ignore[union-attr]


def test_files_are_mirrored_as_they_are_now_and_those_of_the_host_are_not(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    (run.run / "endpoints.json").write_text("{}")
    (run.run / ".draft.part").mkdir()
    (run.run / ".draft.part" / "half").touch()
    (run.run / "tensorboard" / "deep").mkdir(parents=True)
    (run.run / "tensorboard" / "deep" / "events").write_bytes(bytes(range(256)) * 4000)
    (run.run / "shared" / "models").write_text("made anew")
    (run.run / "shared" / "cordons.json").write_text("[]")
    run.mirroring.write_state()
    run.checkpoint(10)
    (run.run / "best").mkdir()
    (run.run / "best" / "meta.json").write_text("best")
    (run.run / "best").rename(run.run / ".best.old")  # It is being replaced at this moment.
    (run.run / "shared" / "cordons.json").write_text("[1]")
    run.mirroring.write_state()
    before = run.run
    run.vanish()
    found = {str(path.relative_to(run.run)) for path in run.run.rglob("*") if path.is_file()}
    assert {path for path in found if not path.startswith("shared/replay/")} == {
        "best/meta.json",
        "checkpoints/0/state.json",
        "checkpoints/10/state.json",
        "lock",
        "mirror.json",
        "run.json",
        "shared/cordons.json",
        "tensorboard/deep/events",
    }
    deep = Path("tensorboard/deep/events")
    assert (run.run / deep).read_bytes() == (before / deep).read_bytes()
    assert (run.run / "shared/cordons.json").read_text() == "[1]"


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    run.store(3)
    for _ in range(5):
        assert run.mirroring.write_state()
    assert run.block.states == 1


def test_every_state_of_a_replay_that_another_process_fills_is_whole(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path, capacity=CAPACITY)
    with writing(run.run / "shared", "linked") as writer:
        for host in range(8):
            while not run.mirroring.write_state() and run.block.states < 3 * host + 3:
                pass
            newest = run.mirror.find_newest()
            assert newest is not None
            other = MirroredCopy(run, host)
            check_linked(other.memory)
        writer.kill()


class MirroredCopy:
    """The newest state of a mirror on another host, while the run goes on."""

    def __init__(self, run: MirroredRun, number: int) -> None:
        newest = run.mirror.find_newest()
        assert newest is not None
        to = run.directory / f"copy-{number}"
        _restore_state(run.mirror, newest, to)
        self.memory = ReplayMemory.open_saved(to / "shared" / "replay")


def test_what_was_sent_to_another_place_while_the_mirror_was_away_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, place = MirroredRun(tmp_path), tmp_path / "mirror"
    run.store(4)
    assert run.mirroring.write_state()
    run.store(4)
    send_files = run.mirroring._send_files

    def send_files_elsewhere() -> dict[str, str]:
        place.rename(tmp_path / "away")
        return send_files()

    with monkeypatch.context() as patch:
        patch.setattr(run.mirroring, "_send_files", send_files_elsewhere)
        with pytest.raises(MirrorAwayError, match="is its disk mounted"):
            run.mirroring.write_state()
    assert list((place / "objects").iterdir()), "the rows went there"
    shutil.rmtree(place)
    (tmp_path / "away").rename(place)
    assert run.mirroring.write_state()
    stored = run.block.mirrored
    assert stored == run.memory.committed
    memory = run.vanish()
    assert memory.committed == stored
    check_linked(memory)


class Unmounted:
    """The disk of a mirror, below which is another directory at the same place."""

    def __init__(self, directory: Path) -> None:
        self._place, self._disk, self._below = directory / "mirror", directory / "disk", directory / "below"

    def unmount(self) -> None:
        self._place.rename(self._disk)
        if self._below.exists():
            self._below.rename(self._place)

    def mount(self) -> None:
        self._place.rename(self._below)
        self._disk.rename(self._place)


def test_a_run_that_was_resumed_without_the_disk_of_its_mirror_goes_on_there_when_the_disk_is_back(
    tmp_path: Path,
) -> None:
    run, disk = MirroredRun(tmp_path), Unmounted(tmp_path)
    run.store(4)
    assert run.mirroring.write_state()
    for _ in range(2):
        disk.unmount()
        run.begin_again()
        run.store(4)
        assert run.mirroring.write_state(), "a mirror begins where the disk should be"
        disk.mount()
        run.store(4)
        with pytest.raises(MirrorAwayError, match="found only earlier ones"):
            run.mirroring.write_state()
        assert run.mirroring.write_state()
        assert run.block.epoch == run.mirror.epoch
        assert run.block.mirrored == run.memory.committed
    # Also in one life, each place shows whether it was the last one.
    disk.unmount()
    with pytest.raises(MirrorAwayError, match="found only earlier ones"):
        run.mirroring.write_state()
    disk.mount()
    run.store(4)
    with suppress(MirrorAwayError):
        run.mirroring.write_state()
    assert run.mirroring.write_state()
    memory = run.vanish()
    assert memory.committed == run.block.mirrored
    check_linked(memory)
    with pytest.raises(TakenOverError):
        run.mirroring.write_state()


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("comes_later", [True, False])
def test_of_two_learners_one_of_which_was_without_the_disk_only_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_state: bool, comes_later: bool
) -> None:
    times = itertools.count(time.time_ns(), 1_000_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(times))  # Epochs show who came first.
    run, disk = MirroredRun(tmp_path), Unmounted(tmp_path)
    run.store(4)
    assert run.mirroring.write_state()

    def take_over() -> tuple[Mirror, MirroredState]:
        other, newest = Mirror(run.url), run.mirror.find_newest()
        assert newest is not None
        other.claim(RUN_ID, Past(newest.epoch), keep_nothing)
        if has_state:
            other.write(dataclasses.replace(newest, epoch=other.epoch))
        return other, newest

    if not comes_later:
        other, newest = take_over()
    disk.unmount()
    run.begin_again()
    assert run.mirroring.write_state()
    if comes_later:
        disk.mount()
        other, newest = take_over()
        disk.unmount()
    disk.mount()
    run.store(4)
    try:
        with suppress(MirrorAwayError):
            run.mirroring.write_state()
        run.mirroring.write_state()
    except TakenOverError:
        assert comes_later or has_state, "it began later, and the other one has written nothing"
        other.write(dataclasses.replace(newest, epoch=other.epoch))
    else:
        assert not comes_later
        assert not has_state, "the rows of the other one would be lost"
        with pytest.raises(TakenOverError):
            other.write(dataclasses.replace(newest, epoch=other.epoch))


def test_a_state_that_is_written_while_the_disk_of_the_mirror_comes_back_is_not_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, disk = MirroredRun(tmp_path), Unmounted(tmp_path)
    run.store(4)
    assert run.mirroring.write_state()
    before = sorted((tmp_path / "mirror" / "states").iterdir())
    disk.unmount()
    run.begin_again()
    run.store(4)
    to_bytes = MirroredState.to_bytes

    def mount(state: MirroredState) -> bytes:
        disk.mount()
        return to_bytes(state)

    with monkeypatch.context() as patch:
        patch.setattr(MirroredState, "to_bytes", mount)
        with pytest.raises(MirrorAwayError, match="found only earlier ones"):
            run.mirroring.write_state()
    assert sorted((tmp_path / "mirror" / "states").iterdir()) == before, "its objects are elsewhere"
    assert run.mirroring.write_state()
    memory = run.vanish()
    assert memory.committed == run.block.mirrored


def test_a_claim_that_cannot_be_made_again_is_tried_with_one_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, disk = MirroredRun(tmp_path), Unmounted(tmp_path)
    run.store(4)
    assert run.mirroring.write_state()
    disk.unmount()
    run.begin_again()
    disk.mount()
    with pytest.raises(MirrorAwayError):
        run.mirroring.write_state()
    with monkeypatch.context() as patch:
        patch.setattr(run.mirror.store, "write", raise_full)
        for _ in range(5):
            with pytest.raises(OSError, match="no space left"):
                run.mirroring.write_state()
    assert run.mirroring.write_state()
    past, _ = read_past(run.run)
    assert len(past.own) == 3
    assert past.newest == run.block.epoch == run.mirror.epoch


def raise_full(*_: object) -> None:
    raise OSError("no space left on device")


class SmallDisk:
    """Objects of a mirror on a disk with so many bytes: what has no room is left in part."""

    def __init__(self, mirror: Mirror, directory: Path) -> None:
        self._send, self._objects, self.room = mirror._send, directory / "mirror" / "objects", 0

    def used(self) -> int:
        return sum(path.stat().st_size for path in self._objects.iterdir())

    def send(self, source: Source, name: str) -> int:
        sent = self._send(source, name)
        if (excess := self.used() - self.room) > 0:
            os.truncate(self._objects / name, max(0, sent - excess))
            raise OSError("no space left on device")
        return sent


def test_a_mirror_whose_disk_was_full_catches_up_as_soon_as_there_is_room_for_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MirroredRun(tmp_path)
    disk = SmallDisk(run.mirror, tmp_path)

    def checkpoint(opt_steps: int) -> None:
        shutil.rmtree(run.run / "checkpoints" / str(opt_steps - 1))
        run.checkpoint(opt_steps)
        (run.run / "checkpoints" / str(opt_steps) / "agent").write_bytes(os.urandom(60_000))

    for opt_steps in range(1, 4):
        checkpoint(opt_steps)
        run.store(4)
        assert run.mirroring.write_state()
    used = disk.used()
    monkeypatch.setattr(run.mirror, "_send", disk.send)
    disk.room = used + 50_000
    for opt_steps in range(4, 10):
        checkpoint(opt_steps)
        run.store(4)
        with pytest.raises(OSError, match="no space left"):
            run.mirroring.write_state()
        assert disk.used() == used, "the part of a checkpoint is removed"
    disk.room = used + 70_000  # A checkpoint has room, and no rows besides.
    with monkeypatch.context() as patch:
        patch.setattr(run.mirroring, "_send_rows", raise_full)
        for opt_steps in range(10, 16):
            checkpoint(opt_steps)
            with pytest.raises(OSError, match="no space left"):
                run.mirroring.write_state()
    for opt_steps in range(16, 18):  # The first try may find the room taken by the last one's checkpoint.
        checkpoint(opt_steps)
        with suppress(OSError):
            run.mirroring.write_state()
    assert run.block.mirrored == run.memory.committed
    memory = run.vanish()
    assert memory.committed == run.block.mirrored
    check_linked(memory)


def test_a_try_after_one_that_failed_sends_what_is_missing_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MirroredRun(tmp_path)
    (run.run / "checkpoints" / "0" / "agent").write_bytes(os.urandom(60_000))
    run.store(4)
    with monkeypatch.context() as patch:
        patch.setattr(run.mirror.store, "write", raise_full)
        for _ in range(3):
            with pytest.raises(OSError, match="no space left"):
                run.mirroring.write_state()
    sent = run.mirror.store.sent_bytes
    assert run.mirroring.write_state()
    assert run.mirror.store.sent_bytes < sent + 60_000, "checkpoint and rows were there"
    assert run.vanish().committed == run.block.mirrored


def test_an_epoch_that_the_run_cannot_keep_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, disk = MirroredRun(tmp_path), Unmounted(tmp_path)
    run.store(4)
    assert run.mirroring.write_state()
    disk.unmount()
    run.begin_again()
    assert run.mirroring.write_state()
    below = run.mirror.epoch
    disk.mount()
    with pytest.raises(MirrorAwayError, match="found only earlier ones"):
        run.mirroring.write_state()
    with monkeypatch.context() as patch:
        patch.setattr(mirroring_module, "keep_past", raise_full)
        with pytest.raises(OSError, match="no space left"):
            run.mirroring.write_state()
    assert run.mirroring.write_state()
    assert run.mirror.epoch > below, "otherwise both places would look like the one where the learner last wrote"
    assert read_past(run.run)[0].newest == run.mirror.epoch


def test_the_only_whole_state_stays_until_a_newer_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = MirroredRun(tmp_path)
    run.store(4)
    assert run.mirroring.write_state()
    for _ in range(2):  # Two lives are killed, each while it writes its first state.
        run.begin_again()
        (tmp_path / "mirror" / "states" / f"{run.mirror.epoch:020d}-{1:012d}").write_bytes(b"\x28\xb5")
    run.begin_again()
    run.store(4)
    with monkeypatch.context() as patch:
        patch.setattr(run.mirroring, "_send_rows", raise_full)
        for _ in range(2):
            with pytest.raises(OSError, match="no space left"):
                run.mirroring.write_state()
    assert run.mirror.find_newest() is not None
    assert run.mirroring.write_state()
    assert len(list((tmp_path / "mirror" / "states").iterdir())) == 2
    assert run.vanish().committed == run.block.mirrored


@pytest.mark.parametrize("has_others", [True, False])
def test_a_learner_whose_own_claim_is_not_whole_claims_the_mirror_again(tmp_path: Path, has_others: bool) -> None:
    run = MirroredRun(tmp_path)
    run.store(4)
    assert run.mirroring.write_state()
    run.begin_again()
    torn = run.mirror.epoch
    for claim in (tmp_path / "mirror" / "claims").iterdir():
        if int(claim.name) == torn:
            claim.write_bytes(b"")
        elif not has_others:
            claim.unlink()
    run.store(4)
    with pytest.raises(MirrorAwayError):
        run.mirroring.write_state()
    assert run.mirroring.write_state()
    assert run.mirror.epoch > torn
    assert run.vanish().committed == run.block.mirrored


def test_objects_that_a_state_names_and_that_were_sent_to_another_place_are_sent_again(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    (run.run / "checkpoints" / "0" / "agent").write_bytes(os.urandom(60_000))
    run.store(4)
    assert run.mirroring.write_state()
    for path in (tmp_path / "mirror" / "objects").iterdir():
        path.unlink()
    run.begin_again()
    assert not run.block.mirrored
    assert run.mirroring.write_state()
    assert run.vanish().committed == run.block.mirrored
