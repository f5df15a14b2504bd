"""``learner-server status``: a live table of a running learner's actors."""

from __future__ import annotations

import argparse
import threading
from collections import deque
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from common.errors import LearnerUnreachableError
from common.process.command import Parser, at_least, positive, service_of
from common.process.signals import StopSignals
from common.process.standard_streams import answer_json, answers
from common.wire.trust import add_learner_options, read_trust
from learner.commands.fleet_table import PRESENT, SORTS, STATES, FleetTable, ShownActors

if TYPE_CHECKING:
    from learner.commands.admin_client import AdminClient

NAME = "learner-server status"
HEAD_ROWS: Final = 7
"""Lines of a terminal that show no actors: the headline, the headings, an error, the cursor's line."""
PIPE_WIDTH: Final = 200
"""The width of the table in characters if the output is no terminal, such as a pipe."""
RATE_SECONDS: Final = 10.0
"""The time over which the live table measures rates: an actor's batches may come seconds apart."""
EXAMPLES = """\
  learner-server status --learner 127.0.0.1:50051            until Ctrl-C; --once shows it once
  learner-server status --learner 127.0.0.1:50051 --json     one look, for a script
  learner-server status --learner gpu-host:50051 --ca ca.pem --token-file admin.token
  learner-server status --learner gpu-host:50051 … --sort rate --rows 20           the twenty slowest of a large fleet
  learner-server status --learner gpu-host:50051 … --state lost left --host rack7  actors that went, of some hosts

The learner answers an admin's token (server.admin_token_file), which may come from the environment too:
CROSSBORDER_ADMIN_TOKEN_FILE or CROSSBORDER_ADMIN_TOKEN. On loopback without tokens, it answers its own user and root.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser(NAME, __doc__, EXAMPLES, level="WARNING")
    add_learner_options(made, "the admin")
    made.add_value("--interval", "SECONDS", "the seconds between two updates of the table", positive, default=1.0)
    made.add_argument(
        "--sort",
        choices=SORTS,
        default="id",
        help="the order of the actors; the actor that needs attention comes first (default: id)",
    )
    made.add_argument(
        "--state",
        nargs="+",
        choices=STATES,
        default=PRESENT,
        help="show actors in these states (default: those that hold an id)",
    )
    made.add_value("--host", "TEXT", "show actors on hosts whose name contains this text", default="")
    made.add_value(
        "--rows", "N", "the number of actors on a page (default: as many as fit into the terminal)", at_least(1)
    )
    made.add_value("--page", "K", "the page to show", at_least(1), default=1)
    how = made.add_mutually_exclusive_group()
    how.add_argument(
        "--once",
        action="store_true",
        help="print the table once (default if the output is no terminal); its rates are those of one --interval",
    )
    how.add_argument("--json", action="store_true", help="print one JSON object; its rates are those of one --interval")
    return made


def _show(arguments: argparse.Namespace, signals: StopSignals) -> None:
    stopped = threading.Event()
    signals.on_stop = stopped.set
    from learner.commands.admin_client import AdminClient, AdminTrust

    shown = ShownActors(arguments.state, arguments.host, arguments.sort, arguments.rows, arguments.page)
    with closing(AdminClient(arguments.learner, read_trust(AdminTrust, arguments))) as client:
        before = client.fetch_status()
        stopped.wait(arguments.interval)  # The rates of a table need two views.
        fleet = FleetTable(before, client.fetch_status())
        if arguments.json:
            answer_json(fleet.to_json(shown))
        elif arguments.once or not answers().isatty():
            Console(file=answers(), width=None if answers().isatty() else PIPE_WIDTH).print(fleet.table(shown))
        else:
            _show_live(client, fleet, shown, arguments.interval, stopped)


def _show_live(
    client: AdminClient, fleet: FleetTable, shown: ShownActors, interval: float, stopped: threading.Event
) -> None:
    """Show the table until a signal. While the learner does not answer, the table says so and stays."""
    console, views, away = Console(file=answers()), deque([fleet.now]), ""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            room = shown.rows or max(1, console.height - HEAD_ROWS)
            table = fleet.table(replace(shown, rows=room))
            live.update(Group(table, Text(away, "red", overflow="ellipsis", no_wrap=True)), refresh=True)
            if stopped.wait(interval):
                return
            try:
                now = client.fetch_status()
            except LearnerUnreachableError as error:
                away = f"away: {error}"
                continue
            if away:  # Its counters may have gone back to a checkpoint, so rates begin anew.
                views.clear()
                away = ""
            while len(views) > 1 and views[1].at <= now.at - RATE_SECONDS:
                views.popleft()
            views.append(now)
            fleet = FleetTable(views[0], now)


main = service_of(parser, _show)
