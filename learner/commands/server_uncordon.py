"""``learner-server uncordon``: lets actors that were cordoned or drained join again."""

from __future__ import annotations

import argparse
import sys

from common.process.command import Parser, run_command
from common.process.standard_streams import answers
from learner.commands.selection import make_selecting_parser, open_admin_clients, selection_of
from learner.ingest.cordons import NOBODY

EXAMPLES = """\
  learner-server uncordon --learner 127.0.0.1:50051 --host cpu-7
  learner-server uncordon --learner 127.0.0.1:50051 --all                ends every cordon

Actors that wait join within seconds. Only `uncordon --all` ends a cordon of --all.
"""


def parser() -> Parser:
    """The command's options."""
    return make_selecting_parser("learner-server uncordon", __doc__, EXAMPLES)


def _uncordon(arguments: argparse.Namespace) -> None:
    actors, left = selection_of(arguments), NOBODY
    with open_admin_clients(arguments) as clients:
        for client in clients:
            client.uncordon(actors)
            left = left.plus(client.fetch_status().cordoned)
    answers().write(f"uncordoned: {actors}; still cordoned: {left}\n")


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(parser(), argv, _uncordon)


if __name__ == "__main__":
    sys.exit(main())
