"""``learner-server ratio``: sets the replay ratio of a running learner."""

from __future__ import annotations

import argparse
from contextlib import closing

from common.process.command import Parser, command_of, positive
from common.process.standard_streams import answers
from common.wire.trust import add_learner_options, read_trust
from learner.replay.ratio import format_ratio

EXAMPLES = """\
  learner-server ratio --learner 127.0.0.1:50051 4           each step is drawn four times on average, from now on
  learner-server ratio --learner 127.0.0.1:50051 null        both sides run free
  learner-server ratio --learner gpu-host:50051 --ca ca.pem --token-file admin.token 4

`learner-server status` shows the ratio in force, and its --help names the options that a learner needs to answer. A
resumed run keeps the ratio, unless replay.samples_per_insert in its configuration has changed.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("learner-server ratio", __doc__, EXAMPLES, level="WARNING")
    add_learner_options(made, "the admin")
    made.add_value("ratio", "RATIO", "how often each step is drawn on average; null sets no ratio", _parse_ratio)
    return made


def _parse_ratio(text: str) -> float | None:
    return None if text == "null" else positive(text)


def _set(arguments: argparse.Namespace) -> None:
    from learner.commands.admin_client import AdminClient, AdminTrust

    with closing(AdminClient(arguments.learner, read_trust(AdminTrust, arguments))) as client:
        before = client.set_replay_ratio(arguments.ratio)
    answers().write(f"replay ratio {format_ratio(arguments.ratio)} instead of {format_ratio(before)}\n")


main = command_of(parser, _set)
