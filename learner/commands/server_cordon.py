"""``learner-server cordon``: keeps new actors of some hosts, or with some ids, out of a running learner."""

from __future__ import annotations

import argparse
import sys

from common.process.command import Parser, run_command
from common.process.standard_streams import answers
from learner.commands.selection import count_actors, make_selecting_parser, open_admin_clients, selection_of

EXAMPLES = """\
  learner-server cordon --learner 127.0.0.1:50051 --host cpu-7           no new actor joins from cpu-7
  learner-server cordon --learner gpu-host:50051 --ca ca.pem --token-file admin.token --host cpu-7 cpu-8
  learner-server cordon --learner 127.0.0.1:50051 --actor 3              nobody gets id 3

Actors that have joined already go on; `learner-server drain` has them leave too. An actor that is kept out asks again
until its --patience is over, and joins after `learner-server uncordon`. `learner-server status` shows the cordons. A
learner that is started again keeps them.
"""


def parser() -> Parser:
    """The command's options."""
    return make_selecting_parser("learner-server cordon", __doc__, EXAMPLES)


def _cordon(arguments: argparse.Namespace) -> None:
    actors = selection_of(arguments)
    with open_admin_clients(arguments) as clients:
        present = sum(client.cordon(actors) for client in clients)
    answers().write(f"cordoned: {actors}; {count_actors(present)} of them there and going on\n")


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(parser(), argv, _cordon)


if __name__ == "__main__":
    sys.exit(main())
