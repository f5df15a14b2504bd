"""The options and the output that the commands on saved policies share."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from common.errors import CheckpointError, ConfigError
from common.process.command import Main, Parser, as_path, command_of
from common.process.standard_streams import answer_json, answers
from learner.shared.durable import has_file, locate
from learner.storage.rundir import require_run

log = logging.getLogger(__name__)
RUN_HELP: Final = "the run's directory, or a checkpoint in it: RUN/best"


def make_policy_parser(name: str, description: str | None, examples: str) -> Parser:
    """A parser for a command that prints values about a saved policy."""
    parser = Parser(name, description, examples, level="WARNING")
    parser.add_value("--run", "DIR", RUN_HELP, as_path, is_required=True)
    add_policy_options(parser)
    parser.add_flag("--json", "print one JSON object")
    return parser


def add_policy_options(parser: Parser, *, namer: str = "the policy") -> None:
    """Add the options that choose a checkpoint of a run, and name the code that the policy in it may name."""
    parser.add_words(
        "--allow",
        "TARGET",
        f"the code that {namer} may name besides crossborder's own parts: module:attr, or a module for the "
        "classes in it and below it; any: all code (default: none)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="best, final or the number of an opt step (default: best, or final if the run has no best)",
    )
    which.add_argument(
        "--best", dest="checkpoint", action="store_const", const="best", help="use best, and fail if the run has none"
    )


def find_policy(run: Path, checkpoint: str | None) -> tuple[Path, str]:
    """Find the policy that the options name; return its run and its name there.

    The user may have named no checkpoint, or both as ``--run RUN/best``.

    Raises:
        ConfigError: the user names two checkpoints.
        CheckpointError: they name none, and the run has saved none yet.
        RunDirectoryError: there is no such directory.
    """
    require_run(run)
    if has_file(run, "meta.json"):
        run, checkpoint = _split(run, checkpoint)
    return run, checkpoint or _default_checkpoint(run)


def policy_command_of(make: Callable[[], Parser], work: Callable[[argparse.Namespace], Mapping[str, object]]) -> Main:
    """The main function of a command on a saved policy, which prints the values that ``work`` returns.

    Before ``work``, ``find_policy`` has found the policy: its run is in ``arguments.run``, its name in
    ``arguments.checkpoint``.
    """

    def act(arguments: argparse.Namespace) -> None:
        arguments.run, arguments.checkpoint = find_policy(arguments.run, arguments.checkpoint)
        values = work(arguments)
        if arguments.json:
            answer_json(values)
        else:
            answers().write("".join(f"{name}: {value}\n" for name, value in values.items()))

    return command_of(make, act)


def _split(place: Path, asked: str | None) -> tuple[Path, str]:
    """The run and the name of the checkpoint in the directory ``place``."""
    found = place.resolve()
    if asked not in (None, found.name):
        raise ConfigError(
            f"--run {place} names the checkpoint {found.name}, --checkpoint {asked} another: leave out one"
        )
    return found.parent, found.name


def _default_checkpoint(run: Path) -> str:
    """``best``, or ``final`` in a run that has only ``final/``: nothing was evaluated, or ``best/`` was removed."""
    if locate(run / "best") is not None:
        return "best"
    if locate(run / "final") is None:
        raise CheckpointError(
            f"{run}: expected a policy in best/ or final/, found neither: best/ comes with the first evaluation, "
            "final/ at the end of training"
        )
    log.warning("%s has no best/, so the policy at the end of training, final/, is used", run)
    return "final"
