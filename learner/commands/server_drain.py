"""``learner-server drain``: has actors hand over their rows and leave a running learner."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from common.errors import CrossborderError
from common.process.clocks import Deadline
from common.process.command import Parser, positive, run_service
from common.process.signals import StopSignals
from common.process.standard_streams import answers
from learner.commands.fleet_table import PRESENT, ActorView
from learner.commands.selection import count_actors, make_selecting_parser, open_admin_clients, selection_of

if TYPE_CHECKING:
    from learner.commands.admin_client import AdminClient
    from learner.ingest.cordons import Selection

NAME: Final = "learner-server drain"
LOOK_SECONDS: Final = 0.5
MAX_NAMED: Final = 20
"""The error message names at most this many actors."""
EXAMPLES = """\
  learner-server drain --learner 127.0.0.1:50051 --host cpu-7            its actors leave, and none joins from there
  learner-server drain --learner gpu-host:50051 --ca ca.pem --token-file admin.token --host cpu-7 cpu-8
  learner-server drain --learner 127.0.0.1:50051 --all --timeout 300

A drained actor hands over its rows and ends with exit code 0; actor-worker --num-actors does not start it again. The
command waits until all these actors have left. An actor that is away now leaves when it comes back. `learner-server
uncordon` lets actors join again.
"""


def parser() -> Parser:
    """The command's options."""
    made = make_selecting_parser(NAME, __doc__, EXAMPLES)
    made.add_argument(
        "--timeout",
        type=positive,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait until the actors have left (default: 60)",
    )
    return made


def _drain(arguments: argparse.Namespace, signals: StopSignals) -> None:
    stopped = threading.Event()
    signals.on_stop = stopped.set
    actors = selection_of(arguments)
    with open_admin_clients(arguments) as clients:
        told = sum(client.drain(actors) for client in clients)
        left = _wait_until_gone(clients, actors, arguments.timeout, stopped)
    if stopped.is_set():
        return
    if left:
        named = ", ".join(f"{actor.actor_id} ({actor.host}, {actor.state})" for actor in left[:MAX_NAMED])
        raise CrossborderError(f"{len(left)} of {count_actors(told)} have not left in time, and are to leave: {named}")
    answers().write(f"drained: {actors}; {count_actors(told)} told to leave, and none is left\n")


def _wait_until_gone(
    clients: Sequence[AdminClient], actors: Selection, seconds: float, stopped: threading.Event
) -> list[ActorView]:
    """Wait until the actors have left, the time is over, or the command is stopped; return those that have not left."""
    deadline = Deadline(seconds)
    while True:
        known = [actor for client in clients for actor in client.fetch_status().actors]
        present = [actor for actor in known if actor.state in PRESENT]
        left = [actor for actor in present if actors.covers(actor.actor_id, actor.host)]
        if not left or deadline.passed() or stopped.wait(min(LOOK_SECONDS, deadline.remaining())):
            return left


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_service(parser(), argv, _drain)


if __name__ == "__main__":
    sys.exit(main())
