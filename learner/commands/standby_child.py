"""The learner's process under ``learner-server --standby``: it runs the command, and its output is the keeper's output.

The boot line has the words of the command, and the configuration that the keeper has made from them: the file that
they name may be a pipe, which can be read only once, and the user may have edited it since. When the keeper dies, stdin
closes and this process kills itself: a new keeper would go on with the run, and two learners must not use its
directory.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from actor.manager import ACTOR
from common.config.nested import parse_yaml
from common.config.run_config import RunConfig
from common.process.child import on_hang_up, read_boot
from common.settings import validate
from learner.commands import learner_server
from learner.commands.standby import SERVER
from learner.commands.training_command import restore_run
from learner.ingest.ingest_process import ComingIngest


def main() -> int:
    """Run the process; return the exit code of the command."""
    # Until the command handles signals, Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    boot = read_boot()

    def load(arguments: argparse.Namespace) -> RunConfig:
        config = validate(RunConfig, parse_yaml(boot["config"]))
        restore_run(config, arguments)
        return config

    with ComingIngest([ACTOR], here=SERVER) as coming_ingest:  # Before this process has another thread.
        for stream, given in zip((sys.stdout, sys.stderr), boot["output_fds"], strict=True):
            os.dup2(given, stream.fileno())
            os.close(given)
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr] # it is a TextIOWrapper
        on_hang_up(lambda: os.killpg(0, signal.SIGKILL))  # The children of this process notice that it is gone.
        return learner_server.run_learner(learner_server.parser(), boot["words"], coming_ingest, load)


if __name__ == "__main__":
    sys.exit(main())
