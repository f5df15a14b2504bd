"""What the commands on saved policies have in common: which checkpoint, how to answer, exit code."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from common.errors import CrossborderError
from common.process.command import Parser, tell_error
from common.process.log import setup_logging
from learner.shared.durable import old_of

log = logging.getLogger(__name__)
Answer = Callable[[argparse.Namespace], Mapping[str, object]]


def make_parser(name: str, description: str, examples: str) -> Parser:
    """A parser with the options that name a checkpoint."""
    parser = Parser(name, description, examples, level="WARNING")
    parser.add_argument("--run", required=True, type=Path, metavar="DIR", help="the run's directory")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="best, final or an opt step (default: best, and final in a run that has no best)",
    )
    which.add_argument("--best", dest="checkpoint", action="store_const", const="best", help="best and nothing else")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run_command(parser: argparse.ArgumentParser, argv: list[str] | None, answer: Answer) -> int:
    """Parse, answer, print; the exit code."""
    arguments = parser.parse_args(argv)
    setup_logging(arguments.log_level, arguments.log_format)
    arguments.checkpoint = arguments.checkpoint or _default_checkpoint(arguments.run)
    try:
        found = answer(arguments)
    except CrossborderError as error:
        return tell_error(parser.prog, error, arguments.log_format)
    if arguments.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        sys.stdout.write("".join(f"{key}: {value}\n" for key, value in found.items()))
    return 0


def _default_checkpoint(run: Path) -> str:
    """``best``, or ``final`` where the run has that alone, since nothing was scored or the scores were lost."""
    if any(path.exists() for path in (run / "best", old_of(run / "best"))) or not (run / "final").exists():
        return "best"
    log.warning("%s has no best/: final/, the policy at the end of training, is taken", run)
    return "final"
