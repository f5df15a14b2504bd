"""Ingest records the storing of traced batches, and has the trainer follow one of them at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from learner.shared.followed_batch import BatchTraces, FollowedBatch
from tests.collector import collecting

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def look(followed: FollowedBatch) -> tuple[int, int, int, str]:
    return followed.actor, followed.first, followed.end, followed.trace_parent


def test_the_first_batch_is_followed_until_its_actor_has_heard_of_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with collecting(monkeypatch) as collector:
        trainers = FollowedBatch.open(tmp_path, create=True)
        traces = BatchTraces(tmp_path)
        traces.note_stored(3, PARENT, range(100, 164), 0.0)
        traces.note_stored(4, OTHER, range(164, 228), 0.0)
        assert look(trainers) == (3, 100, 164, PARENT)
        assert not traces.take_learnt(3, 50), "no model has learnt from it"
        trainers.note_learnt(trainers.number, 50)
        assert not traces.take_learnt(3, 40), "the newest model that is told is an older one"
        assert not traces.take_learnt(4, 50), "it is the batch of another actor"
        assert traces.take_learnt(3, 50) == PARENT
        assert not traces.take_learnt(3, 60), "its actor is told once"
        traces.note_stored(4, OTHER, range(228, 292), 0.0)
        assert look(trainers) == (4, 228, 292, OTHER)
        assert collector.wait_for("store")["store"].attributes == {"rows": 64}


def test_a_text_that_is_no_trace_parent_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with collecting(monkeypatch):
        trainers = FollowedBatch.open(tmp_path, create=True)
        BatchTraces(tmp_path).note_stored(3, "x" * 1000, range(100, 164), 0.0)
        assert not trainers.number


def test_without_a_collector_no_file_is_needed(tmp_path: Path) -> None:
    traces = BatchTraces(tmp_path)
    traces.note_stored(3, PARENT, range(100, 164), 0.0)
    assert not traces.take_learnt(3, 50)
