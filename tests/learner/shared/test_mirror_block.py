"""Words about the mirror of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from learner.shared.mirror_block import MirrorBlock


def test_a_life_begins_with_nothing_mirrored_and_no_epoch(tmp_path: Path) -> None:
    written = MirrorBlock.open(tmp_path)
    written.epoch, written.mirrored, written.failures = 2**52, 10, 3
    MirrorBlock.open(tmp_path).start(7, 1.5)
    read = MirrorBlock.open(tmp_path, writable=False)
    assert (read.epoch, read.mirrored, read.mirrored_at, read.failures) == (0, 7, 1.5, 0)
    with pytest.raises(TypeError, match="read-only"):
        read.epoch = 1
