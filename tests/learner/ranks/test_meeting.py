from __future__ import annotations

import threading
from functools import partial

import pytest
from torch._C._distributed_c10d import TCPStore

from common.errors import ConfigError
from learner.ranks.meeting import meet, open_store
from learner.ranks.place import Place
from tests.conftest import PATIENCE


def places(n: int) -> list[Place]:
    return [Place(rank=rank, local_rank=rank, n_ranks=n, n_local=n) for rank in range(n)]


def start(port: int, place: Place, found: dict[int, str]) -> threading.Thread:
    def run() -> None:
        store = TCPStore("127.0.0.1", port, 1, False, wait_for_workers=False)
        found[place.rank] = meet(store, place, PATIENCE)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_each_start_has_a_prefix_of_its_own_in_the_same_store() -> None:
    server, prefixes = TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False), set[str]()
    for _ in range(2):
        found: dict[int, str] = {}
        for thread in [start(server.port, place, found) for place in places(3)]:
            thread.join(PATIENCE)
        assert len(found) == 3
        (prefix,) = set(found.values())
        prefixes.add(prefix)
    assert len(prefixes) == 2


def test_the_name_of_a_process_that_is_gone_is_answered_and_the_next_one_too() -> None:
    server = TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    server.set("crossborder/rank-1", "gone")
    found: dict[int, str] = {}
    first, second = places(2)
    leading = start(server.port, first, found)
    server.wait(["crossborder/answer-gone"])
    for thread in (start(server.port, second, found), leading):
        thread.join(PATIENCE)
    assert found[0] == found[1]


def test_a_store_that_nobody_has_named_is_refused() -> None:
    opening = partial(open_store, places(2)[0], 1.0, {"MASTER_ADDR": "host", "MASTER_PORT": "none"})
    with pytest.raises(ConfigError, match="MASTER_ADDR, MASTER_PORT: expected a host and a port"):
        opening()
