"""Makes any Python that has this directory on its path a system with POSIX and without what Linux alone has.

It is no macOS. But functions of Linux, ``/proc`` and ``/dev/shm`` are missing, for this process and for its children.
"""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
from pathlib import Path

import gymnasium  # noqa: F401 - libraries look at the system when they are imported
import torch  # noqa: F401

MISSING = {
    os: (
        "O_PATH",
        "memfd_create",
        "pidfd_open",
        "posix_fallocate",
        "waitid",
        *filter(lambda n: "sched_" in n, dir(os)),
    ),
    socket: ("AF_NETLINK", "TCP_INFO"),
}
NETLINK = 16
can_access = os.access


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Have no files and no sockets of Linux; an audit hook of Python."""
    if event in {"open", "os.listdir", "os.scandir"} and str(arguments[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))
    if event == "socket.__new__" and arguments[1] == NETLINK:
        raise OSError(47, "Address family not supported by protocol")


def access(path: os.PathLike[str] | str, mode: int) -> bool:
    return Path(path) != Path("/dev/shm") and can_access(path, mode)  # noqa: S108 - it is refused


sysconfig.get_config_vars()  # They are read once, from a file that has the name of the system.
for module, names in MISSING.items():
    for name in names:
        delattr(module, name)
vars(os)["access"] = access
sys.addaudithook(refuse)
sys.platform = "darwin"
