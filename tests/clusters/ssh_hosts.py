"""Several hosts on one machine: network namespaces on one bridge, each with an sshd of its own.

The hosts share the file system. The namespace that has the bridge is the host of the operator, who calls ssh.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.clusters.namespace import Namespace, run
from tests.conftest import wait_for

SSHD: Final = "/usr/sbin/sshd"
PROGRAMS: Final = ("ssh", "ssh-keygen", SSHD)
OPERATOR: Final = "10.78.0.254"


class SshHosts:
    """Use as a context manager.

    Args:
        folder: for keys and logs; it must exist.
        count: the number of hosts, besides that of the operator.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._tag = f"cs{os.getpid() % 1_000_000}"
        self.addresses = [f"10.78.0.{i + 1}" for i in range(count)]
        self._hosts: dict[str, Namespace] = {}
        self._stack = ExitStack()

    @property
    def ssh_options(self) -> list[str]:
        """The words by which the operator's ssh uses the keys that were made here, and no settings of a user."""
        known = f"UserKnownHostsFile={self._folder / 'known_hosts'}"
        return ["-F", "none", "-i", str(self._folder / "key"), "-o", known, "-o", "StrictHostKeyChecking=yes"]

    def __enter__(self) -> SshHosts:
        with self._stack as stack:
            self._make_keys()
            self._operator = Namespace(self._tag)
            stack.callback(self._operator.close)
            self._operator.add_bridge(OPERATOR)
            for i, address in enumerate(self.addresses):
                self._add_host(stack, i, address)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words that run a command at the operator's host."""
        return self._operator.prefix

    def _make_keys(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        for name in ("key", "host_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name))
        host_key = " ".join((self._folder / "host_key.pub").read_text().split()[:2])
        known = "".join(f"{address} {host_key}\n" for address in self.addresses)
        (self._folder / "known_hosts").write_text(known)

    def _add_host(self, stack: ExitStack, i: int, address: str) -> None:
        host = self._hosts[address] = Namespace(f"{self._tag}h{i}")
        stack.callback(host.close)
        self._operator.ip("link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", host.name)
        self._operator.ip("link", "set", f"port{i}", "master", "bridge", "up")
        host.ip("address", "add", f"{address}/24", "dev", "eth0")
        host.ip("link", "set", "eth0", "up")
        options = {
            "ListenAddress": address,
            "HostKey": self._folder / "host_key",
            "AuthorizedKeysFile": self._folder / "key.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "prohibit-password",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        with (self._folder / f"sshd-{address}.log").open("wb") as log:
            sshd = subprocess.Popen([*host.prefix, SSHD, "-D", "-e", "-f", "/dev/null", *words], stderr=log)
        stack.callback(sshd.wait, 10)
        stack.callback(sshd.kill)
        wait_for(lambda: self._ssh(address, "true").returncode == 0, f"sshd on {address}", 20.0)

    def _ssh(self, address: str, *words: str) -> subprocess.CompletedProcess[str]:
        return run(*self.prefix, "ssh", *self.ssh_options, "-o", "BatchMode=yes", address, *words, check=False)

    def processes(self, address: str, of: str) -> list[int]:
        """The ids of the processes on a host whose command lines contain a text."""
        return [pid for pid in self._hosts[address].processes() if of in _command_line(pid)]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
