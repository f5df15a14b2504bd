"""Mirrors of runs: whole states, objects under their hashes, and one owner at a time."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from common.errors import RunDirectoryError, TakenOverError
from learner.replay.recovery import Watermark
from learner.storage.mirror import INLINE_BYTES, Mirror, Past, keep_past, read_past
from learner.storage.mirror_store import ANSWER_SECONDS, MirrorStore
from learner.storage.mirrored_state import MirroredState
from tests.learner.storage.mirrored import keep_nothing

RUN = "0123456789abcdef"


def state_of(mirror: Mirror, at: float, run_id: str = RUN) -> MirroredState:
    """A state with one object, which holds ``at``."""
    name = mirror.put(io.BytesIO(str(at).encode()))
    return MirroredState(run_id, mirror.epoch, at, {"file": name}, {}, Watermark(0, 0, 0, 0, []))


def url_of(directory: Path) -> str:
    return f"file://{directory}/mirror"


def owner(directory: Path) -> Mirror:
    """A mirror that was claimed by a learner whose directory knows of all that was claimed before."""
    mirror = Mirror(url_of(directory))
    mirror.claim(RUN, Past(2**62), keep_nothing)
    return mirror


def test_the_newest_state_is_the_one_that_was_written_last(tmp_path: Path) -> None:
    mirror = owner(tmp_path)
    assert mirror.find_newest() is None
    for at in range(5):
        mirror.write(state_of(mirror, at))
    found = Mirror(url_of(tmp_path)).find_newest()
    assert found is not None
    assert found.at == 4
    assert mirror.get_bytes(found.files["file"]) == b"4"


def test_a_state_that_was_not_written_to_its_end_is_passed_over(tmp_path: Path) -> None:
    mirror = owner(tmp_path)
    for at in range(2):
        mirror.write(state_of(mirror, at))
    newest = max((tmp_path / "mirror" / "states").iterdir())
    content = newest.read_bytes()
    for end in range(len(content)):
        newest.write_bytes(content[:end])
        found = mirror.find_newest()
        assert found is not None
        assert found.at == 0
        assert mirror.get_bytes(found.files["file"]) == b"0"


def test_objects_that_neither_of_the_newest_two_states_needs_are_removed(tmp_path: Path) -> None:
    mirror = owner(tmp_path)
    for at in range(9):
        mirror.write(state_of(mirror, at))
    counts = {kind: len(list((tmp_path / "mirror" / kind).iterdir())) for kind in ("states", "objects", "claims")}
    assert counts == {"states": 2, "objects": 2, "claims": 1}
    later = owner(tmp_path)
    later.write(state_of(later, 9))
    later.write(state_of(later, 10))
    counts = {kind: len(list((tmp_path / "mirror" / kind).iterdir())) for kind in ("states", "objects", "claims")}
    assert counts == {"states": 2, "objects": 2, "claims": 1}


def test_an_object_that_a_disk_has_damaged_is_refused(tmp_path: Path) -> None:
    mirror = owner(tmp_path)
    name = mirror.put(io.BytesIO(bytes(1000)))
    other = mirror.put(io.BytesIO(bytes(1001)))
    (tmp_path / "mirror" / "objects" / other).rename(tmp_path / "mirror" / "objects" / name)
    with pytest.raises(OSError, match="are not those that were written"):
        mirror.get_bytes(name)
    with pytest.raises(FileNotFoundError):
        mirror.get_bytes(other)


def test_an_object_that_a_killed_learner_has_left_in_part_is_sent_again(tmp_path: Path) -> None:
    first = owner(tmp_path)
    first.write(state_of(first, 1))
    part = tmp_path / "mirror" / "objects" / first.put(io.BytesIO(b"2"))
    part.write_bytes(part.read_bytes()[:-3])
    second = owner(tmp_path)
    second.write(state_of(second, 2))
    found = second.find_newest()
    assert found is not None
    assert second.get_bytes(found.files["file"]) == b"2"


@pytest.mark.parametrize("size", [0, 100, INLINE_BYTES, 20 * INLINE_BYTES])
def test_a_file_comes_back_as_it_was(tmp_path: Path, size: int) -> None:
    mirror, content, target = owner(tmp_path), os.urandom(size), io.BytesIO()
    name = mirror.put_file(io.BytesIO(content))
    mirror.get(name, target)
    assert target.getvalue() == content
    assert name.startswith("inline:") == (size < INLINE_BYTES)


class Changing(io.BytesIO):
    """A file to which another process writes before it is read again."""

    def seek(self, *place: int) -> int:
        self.getbuffer()[0] ^= 1
        return super().seek(*place)


def test_a_file_that_others_write_to_is_sent_as_it_was_at_one_moment(tmp_path: Path) -> None:
    mirror, content, target = owner(tmp_path), os.urandom(20 * INLINE_BYTES), io.BytesIO()
    mirror.get(mirror.put_file(Changing(content)), target)
    assert target.getvalue() == content


def test_a_large_file_that_changes_while_it_is_sent_is_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.storage.mirror.MEMORY_BYTES", 1000)
    mirror = owner(tmp_path)
    with pytest.raises(OSError, match="it was changed while it was sent"):
        mirror.put_file(Changing(os.urandom(2000)))
    mirror.write(state_of(mirror, 1))
    assert len(list((tmp_path / "mirror" / "objects").iterdir())) == 1, "what was sent is removed"


def test_a_mirror_of_another_run_is_not_written_over(tmp_path: Path) -> None:
    mirror = owner(tmp_path)
    mirror.write(state_of(mirror, 1))
    with pytest.raises(RunDirectoryError, match=f"expected an empty place .* found that of run {RUN}"):
        Mirror(url_of(tmp_path)).claim("fedcba9876543210", Past(), keep_nothing)
    mirror.require_owner()


def test_a_directory_that_others_have_gone_on_from_does_not_disturb_them(tmp_path: Path) -> None:
    first = owner(tmp_path)
    first.write(state_of(first, 1))
    second = owner(tmp_path)
    second.write(state_of(second, 2))
    with pytest.raises(TakenOverError, match="another learner has gone on with the run since"):
        Mirror(url_of(tmp_path)).claim(RUN, Past(first.epoch), keep_nothing)
    second.write(state_of(second, 3))


def test_a_learner_whose_successor_wrote_nothing_may_come_back(tmp_path: Path) -> None:
    first = owner(tmp_path)
    first.write(state_of(first, 1))
    owner(tmp_path)
    again = Mirror(url_of(tmp_path))
    found = again.claim(RUN, Past(first.epoch), keep_nothing)
    assert found is not None
    assert found.at == 1


def test_the_former_owner_writes_no_more(tmp_path: Path) -> None:
    first = owner(tmp_path)
    first.write(state_of(first, 1))
    second = owner(tmp_path)
    with pytest.raises(TakenOverError, match=r"another learner has taken over this run: .*host"):
        first.write(state_of(first, 2))
    found = second.find_newest()
    assert found is not None
    assert found.at == 1
    second.write(state_of(second, 3))


def test_a_claim_that_is_not_whole_counts_for_nobody(tmp_path: Path) -> None:
    mirror = owner(tmp_path)
    mirror.write(state_of(mirror, 1))
    claim = tmp_path / "mirror" / "claims" / f"{mirror.epoch + 1:020d}"
    for content in ("", '{"host": "b'):
        claim.write_text(content)
        mirror.write(state_of(mirror, 2))
    claim.write_text('{"host": "b"}')
    with pytest.raises(TakenOverError, match="another learner has taken over this run"):
        mirror.write(state_of(mirror, 3))


class FullStore(MirrorStore):
    """A full disk: the file of a claim is made, and nothing can be written to it."""

    def write(self, directory: str, name: str, content: bytes) -> None:
        super().write(directory, name, content[: len(content) // 2])
        raise OSError("no space left on device")


def test_a_learner_that_cannot_write_its_claim_leaves_none(tmp_path: Path) -> None:
    mirror = owner(tmp_path)
    mirror.write(state_of(mirror, 1))
    other = Mirror(url_of(tmp_path))
    other.store = FullStore(other.url)
    with pytest.raises(OSError, match="no space left on device"):
        other.claim(RUN, Past(2**62), keep_nothing)
    assert [path.name for path in (tmp_path / "mirror" / "claims").iterdir()] == [f"{mirror.epoch:020d}"]
    mirror.write(state_of(mirror, 2))


class InterruptedStore(MirrorStore):
    """A place where something else happens before the n-th call that reaches it."""

    def __init__(self, url: str, n: int, happen: Callable[[], object]) -> None:
        super().__init__(url)
        self.left, self._happen = n, happen

    def _reaching(self, seconds: float = ANSWER_SECONDS) -> Any:
        self.left -= 1
        if self.left == 0:
            self._happen()
        return super()._reaching(seconds)


def interrupted(tmp_path: Path, n: int, happen: Callable[[], object]) -> tuple[Mirror, InterruptedStore]:
    mirror = Mirror(url_of(tmp_path))
    mirror.store = store = InterruptedStore(mirror.url, n, happen)
    return mirror, store


@pytest.mark.parametrize("n", range(1, 30))
def test_wherever_another_learner_takes_over_it_goes_on_from_what_the_former_one_may_acknowledge(
    tmp_path: Path, n: int
) -> None:
    successors: list[tuple[Mirror, MirroredState | None]] = []

    def take_over() -> None:
        mirror = Mirror(url_of(tmp_path))
        successors.append((mirror, mirror.claim(RUN, Past(2**62), keep_nothing)))

    former, store = interrupted(tmp_path, 10**9, take_over)
    former.claim(RUN, Past(), keep_nothing)
    former.write(state_of(former, 1))
    store.left, acknowledged = n, 1.0
    for at in range(2, 9):
        try:
            former.write(state_of(former, at))
        except TakenOverError:
            break
        acknowledged = at
    assert acknowledged < 8
    mirror, found = successors[0]
    assert found is not None
    assert found.at >= acknowledged
    assert mirror.get_bytes(found.files["file"]) == str(int(found.at)).encode()
    mirror.write(state_of(mirror, 100))
    newest = Mirror(url_of(tmp_path)).find_newest()
    assert newest is not None
    assert newest.at == 100


@pytest.mark.parametrize("n", range(1, 16))
def test_wherever_two_learners_begin_at_once_one_of_them_stays(tmp_path: Path, n: int) -> None:
    first = owner(tmp_path)
    first.write(state_of(first, 1))
    ends: list[str] = []

    def write(mirror: Mirror, name: str) -> None:
        try:
            mirror.claim(RUN, Past(first.epoch), keep_nothing)
            mirror.write(state_of(mirror, 2))
            ends.append(name)
        except TakenOverError:
            ends.append("ended")

    rival = Mirror(url_of(tmp_path))
    write(interrupted(tmp_path, n, lambda: write(rival, "rival"))[0], "interrupted")
    assert len(ends) == 2
    assert "rival" in ends or "interrupted" in ends
    newest = rival.find_newest()
    assert newest is not None
    assert newest.at == 2


def test_a_claim_whose_writing_hung_is_made_again_with_the_same_epoch() -> None:
    hangs, kept = [True], list[Past]()

    class Hanging(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
        """A driver whose first write hangs: the alarm comes."""

        def pipe_file(self, path: str, value: bytes, **options: Any) -> Any:
            if hangs:
                hangs.clear()
                signal.raise_signal(signal.SIGALRM)
            return super().pipe_file(path, value, **options)

    fsspec.register_implementation("hanging", Hanging)
    mirror = Mirror("hanging://test-mirror/claims")
    with pytest.raises(OSError, match="expected an answer within 30 s, found none"):
        mirror.claim(RUN, Past(), kept.append)
    assert not mirror.store.has_hung, "what the driver may still write is what the next try writes"
    mirror.claim(RUN, Past(), kept.append)
    mirror.require_owner()
    assert [past.own for past in kept] == [(mirror.epoch,)]


def test_a_store_in_memory_is_a_mirror_too() -> None:
    mirror = Mirror("memory://test-mirror/run")
    mirror.claim(RUN, Past(), keep_nothing)
    mirror.write(state_of(mirror, 1))
    mirror.write(state_of(mirror, 2))
    found = mirror.find_newest()
    assert found is not None
    assert found.at == 2


def test_an_epoch_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert read_past(tmp_path) == (Past(), False)
    (tmp_path / "mirror.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"mirror.json: expected the epoch of the run's mirror"):
        read_past(tmp_path)


def test_the_epochs_that_a_directory_knows_of_are_its_own_and_those_before_it_was_restored(tmp_path: Path) -> None:
    past = Past(10)
    for epoch in range(20, 1100):
        past = past.add(epoch)
    keep_past(tmp_path, past)
    assert read_past(tmp_path) == (past, False)
    assert [epoch for epoch in (9, 10, 11, 99, 100, 1099, 1100) if past.has(epoch)] == [9, 10, 100, 1099]
    keep_past(tmp_path, Past(10), restored=True)
    assert read_past(tmp_path) == (Past(10), True)
    (tmp_path / "mirror.json").write_text('{"epoch": 30}')  # As long as a run had one epoch only.
    assert read_past(tmp_path) == (Past(30), False)
