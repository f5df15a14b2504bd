"""Trains in turns in processes that are forked, so that torch is imported once for all of them.

For each configuration named on a line of stdin, the process id of one that trains by it, and its exit status at last.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import common.agents.sac  # noqa: F401 - what it imports, children have
from common.config.run_config import load_config
from learner.loop.in_turns import train_in_turns


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            train_in_turns(load_config(Path(line.strip())), resume=True)
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        sys.stdout.write(f"{os.waitpid(pid, 0)[1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
