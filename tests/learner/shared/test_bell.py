"""Doorbells between processes."""

from __future__ import annotations

import fcntl
import os
import resource

import pytest

from learner.shared.bell import Bell
from tests.conftest import PATIENCE


def test_a_bell_is_heard_once_and_ringing_it_often_never_blocks() -> None:
    bell = Bell.create()
    assert not bell.wait(0)
    for _ in range(100_000):
        bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)
    bell.close()


def test_a_bell_may_have_any_descriptor() -> None:
    made, high = Bell.create(), 1024  # select(2) takes lower ones only.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, high + 2), hard))
    bell = Bell(fcntl.fcntl(made.read_fd, fcntl.F_DUPFD_CLOEXEC, high), os.dup(made.write_fd))
    made.close()
    assert bell.read_fd >= high
    assert not bell.wait(0.001)
    bell.ring()
    assert bell.wait(PATIENCE)
    assert not bell.wait(0)
    bell.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_bell_nobody_listens_to_any_more_does_not_stop_the_ringer() -> None:
    bell = Bell.create()
    os.close(bell.read_fd)
    with pytest.raises(BrokenPipeError):
        os.write(bell.write_fd, b"?")
    bell.ring()  # What os.write raised a line above would fail the test.
    os.close(bell.write_fd)
