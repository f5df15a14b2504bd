"""The connections between the ranks of a run, by torch.distributed: gloo between CPUs, nccl between GPUs.

Only tensors travel. A rank that waits for the others waits at most ``server.hung_seconds``; if the process of another
rank ends, its connections break, and all others see that at once.

The ranks of one start find each other in torchrun's store, which still has the keys of earlier starts. torchrun keeps
its store when it starts the ranks again, and torch would find the addresses of processes that are gone. The counts of
restarts do not tell starts apart either: on two hosts they may differ. So rank 0 makes up a prefix for the keys of each
start, and gives it only to the processes that run now:

    rank k   writes a new random name, and waits for an answer to this name
    rank 0   reads the names, answers each new name with the prefix, until all ranks have confirmed the prefix
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # torch.distributed has them untyped
from torch.distributed import DistError

from common.agents.averaging import average_by
from common.agents.network_agent import forget_traces
from common.errors import ConfigError, RankLostError
from common.interfaces import Agent
from common.process.clocks import Deadline
from learner.ranks.place import Place

log = logging.getLogger(__name__)
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


START_SECONDS: Final = 600.0
"""The ranks wait this long for each other at the start, since a rank may have to load a dataset."""
LIFE_SECONDS: Final = 0.25
"""A rank that waits for the others shows a sign of life each time this has passed."""


class Group:
    """The ranks of a run, connected. Use it once, as a context manager.

    All ranks must call the methods in the same order; only ``close`` may be called by one rank alone. In each process
    one thread calls them.

    Args:
        place: of this process.
        seconds: longest wait for another rank, once training has begun.
        device: on which the agent learns.

    Raises:
        RankLostError: the ranks do not find each other.
        ConfigError: torch has been built without the backend.
    """

    def __init__(self, place: Place, seconds: float, device: str) -> None:
        self.place = place
        self._is_open = True
        self._agent: Agent | None = None
        has_gpu = _use_gpu(place, device)
        if not dist.is_available() or not dist.is_gloo_available():
            raise ConfigError("several ranks: expected a torch with torch.distributed and gloo")
        _stay_on_host(place)
        try:
            self._connect(seconds, has_gpu=has_gpu, device=device)
        except BaseException:
            self.close()
            raise

    def _connect(self, seconds: float, *, has_gpu: bool, device: str) -> None:
        """Meet the other ranks; if this raises, the caller closes the group."""
        place = self.place
        self._said: dist.ProcessGroup | None = None
        self._averaging: dist.ProcessGroup | None = None
        with self._watching():
            store = open_store(place, START_SECONDS, os.environ)
            dist.init_process_group(
                "gloo",
                store=store,
                rank=place.rank,
                world_size=place.n_ranks,
                timeout=timedelta(seconds=START_SECONDS),
            )
            self._said = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
        # Hosts may differ in their GPUs and in their torch, and nccl would wait for a rank that does not use it.
        uses_nccl = self._agree(has_gpu and dist.is_nccl_available())
        self._averaging = self._said
        if uses_nccl:
            with self._watching():
                self._averaging = dist.new_group(backend="nccl", timeout=timedelta(seconds=seconds))
        self._copies = device != "cpu" and not uses_nccl
        log.info("rank %d of %d, gradients by %s", place.rank, place.n_ranks, "nccl" if uses_nccl else "gloo")

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def begin_averaging(self, agent: Agent | None) -> None:
        """Average the gradients of this process over all ranks from now on, once all have the same agent.

        Args:
            agent: forgets its captured updates when the group closes; None: no agent is left then.
        """
        self._agent = agent
        average_by(self._average, self.place.n_ranks, can_be_captured=not self._copies)

    def close(self) -> None:
        """Close the connections: ranks that still wait for this rank raise a RankLostError at once."""
        if self._is_open:
            self._is_open = False
            average_by(None)
            if self._agent is not None:
                # Otherwise nccl would wait for ever for the end of the CUDA graphs that have its operations:
                # https://docs.nvidia.com/dl-cuda-graph/troubleshooting/process-hang.html
                forget_traces(self._agent)
            if dist.is_initialized():
                with suppress(RuntimeError):  # Connections that are broken already cannot be closed in order.
                    dist.destroy_process_group()
            # Torch joins the threads of a group when nothing refers to the group any more. A thread that frees its
            # tensors while Python ends would end the process with SIGABRT (pytorch/pytorch#179291).
            self._said = self._averaging = None
            gc.collect()  # On Python 3.13 the frames of an error about a lost rank still refer to it, in a cycle.

    def exchange(self, said: Sequence[float], show_life: Callable[[], None]) -> list[list[float]]:
        """Tell all ranks a few numbers, and hear theirs, in the order of ranks.

        Args:
            said: the numbers of this rank; all ranks give equally many.
            show_life: called several times a second while this rank waits for others.

        Raises:
            RankLostError: another rank has ended, or has not answered in time.
        """
        mine = torch.tensor(said, dtype=torch.float64)
        heard = torch.empty(self.place.n_ranks, len(said), dtype=torch.float64)
        with self._watching():
            work = dist.all_gather([*heard.unbind()], mine, group=self._said, async_op=True)
            is_done = threading.Event()
            # The work ends in a thread of torch, also when it fails: at the latest by the timeout of the group.
            work.get_future().add_done_callback(lambda _: is_done.set())
            while not is_done.wait(LIFE_SECONDS):
                show_life()
            work.wait()
        found: list[list[float]] = heard.tolist()
        return found

    def broadcast(self, data: bytes) -> bytes:
        """The bytes that rank 0 gives, on all ranks; ``data`` of other ranks does not count.

        Raises:
            RankLostError: another rank has ended, or has not answered in time.
        """
        size = torch.tensor([len(data)])
        with self._watching():
            dist.broadcast(size, src=0)
            given = bytearray(data) if self.place.leads else bytearray(int(size))
            if given:
                dist.broadcast(torch.frombuffer(given, dtype=torch.uint8), src=0)
        return bytes(given)

    def gather(self, data: bytes, size: int) -> list[bytes]:
        """The bytes of all ranks, in the order of ranks.

        Args:
            data: of this rank, not ending in a zero byte.
            size: the most bytes of a rank, the same on all ranks.

        Raises:
            ValueError: there are more bytes.
            RankLostError: another rank has ended, or has not answered in time.
        """
        if len(data) > size:
            raise ValueError(f"expected at most {size} bytes, found {len(data)}")
        mine = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        heard = torch.empty(self.place.n_ranks, size, dtype=torch.uint8)
        with self._watching():
            dist.all_gather([*heard.unbind()], mine)
        return [row.numpy().tobytes().rstrip(b"\0") for row in heard]

    def _agree(self, can: bool) -> bool:
        """Whether ``can`` is True on all ranks."""
        return all(answer == b"yes" for answer in self.gather(b"yes" if can else b"no", 3))

    def _average(self, tensor: torch.Tensor) -> None:
        """Replace the values of a contiguous tensor of floats by their means over all ranks."""
        there = tensor.cpu() if self._copies else tensor
        with self._watching():
            dist.all_reduce(there, group=self._averaging)
        there.div_(self.place.n_ranks)
        if there is not tensor:
            tensor.copy_(there)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Raise a RankLostError for any error of torch.distributed."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            place = self.place
            text = str(error).partition(". This is typically")[0].splitlines()[0]
            raise RankLostError(
                f"rank {place.rank} of {place.n_ranks}: another rank has ended or does not answer: {text}"
            ) from error


def _stay_on_host(place: Place) -> None:
    """Let ranks on one host listen to each other on the loopback interface only, unless the user sets another."""
    if place.n_local == place.n_ranks:
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")


def _use_gpu(place: Place, device: str) -> bool:
    """Take the GPU of this rank, if the agent learns on a GPU; return whether each rank on this host has its own GPU.

    Ranks that share a GPU average their gradients by gloo, on the CPU, since nccl refuses such ranks.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return False
    if number:
        raise ConfigError(
            f"trainer.device: expected cuda, since each rank uses the GPU of its local number, found {device}"
        )
    n_gpus = torch.cuda.device_count()
    if not n_gpus:
        raise ConfigError("trainer.device: expected cuda with a GPU on this host, found none")
    torch.cuda.set_device(place.local_rank % n_gpus)
    return place.n_local <= n_gpus
