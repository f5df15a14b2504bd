"""How the ranks of one start find each other in torchrun's store, which still has the keys of earlier starts.

torchrun keeps its store when it starts the ranks again, and torch would find the addresses of processes that are gone.
The counts of restarts do not tell starts apart either: on two hosts they may differ. So rank 0 makes up a prefix for
the keys of each start, and gives it only to the processes that run now:

    rank k   writes a new random name, and waits for an answer to this name
    rank 0   reads the names, answers each new name with the prefix, until all ranks have confirmed the prefix
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # torch.distributed has them untyped
from torch.distributed import DistError

from common.errors import ConfigError, RankLostError
from common.process.clocks import Deadline
from learner.ranks.place import Place

_LOOK: Final = timedelta(seconds=0.25)
"""Rank 0 looks this often whether a rank has written another name."""


def open_store(place: Place, seconds: float, environment: Mapping[str, str]) -> Store:
    """The part of torchrun's store that belongs to this start of the ranks.

    Args:
        place: of this process.
        seconds: longest wait for the other ranks.
        environment: torchrun's variables.

    Raises:
        RankLostError: a rank did not come in time, or the store cannot be reached.
        ConfigError: torchrun has not said where its store is.
    """
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        raise ConfigError(f"MASTER_ADDR, MASTER_PORT: expected a host and a port, found '{host}' and '{port}'")
    serves = place.leads and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            host,
            int(port),
            place.n_ranks,
            serves,
            timedelta(seconds=seconds),
            wait_for_workers=False,
        )
        return PrefixStore(meet(store, place, seconds), store)
    except DistError as error:
        raise RankLostError(
            f"rank {place.rank} of {place.n_ranks}: not all ranks have come within {seconds:g} s: {error}"
        ) from error


def meet(store: Store, place: Place, seconds: float) -> str:
    """Agree with the other ranks of this start on a prefix for their keys.

    Raises:
        DistError: a rank did not come in time.
    """
    if not place.leads:
        name = secrets.token_hex(8)
        store.set(f"crossborder/rank-{place.rank}", name)
        prefix = _read(store, f"crossborder/answer-{name}", timedelta(seconds=seconds))
        store.set(f"crossborder/{prefix}/rank-{place.rank}", "")
        return prefix
    prefix, answered, deadline = secrets.token_hex(8), set[str](), Deadline(seconds)
    others = range(1, place.n_ranks)
    while True:
        for rank in others:
            name = _read(store, f"crossborder/rank-{rank}", timedelta(seconds=deadline.remaining() + 1.0))
            if name not in answered:  # It may be the name of a process that is gone: then another name follows.
                store.set(f"crossborder/answer-{name}", prefix)
                answered.add(name)
        try:
            store.wait([f"crossborder/{prefix}/rank-{rank}" for rank in others], _LOOK)
        except DistError:
            if deadline.passed():
                raise
        else:
            for rank in others:  # Then the next start mostly finds no old names.
                store.delete_key(f"crossborder/rank-{rank}")
            return prefix


def _read(store: Store, key: str, timeout: timedelta) -> str:
    store.wait([key], timeout)
    return store.get(key).decode()
