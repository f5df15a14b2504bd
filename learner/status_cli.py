"""``learner-server status``: a live table of a running learner's actors."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from contextlib import closing

from rich.console import Console
from rich.live import Live

from actor.trust_options import add_learner, trust_in
from common.command import Parser, positive, tell_error
from common.errors import CrossborderError
from common.log import setup_logging
from common.signals import StopSignals
from learner.fleet import Fleet

NAME = "learner-server status"
EXAMPLES = """\
  learner-server status --learner 127.0.0.1:50051            until Ctrl-C; --once shows it once
  learner-server status --learner 127.0.0.1:50051 --json     one look, for a script
  learner-server status --learner gpu-host:50051 --ca ca.pem --token-file admin.token

The learner answers if it has admin tokens (server.admin_token_file), or by --set server.admin=true. The token may come
from the environment too: CROSSBORDER_ADMIN_TOKEN_FILE or CROSSBORDER_ADMIN_TOKEN.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser(NAME, __doc__, EXAMPLES, level="WARNING")
    add_learner(made, "the admin")
    made.add_argument(
        "--interval", type=positive, default=1.0, metavar="SECONDS", help="between two looks (default: 1)"
    )
    how = made.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="print the table once; rates are of one interval")
    how.add_argument("--json", action="store_true", help="print one JSON object; rates are of one interval")
    return made


def _show(arguments: argparse.Namespace, stopped: threading.Event) -> None:
    from learner.admin_client import AdminClient, AdminTrust

    with closing(AdminClient(arguments.learner, trust_in(AdminTrust, arguments))) as client:
        before = client.look()
        stopped.wait(arguments.interval)
        fleet = Fleet(before, client.look())
        if arguments.json:
            sys.stdout.write(json.dumps(fleet.to_json()) + "\n")
        elif arguments.once:
            Console().print(fleet.table())
        else:
            with Live(fleet.table(), console=Console(), auto_refresh=False) as live:
                while not stopped.wait(arguments.interval):
                    fleet = Fleet(fleet.now, client.look())
                    live.update(fleet.table(), refresh=True)


def main(argv: list[str] | None = None) -> int:
    """The command; its exit code."""
    arguments = parser().parse_args(argv)
    setup_logging(arguments.log_level, arguments.log_format)
    stopped, signals = threading.Event(), StopSignals()
    signals.on_stop = stopped.set
    try:
        _show(arguments, stopped)
    except CrossborderError as error:
        return tell_error(NAME, error, arguments.log_format)
    return signals.exit_code


if __name__ == "__main__":
    sys.exit(main())
