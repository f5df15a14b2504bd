"""What a buffer remembers of the items it gave last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from learner.loop.resident import ResidentReplay
from tests.learner.replay.test_excluded import filled, replays


@pytest.mark.parametrize("kind", range(3))
def test_the_indices_of_the_last_batch_are_those_of_its_items(tmp_path: Path, kind: int) -> None:
    replay = replays(filled(tmp_path))[kind]
    assert len(replay.last_drawn) == 0
    for size in (4, 4, 4, 7):  # Several batches of four are gathered at once.
        batch = replay.batch(size)
        assert replay.last_drawn.tolist() == batch["n"].tolist()
    assert replay.sampled == 19


def test_those_of_a_batch_on_a_device_too(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    replay = replays(memory)[0]
    batch = ResidentReplay(replay, memory, torch.device("cpu")).tensors(5)
    assert replay.last_drawn.tolist() == batch["n"].tolist()


def test_of_a_batch_gathered_before_the_run_was_resumed_they_are_not_known(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    before, after = replays(memory)[0], replays(memory)[0]
    before.batch(4)
    after.restore(before.state())
    np.testing.assert_array_equal(after.batch(4)["n"], before.batch(4)["n"])
    assert len(after.last_drawn) == 0
