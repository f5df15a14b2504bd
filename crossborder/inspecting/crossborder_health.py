"""``crossborder-health``: asks a learner or an acting service whether it serves; containers use it as their probe."""

from __future__ import annotations

import argparse
import threading

from common.errors import LearnerUnreachableError
from common.process.clocks import Backoff, Deadline
from common.process.command import Parser, command_of, positive
from common.process.standard_streams import answers
from common.wire.trust import Trust, add_learner_options, read_trust
from crossborder.inspecting.health import check_health

EXAMPLES = """\
  crossborder-health --learner localhost:50051 --ca certs/ca.pem
  crossborder-health --learner gpu-host:50051 --ca ca.pem --token-file admin.token    where server.open_health is off
  crossborder-health --learner gpu-host:50051 --ca ca.pem --patience 120    as soon as it serves, or after two minutes
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-health", __doc__, EXAMPLES)
    add_learner_options(made, "the caller", several=True)
    made.add_value("--timeout", "SECONDS", "how long to wait for the answer", positive, default=5.0)
    made.add_value(
        "--patience",
        "SECONDS",
        "ask again until the learner serves, for this time at most (default: ask once)",
        positive,
    )
    return made


def _ask(arguments: argparse.Namespace) -> None:
    """Ask until the learner serves, or once without ``--patience``.

    Raises:
        CrossborderError: see ``check_health``; the error of the last answer.
    """
    trust, deadline, backoff = read_trust(Trust, arguments), Deadline(arguments.patience or 0.0), Backoff(highest=1.0)
    while True:
        try:
            check_health(arguments.learner, trust, arguments.timeout)
            break
        except LearnerUnreachableError:
            if deadline.passed():
                raise
            threading.Event().wait(min(backoff.next_delay(), deadline.remaining()))
    answers().write(f"{arguments.learner}: serving\n")


main = command_of(parser, _ask)
