"""A network that fails on command: two hosts, and between them a wire whose packets can be late, lost or all cut off.

The hosts are network namespaces of this machine, so both ends run the kernel's own TCP. Each has a TUN device, and a
thread carries the packets from one to the other; nothing that is dropped is answered, as behind a pulled cable.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
MTU: Final = 1500
NAME: Final = "learner.chaos"
"""The learner host's name as the actors' host resolves it."""
LEARNER, MOVED, ACTORS = "10.77.0.1", "10.77.0.2", "10.77.0.9"


def is_possible() -> bool:
    """Whether this process may make namespaces and TUN devices."""
    made = shutil.which("ip") and os.geteuid() == 0 and Path("/dev/net/tun").exists()
    return bool(made) and subprocess.run(["unshare", "-n", "true"], check=False).returncode == 0  # noqa: S607


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)  # noqa: S607


def _open_tun(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return fd


class Host:
    """A network namespace with one device; commands are run in it by ``prefix``."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name  # Of the device too.
        self.prefix = ("ip", "netns", "exec", name)
        _ip("netns", "add", name)
        self.fd = _open_tun(self.name)
        _ip("link", "set", self.name, "netns", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "address", "add", f"{address}/24", "dev", self.name)
        _ip("-n", name, "link", "set", self.name, "up")

    def move(self, before: str, after: str) -> None:
        """Have another address; the one before no longer answers."""
        _ip("-n", self.name, "address", "del", f"{before}/24", "dev", self.name)
        _ip("-n", self.name, "address", "add", f"{after}/24", "dev", self.name)

    def close(self) -> None:
        os.close(self.fd)
        _ip("netns", "del", self.name)


class Wire:
    """Use as a context manager; ``delay``, ``loss`` and ``cut`` may be changed at any time.

    Args:
        delay: seconds that a packet takes, each way.
        loss: share of the packets that are lost.
        seed: of what is lost.
    """

    def __init__(self, delay: float = 0.0, loss: float = 0.0, seed: int = 0) -> None:
        self.delay, self.loss, self.cut = delay, loss, False
        self.lost = 0
        """Packets, those of a cut included."""
        self._rng = random.Random(seed)
        self._on_the_way: deque[tuple[float, int, bytes]] = deque()
        self._end, self._ended = os.pipe()

    def __enter__(self) -> Wire:
        tag = f"cb{os.getpid() % 1_000_000}"
        self._names = Path("/etc/netns") / f"{tag}a" / "hosts"
        self._names.parent.mkdir(parents=True)
        self.resolve_to(LEARNER)
        self.learner, self.actors = Host(f"{tag}l", LEARNER), Host(f"{tag}a", ACTORS)
        self._thread = threading.Thread(target=self._carry, name="wire", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._ended)
        self._thread.join()
        os.close(self._end)
        self.learner.close()
        self.actors.close()
        shutil.rmtree(self._names.parent)

    def resolve_to(self, address: str) -> None:
        """What the actors' host finds under the learner's name; written in place, for it is mounted there."""
        with self._names.open("w") as file:
            file.write(f"127.0.0.1 localhost\n{address} {NAME}\n")

    def _carry(self) -> None:
        other = {self.learner.fd: self.actors.fd, self.actors.fd: self.learner.fd}
        while True:
            due = self._on_the_way[0][0] - time.monotonic() if self._on_the_way else None
            ready, _, _ = select.select([*other, self._end], [], [], None if due is None else max(0.0, due))
            if self._end in ready:
                return
            for fd in ready:
                self._take(os.read(fd, MTU), other[fd])
            self._deliver()

    def _take(self, packet: bytes, to: int) -> None:
        if self.cut or self._rng.random() < self.loss:
            self.lost += 1
        else:
            self._on_the_way.append((time.monotonic() + self.delay, to, packet))

    def _deliver(self) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= time.monotonic():
            _, to, packet = self._on_the_way.popleft()
            os.write(to, packet)
