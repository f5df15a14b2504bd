"""What the learner's commands have in common: options, configuration, outcome, exit code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from common.config import RunConfig, dump_config, load_config
from common.errors import BudgetExhaustedError, CrossborderError
from common.log import setup_logging
from common.signals import StopSignals

if TYPE_CHECKING:
    from learner.run import Result

Train = Callable[[RunConfig, argparse.Namespace, Console | None, StopSignals], None]


def make_parser(name: str, description: str | None, examples: str) -> argparse.ArgumentParser:
    """A parser with the options that every way to train has."""
    parser = argparse.ArgumentParser(
        name,
        description=description,
        epilog=f"examples:\n{examples}\nexit codes: docs/exit-codes.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="the run's YAML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.KEY=VALUE", dest="overrides", help="override one value"
    )
    add_override(parser, "--run-dir", "run_dir", "DIR", "where everything is written")
    parser.add_argument("--show-config", action="store_true", help="print the resolved configuration and exit")
    parser.add_argument("--check", action="store_true", help="build everything once, then exit")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser


def add_override(parser: argparse.ArgumentParser, option: str, key: str, metavar: str, text: str) -> None:
    """An option that stands for one value of the configuration."""
    parser.add_argument(
        option,
        action="append",
        dest="overrides",
        type=lambda value: f"{key}={json.dumps(value)}",
        metavar=metavar,
        help=text,
    )


def run_command(parser: argparse.ArgumentParser, argv: list[str] | None, train: Train) -> int:
    """Parse, configure, train; the exit code."""
    arguments = parser.parse_args(argv)
    console = Console(stderr=True) if sys.stderr.isatty() else None
    setup_logging(arguments.log_level, console=console)
    signals = StopSignals()
    try:
        config = load_config(arguments.config, arguments.overrides)
        config.check()
        if arguments.show_config:
            sys.stdout.write(dump_config(config))
        elif arguments.check:
            _check(config)
        else:
            train(config, arguments, console, signals)
    except CrossborderError as error:
        sys.stderr.write("".join(f"{parser.prog}: {line}\n" for line in str(error).splitlines()))
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(f"{parser.prog}: interrupted\n")
    return signals.exit_code


def _check(config: RunConfig) -> None:
    from learner.parts import build_eval_env, build_learner_parts

    parts = build_learner_parts(config)
    build_eval_env(config.env, parts.env).close()
    parts.close()
    sys.stdout.write(f"{config.name}: good. Items: {', '.join(map(str, parts.schema.columns))}\n")


def tell_result(config: RunConfig, result: Result, statistics: str) -> None:
    """Print the summary.

    Raises:
        BudgetExhaustedError: there was a target and training ended before it was reached.
    """
    from learner.learner import Outcome

    best = f"best evaluation {result.best_score:.1f}"
    sys.stdout.write(
        f"\n{config.name}: {result.outcome.value}; {best} after {result.opt_steps} opt steps and "
        f"{result.samples_total} items\n\n{statistics}\n"
        f"run directory: {result.run_dir} (best/, final/, config.yaml, metrics.csv, learning_curve.png)\n"
    )
    target = config.trainer.target_score
    if target is not None and result.outcome in (Outcome.MAX_OPTS, Outcome.MAX_SECONDS):
        raise BudgetExhaustedError(f"{result.outcome.value}, but the target score {target:g} was not reached: {best}")
