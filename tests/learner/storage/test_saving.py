"""Readers of policies and checkpoints, while a learner saves others in their place."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from common.process.clocks import Deadline
from crossborder.inspecting.backup import _copy_directory, _copy_newest_state
from learner.shared.durable import old_of
from learner.storage.checkpoint import load_params, read_best
from learner.storage.origin import Origin
from learner.storage.rundir import find_work, list_states
from learner.storage.training_state import read_newest_state
from tests.conftest import PATIENCE, wait_for
from tests.learner.storage.saving import Saver, saving

Read = Callable[[Path, Path], set[int]]
"""Reads the run in the first directory, and may copy it to the second; returns the numbers that it has found."""


def read_policy(run: Path, _: Path) -> set[int]:
    params, meta = load_params(run / "best")
    return {*params["number"].tolist(), meta["opt_steps"]}


def read_score(run: Path, _: Path) -> set[int]:
    best = read_best(run)
    assert best is not None
    return {int(best.score), best.opt_steps}


def begin_from_policy(run: Path, _: Path) -> set[int]:
    origin = Origin.at(run)
    return {*origin._agent.tensors["number"].tolist(), origin.meta["opt_steps"]}


def read_state(run: Path, _: Path) -> set[int]:
    state = read_newest_state(run / "checkpoints", "run")
    assert state is not None
    return {*state.tensors["agent.number"].tolist(), state.opt_steps}


def copy_policy(run: Path, to: Path) -> set[int]:
    _copy_directory(run / "best", to)
    return read_policy(to.parent, to)


def copy_state(run: Path, to: Path) -> set[int]:
    _copy_newest_state(run, to / "checkpoints")
    return read_state(to, to)


def find_names(run: Path, _: Path) -> set[int]:
    assert find_work(run) == ["best/", "checkpoints/"]
    return read_score(run, run)


READERS: tuple[Read, ...] = (
    read_policy,
    read_score,
    begin_from_policy,
    read_state,
    copy_policy,
    copy_state,
    find_names,
)


class Interruption:
    """Does something before one of the files of a run is opened."""

    def __init__(self, run: Path, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
        self._run, self._act, self._open, self._left = run, act, io.open, 0
        monkeypatch.setattr(io, "open", self._interrupt)  # By which ``Path`` opens files.

    def at(self, number: int) -> None:
        """Do it before the file of this number, from 1 on, counted from now."""
        self._left = number

    @property
    def has_come(self) -> bool:
        return self._left <= 0

    def _interrupt(self, file: Any, *words: Any, **named: Any) -> Any:
        if self._left and Path(str(file)).is_relative_to(self._run):
            self._left -= 1
            if not self._left:
                self._act()
        return self._open(file, *words, **named)


def rename_halfway(run: Path) -> None:
    """What ``put_in_place`` has done between its two renames."""
    (run / "best").rename(old_of(run / "best"))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("is_halfway", [False, True])
def test_a_reader_finds_one_whole_whenever_the_learner_replaces_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Read, is_halfway: bool
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    saver = Saver(run)
    saver.save()
    interruption = Interruption(run, partial(rename_halfway, run) if is_halfway else saver.save, monkeypatch)
    for number in count(1):
        interruption.at(number)
        assert len(reader(run, tmp_path / f"copy-{number}" / "best")) == 1
        if not interruption.has_come:
            break
        saver.save()
    assert number > 1, "it opens files"


def test_each_reader_finds_one_whole_policy_or_checkpoint_while_the_learner_saves_others(tmp_path: Path) -> None:
    run, numbers = tmp_path / "run", count()
    seen = {read: set[int]() for read in READERS}
    run.mkdir()
    with saving(run):
        wait_for(lambda: list_states(run), "the first policy and the first checkpoint")
        deadline = Deadline(PATIENCE)
        while min(map(len, seen.values())) < 50:
            assert not deadline.passed(), {read.__name__: len(found) for read, found in seen.items()}
            for read, of_it in seen.items():
                found = read(run, tmp_path / f"copy-{next(numbers)}" / "best")
                assert len(found) == 1, f"{read.__name__}: files of two"
                of_it.update(found)
