from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.ingest.descriptors import (
    LOOK_SECONDS,
    MAX_LIMIT,
    RESERVED,
    DescriptorWatch,
    connections_within,
    count_descriptors,
    raise_descriptor_limit,
)
from tests.common.process.test_clocks import Clock


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit; the soft one is as it was at the end."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one_within_bounds(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    wanted = MAX_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_LIMIT)
    assert raise_descriptor_limit() == wanted
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)


def test_open_descriptors_are_counted(tmp_path: Path) -> None:
    before = count_descriptors()
    with (tmp_path / "file").open("w"):
        assert count_descriptors() == before + 1


def test_connections_leave_descriptors_for_files_and_scrapers(caplog: pytest.LogCaptureFixture) -> None:
    taken = count_descriptors() + RESERVED
    assert connections_within(100, taken + 100) == 100
    assert caplog.text == ""
    assert connections_within(100, taken + 40) == 40
    assert "only 40 of 100 connections fit" in caplog.text


def test_the_log_warns_once_when_most_descriptors_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    clock, found = Clock(), iter([10, 80, 90, 10, 85])
    watch = DescriptorWatch(100, lambda: next(found), clock)
    for _ in range(5):
        watch.tick()
        watch.tick()
        clock.now += LOOK_SECONDS
    assert [record.args for record in caplog.records] == [(80, 100), (85, 100)]
