"""Doorbells between processes."""

from __future__ import annotations

import os

import pytest

from learner.shared.bell import Bell


def test_a_bell_is_heard_once_and_ringing_it_often_never_blocks() -> None:
    bell = Bell.create()
    assert not bell.wait(0)
    for _ in range(100_000):
        bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)
    bell.close()


def test_a_bell_nobody_listens_to_any_more_does_not_stop_the_ringer() -> None:
    bell = Bell.create()
    os.close(bell.read_fd)
    with pytest.raises(BrokenPipeError):
        os.write(bell.write_fd, b"?")
    bell.ring()  # What os.write raised a line above would fail the test.
    os.close(bell.write_fd)
