"""Two real processes, connected by gloo."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from common.agents.dqn import DQN
from common.agents.machinery.update import Update
from common.errors import ConfigError, RankLostError
from learner.ranks.group import Group, meet, open_store
from learner.ranks.place import Place
from tests.conftest import PATIENCE, free_port
from tests.learner.ranks.pair import SPEC, Batches

Pair = Sequence[dict[str, Any]]


def test_all_ranks_hear_the_numbers_of_each_rank(pair: Pair) -> None:
    assert [found["exchange"] for found in pair] == [[[0.0, 0.5], [1.0, 0.5]]] * 2


def test_all_have_the_bytes_of_rank_0(pair: Pair) -> None:
    assert [found["broadcast"] for found in pair] == ["of 0"] * 2


def test_all_have_the_bytes_of_each_rank(pair: Pair) -> None:
    assert [found["gather"] for found in pair] == [["host-0:1", "host-1:1"]] * 2


def test_a_mean_over_ranks_is_the_same_on_all_and_a_float_also_of_integers(pair: Pair) -> None:
    assert [found["average"] for found in pair] == [[0.5, 4.0]] * 2


def test_a_rank_that_closes_its_connections_is_missed_at_once(pair: Pair) -> None:
    assert pair[0]["lost"].startswith("RankLostError: rank 0 of 2: another rank has ended or does not answer")


def test_a_group_that_is_closed_leaves_no_threads_behind(pair: Pair) -> None:
    assert [found["threads"] for found in pair] == [[], []]


def test_a_device_with_a_number_is_refused_since_each_rank_takes_one_of_its_own() -> None:
    with pytest.raises(ConfigError, match="expected cuda, since each rank uses the GPU of its local number"):
        Group(Place(n_ranks=2, n_local=2), 1.0, "cuda:1")


def test_a_host_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="expected cuda with a GPU on this host, found none"):
        Group(Place(n_ranks=2, n_local=2), 1.0, "cuda")


def test_a_group_that_cannot_be_made_leaves_no_connections_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("the other rank is gone")

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setattr(dist, "new_group", refuse)
    with pytest.raises(RankLostError, match="the other rank is gone"):
        Group(Place(), 1.0, "cpu")
    assert not dist.is_initialized()


def test_an_agent_has_forgotten_its_captured_updates_when_the_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU they would be CUDA graphs with operations of nccl, which waits for their end."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    agent = DQN(SPEC, seed=0, units=[8], batch_size=4)
    updates = [update for _, update in agent._find(Update)]
    kept, close = list[bool](), dist.destroy_process_group

    def has_captured() -> bool:
        return any(update._replays for update in updates)

    def note_and_close() -> None:
        kept.append(has_captured())
        close()

    monkeypatch.setattr(dist, "destroy_process_group", note_and_close)
    with Group(Place(), PATIENCE, "cpu") as group:
        group.begin_averaging(agent)
        for _ in range(2):
            agent.opt(Batches(slice(None)))
        assert has_captured()
    assert kept == [False]


def test_ranks_agree_only_if_all_say_so(pair: Pair) -> None:
    assert [found["agreed"] for found in pair] == [[True, False, False]] * 2


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
