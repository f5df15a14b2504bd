"""The rings of links, and what is computed from them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from common.data import Array
from common.shared.mapped import map_file
from learner.replay.links import Links
from tests.learner.replay.memories import LANES, linked_rows

N_SLOTS = 50


def rings(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Links, Array]:
    """Rings that hold the rows 70 to 119 of ``linked_rows``, in chunks of 7 rows, and ``next`` as it is to be."""
    monkeypatch.setattr("learner.replay.links.CHUNK", 7)
    final = np.empty(N_SLOTS, np.bool_)
    links = Links(partial(map_file, create=True), directory, {"final": final}, N_SLOTS)
    index = np.arange(70, 120)
    final[index % N_SLOTS] = linked_rows(70, N_SLOTS)["final"]
    links.previous[:] = LANES
    expected = np.where(index + LANES < 120, LANES, 0)
    return links, expected[np.argsort(index % N_SLOTS)]


def test_next_is_computed_from_previous_whatever_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links, expected = rings(tmp_path, monkeypatch)
    links.next[:] = 9
    links.rebuild(70, 120)
    assert links.next.tolist() == expected.tolist()
    assert links.find_open(70, 120).tolist() == [117, 118, 119]
    assert links.find_open(120, 120).tolist() == []
    assert links.count_steps(70, 120) == (~linked_rows(70, 47)["final"]).sum()
    assert links.count_steps(99, 102) == (~linked_rows(99, 3)["final"]).sum()


def test_links_to_rows_that_do_not_count_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links, _ = rings(tmp_path, monkeypatch)
    links.rebuild(70, 120)
    links.cut(70, 111)
    assert links.find_open(70, 111).tolist() == [108, 109, 110]
    assert links.next[np.arange(70, 108) % N_SLOTS].tolist() == [LANES] * 38


def test_a_batch_that_counts_is_connected_twice_as_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links, expected = rings(tmp_path, monkeypatch)
    links.rebuild(70, 110)
    for _ in range(2):
        links.connect_batch(110, 120)
        assert links.next.tolist() == expected.tolist()


def test_a_process_that_only_reads_has_links_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links, expected = rings(tmp_path, monkeypatch)
    in_file = links.next
    links.use_private_next()
    links.rebuild(70, 120)
    assert links.next.tolist() == expected.tolist()
    assert not in_file.any()
