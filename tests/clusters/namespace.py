"""A network namespace: its processes see no network but its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

from tests.conftest import signal_each


def run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(words, check=check, capture_output=True, text=True, timeout=60)


def why_impossible(*programs: str) -> str | None:
    """Why this process cannot make namespaces or start these programs; None if it can."""
    missing = [name for name in ("ip", *programs) if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "namespaces need root"
    tried = run("unshare", "-n", "ip", "link", "add", "type", "veth", check=False)
    return None if tried.returncode == 0 else "the kernel allows no network namespaces with veth devices"


class Namespace:
    """Begins to exist when it is made; ``close`` kills its processes and removes it.

    Args:
        name: of the namespace.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix = ("ip", "netns", "exec", name)
        """Words that run a command in it."""
        run("ip", "netns", "add", name)
        self.ip("link", "set", "lo", "up")

    def ip(self, *words: str) -> None:
        """Change its network by ip(8)."""
        run("ip", "-n", self.name, *words)

    def add_bridge(self, address: str) -> None:
        """Give it a device ``bridge`` with an address."""
        self.ip("link", "add", "bridge", "type", "bridge")
        self.ip("address", "add", f"{address}/24", "dev", "bridge")
        self.ip("link", "set", "bridge", "up")

    def processes(self) -> list[int]:
        """The ids of the processes in it."""
        return [int(word) for word in run("ip", "netns", "pids", self.name).stdout.split()]

    def close(self) -> None:
        signal_each(self.processes(), signal.SIGKILL)
        run("ip", "netns", "del", self.name)
