"""The process of one run of a sweep: a command that trains, whose output goes to a file.

The process gets the words of its command as a line of JSON on stdin. When the sweep closes stdin or dies, the run stops
in order, as it does after a signal.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Final

from common.process.child import on_hang_up, read_boot

MODULES: Final = {
    name: f"learner.commands.{name.replace('-', '_')}" for name in ("sync-train", "learner-server", "offline-train")
}


def main() -> int:
    """Run the process; return the exit code of the command."""
    boot = read_boot()
    log = os.open(boot["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    on_hang_up(lambda: os.kill(os.getpid(), signal.SIGTERM))
    code: int = importlib.import_module(MODULES[boot["command"]]).main(boot["words"])
    return code


if __name__ == "__main__":
    sys.exit(main())
