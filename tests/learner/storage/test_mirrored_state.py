"""A state of a mirrored run, as bytes and back."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from learner.replay.recovery import Watermark
from learner.storage import mirrored_state
from learner.storage.mirrored_state import INLINE, MirroredState, Segment

STATE = MirroredState(
    run_id="0123456789abcdef",
    epoch=3,
    at=1.5,
    files={"run.json": f"{INLINE}AAAA", "best/policy": "f1"},
    layout={"capacity": 64},
    watermark=Watermark(oldest=0, committed=10, steps=8, batches=2, cursors=[]),
    segments=[Segment(start=0, end=10, steps=8, steps_end=8, checksum=7, level=1, name="s1")],
)


def test_a_state_comes_back_as_it_was() -> None:
    assert MirroredState.from_bytes(STATE.to_bytes()) == STATE


def test_a_state_needs_the_objects_of_its_large_files_and_of_its_rows() -> None:
    assert STATE.objects == {"f1", "s1"}
    assert dataclasses.replace(STATE, segments=[]).objects == {"f1"}


def test_a_state_that_is_not_whole_is_refused() -> None:
    content = STATE.to_bytes()
    for end in range(len(content)):
        with pytest.raises((ValueError, LookupError, TypeError)):
            MirroredState.from_bytes(content[:end])


def test_a_damaged_state_is_refused_whatever_size_it_names() -> None:
    content, refused = bytearray(STATE.to_bytes()), 0
    for place, bit in itertools.product(range(len(content)), range(8)):
        content[place] ^= 1 << bit
        try:
            assert MirroredState.from_bytes(bytes(content)) == STATE, "the bit says nothing"
        except (ValueError, LookupError, TypeError):
            refused += 1
        content[place] ^= 1 << bit
    assert refused > 7 * len(content)


def test_a_state_of_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrored_state, "FORMAT", 2)
    content = STATE.to_bytes()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="another release wrote it"):
        MirroredState.from_bytes(content)
