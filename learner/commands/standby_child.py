"""The learner's process under ``learner-server --standby``: the command itself, whose output is the keeper's output.

While it waits for its words, as a spare, it holds a process ready that becomes its ingest. It gets its words as a line
of JSON on stdin. When the keeper dies, and stdin closes with it, the process kills itself: whoever starts the keeper
again goes on with the run, and two learners must not use its directory.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading

from common.process.child import read_boot
from learner.commands import learner_server
from learner.ingest.ingest_process import ComingIngest


def _die_with_the_keeper() -> None:
    """Wait until the other end of stdin is closed, then kill this process. Its children notice that it is gone."""
    hang_up = select.poll()
    hang_up.register(sys.stdin.fileno(), 0)  # With no event asked for, poll reports the hang-up alone.
    hang_up.poll()
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Run the process; return the exit code of the command."""
    is_needed, _, _ = select.select([sys.stdin], [], [], 0)
    with ComingIngest(is_urgent=bool(is_needed)) as coming_ingest:
        boot = read_boot()
        for stream, given in zip((sys.stdout, sys.stderr), boot["output_fds"], strict=True):
            os.dup2(given, stream.fileno())
            os.close(given)
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr] # it is a TextIOWrapper
        threading.Thread(target=_die_with_the_keeper, name="lifeline", daemon=True).start()
        return learner_server.run_learner(learner_server.parser(), boot["words"], coming_ingest)


if __name__ == "__main__":
    sys.exit(main())
