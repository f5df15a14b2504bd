"""The options, the configuration and the summary that the three commands that train share."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from common.config.nested import parse_yaml, quote
from common.config.run_config import RunConfig, dump_config, load_config
from common.cores import require_usable
from common.errors import BudgetExhaustedError, ConfigError
from common.hints import nearest
from common.home import expand_path
from common.process.command import Parser, add_settings, as_path, run_until_signal
from common.process.log import setup_logging
from common.process.signals import StopSignals
from common.process.standard_streams import answers, own_streams
from learner.records.status import format_return
from learner.storage.run_lock import require_free
from learner.storage.rundir import default_run_dir, find_work, has_rows, require_readable, require_writable

if TYPE_CHECKING:
    from learner.loop.run import Result
    from learner.storage.origin import Origin

log = logging.getLogger(__name__)
Load = Callable[[argparse.Namespace], RunConfig]
Train = Callable[[RunConfig, argparse.Namespace, Console | None, StopSignals], None]


def make_training_parser(name: str, description: str | None, examples: str) -> Parser:
    """A parser with the options of every command that trains."""
    parser = Parser(name, description, examples)
    parser.set_defaults(local_actors=0, dataset=None)
    parser.add_value("--config", "FILE", "the run's YAML file", as_path)
    add_settings(parser, "overrides", "replace one value of the YAML file")
    add_override(parser, "--run-dir", "run_dir", "DIR", "the directory into which the run writes all its files")
    parser.add_flag("--show-config", "print the resolved configuration and exit")
    parser.add_flag(
        "--check",
        "build all parts once, try an opt step with made-up rows and random actions in the environment, and exit",
    )
    return parser


def add_resume(parser: argparse.ArgumentParser, *, mirrored: bool = False) -> None:
    """Add ``--resume``; ``mirrored``: the command mirrors and restores runs, and takes the URL of a mirror too."""
    parser.set_defaults(mirrored=mirrored)
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        type=_as_run if mirrored else as_path,
        metavar="DIR|URL" if mirrored else "DIR",
        help="resume the run in DIR with its own configuration; without DIR resume that in run_dir, or begin it"
        + mirrored * "; the URL of a mirror restores the run to run_dir first, unless it is there",
    )


def _as_run(text: str) -> Path | str:
    """The directory of a run, or the URL of its mirror."""
    return text if "://" in text else as_path(text)


def add_origin(parser: argparse.ArgumentParser) -> None:
    """Add ``--from`` and ``--with``, which begin a new run from an earlier one."""
    parser.add_argument(
        "--from",
        dest="origin",
        type=as_path,
        metavar="RUN",
        help="begin a new run with a saved policy: RUN/best, or else RUN/final, or the checkpoint that RUN names",
    )
    parser.add_argument(
        "--with",
        dest="origin_options",
        default=frozenset(),
        type=_origin_options,
        metavar="PARTS",
        help="further parts that --from takes, separated by commas: optimiser (the agent as it last trained), replay",
    )


def _origin_options(text: str) -> frozenset[str]:
    """Parse the value of ``--with``."""
    from learner.storage.origin import OPTIONS  # Imports torch, which takes seconds: --help does without.

    found = frozenset(text.split(","))
    unknown = sorted(found - OPTIONS.keys())
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown value '{unknown[0]}'{nearest(unknown[0], OPTIONS)}")
    return found


def origin_of(arguments: argparse.Namespace, run_dir: Path | None) -> Origin | None:
    """The run or checkpoint that ``--from`` and ``--with`` name; None without ``--from``.

    A run that is resumed with its rows needs its origin no more, so the origin is not read and may be gone.

    Raises:
        CrossborderError: no run can begin from it.
    """
    from learner.storage.origin import Origin

    if arguments.origin is None or (arguments.resume and has_rows(run_dir)):
        return None
    require_readable(arguments.origin)
    return Origin.at(arguments.origin, arguments.origin_options)


def require_consistent(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End the command with its usage if options contradict each other."""
    if arguments.origin_options and arguments.origin is None:
        parser.error("--with names parts for --from: name a run with --from")
    if not isinstance(arguments.resume, Path | str):
        if arguments.config is None:
            parser.error("the following arguments are required: --config")
    elif arguments.origin is not None:
        parser.error("--resume DIR goes on with a run, --from begins a new one: leave out one of them")
    elif arguments.config is not None:
        parser.error("--resume DIR goes on as DIR/config.yaml says: leave out --config, or DIR")
    elif isinstance(arguments.resume, Path) and _find_run_dir(arguments) is not None:
        parser.error("--resume DIR goes on in DIR: leave out --run-dir, or DIR")


def _find_run_dir(arguments: argparse.Namespace) -> Path | None:
    """The run directory that the options name."""
    named = [override.partition("=")[2] for override in arguments.overrides if override.startswith("run_dir=")]
    return expand_path(str(parse_yaml(named[-1])), "run_dir") if named else None


def load_run(arguments: argparse.Namespace) -> RunConfig:
    """Load the configuration that the options name; restore the run from its mirror if its directory is not there.

    A command that mirrors nothing restores nothing: it would take the mirror from the learner that writes there.

    Raises:
        CrossborderError: it cannot be loaded or restored, or the run in the directory is one of another user.
    """
    resume, overrides = arguments.resume, arguments.overrides
    if isinstance(resume, str):
        mirror = resume.rstrip("/")
        resume = _find_run_dir(arguments) or Path("runs") / mirror.rpartition("/")[2]
        overrides = [*overrides, f"storage.mirror={quote(mirror)}"]
        _restore(mirror, resume, is_needed=True)
    if isinstance(resume, Path):
        require_readable(resume)
        return load_config(resume / "config.yaml", [*overrides, f"run_dir={quote(str(resume))}"])
    config = load_config(arguments.config, overrides)
    if resume and config.run_dir is None:
        raise ConfigError("--resume: expected a run directory, found none: say --resume DIR or --run-dir DIR")
    restore_run(config, arguments)
    return config


def restore_run(config: RunConfig, arguments: argparse.Namespace) -> None:
    """Restore a run that the command resumes from its mirror, if it has one and the run is not in its directory."""
    if arguments.resume and arguments.mirrored and config.run_dir is not None and config.storage.mirror is not None:
        _restore(config.storage.mirror, config.run_dir, is_needed=isinstance(arguments.resume, str))


def _restore(url: str, run_dir: Path, *, is_needed: bool) -> None:
    """Restore a run from its mirror, unless it is in its directory; ``is_needed``: an empty mirror is an error."""
    from learner.storage.mirror import Mirror
    from learner.storage.restoring import has_run, restore

    require_readable(run_dir)
    require_free(run_dir)
    if not find_work(run_dir):
        mirror = Mirror(url)
        if is_needed or has_run(mirror):
            restore(mirror, run_dir.absolute())


def add_override(parser: argparse.ArgumentParser, option: str, key: str, metavar: str, text: str) -> None:
    """Add an option that sets one value of the configuration, as ``--set KEY=VALUE`` does."""
    parser.add_argument(
        option,
        action="append",
        dest="overrides",
        type=lambda value: f"{key}={quote(value)}",
        metavar=metavar,
        help=text,
    )


def run_training_command(
    parser: argparse.ArgumentParser,
    argv: list[str] | None,
    train: Train,
    prepare: Callable[[argparse.Namespace], None] = lambda _: None,
    adapt: Callable[[RunConfig], RunConfig] = lambda config: config,
    *,
    load: Load = load_run,
) -> int:
    """Run a command that trains: parse its words, load and check the configuration, train; return the exit code.

    Args:
        parser: of the command.
        argv: its words; None takes those of this process.
        train: trains until the run ends or a signal comes.
        prepare: called with the parsed words before ``train``: the options and values are checked, but the parts are
            not imported yet.
        adapt: makes the configuration of this process from that of the run.
        load: makes the configuration of the run from the parsed words.
    """
    arguments = parser.parse_args(argv)
    require_consistent(parser, arguments)

    def act(signals: StopSignals) -> None:
        config = load(arguments)
        if not (arguments.show_config or arguments.check):
            config = adapt(config)
            if config.run_dir is not None:
                require_free(config.run_dir)  # Before the check, which imports the agent and with it torch for seconds.
            prepare(arguments)
        config.check()
        if arguments.show_config:
            answers().write(dump_config(config))
        elif arguments.check:
            _check(config, arguments)
        else:
            if config.storage.mirror is not None and not arguments.mirrored:
                log.warning(
                    "storage.mirror: only learner-server mirrors and restores runs; this run stays on this host alone"
                )
            train(config, arguments, console, signals)

    with own_streams():
        console = Console(stderr=True) if sys.stderr.isatty() and arguments.log_format == "text" else None
        setup_logging(arguments.log_level, arguments.log_format, console)
        return run_until_signal(parser.prog, arguments.log_format, act)


def _check(config: RunConfig, arguments: argparse.Namespace) -> None:
    """Build the parts that this command builds, try them, and print the columns of what its actors will send.

    With ``--from``, the saved agent is loaded too. Datasets must have the columns of the run. The packages that
    reach a mirror must be here; the mirror itself is not asked.
    """
    from learner.datasets.opening import open_dataset
    from learner.loop.learner_parts import build_learner_parts
    from learner.loop.part_trials import try_callbacks, try_env, try_evaluator
    from learner.loop.trial import try_opt
    from learner.storage.mirror import Mirror

    # 1. What is quick to find out comes first.
    if config.storage.mirror is not None:
        Mirror(config.storage.mirror)
    if config.trainer.cores is not None:
        require_usable(config.trainer.cores, "trainer.cores")
    require_writable(config.run_dir or default_run_dir(config.name))
    try_callbacks(config)
    parts = build_learner_parts(config)
    try_opt(config, parts)
    # 2. All rows and policies from elsewhere must fit the parts.
    named = [source.dataset for source in config.replay.sources.values()] + [arguments.dataset]
    datasets = [each for each in named if each is not None]
    origin = origin_of(arguments, config.run_dir)
    if origin is not None:
        origin.restore(parts, config)
        datasets += [str(origin.run)] if origin.has_replay else []
    for each in datasets:
        with open_dataset(each) as dataset:
            dataset.check(parts)
    # 3. With env.spaces, this host may lack what the environment needs, unless its local actors step it.
    if config.env.spaces is None or arguments.local_actors:
        try_evaluator(config, parts.frames)
        try_env(config)
    kind = "Rows" if parts.schema.is_rows else "Items"
    answers().write(f"{config.name}: good. {kind}: {', '.join(map(str, parts.schema.columns))}\n")


def tell_result(config: RunConfig, result: Result, statistics: str) -> None:
    """Print the summary of a run that has ended.

    Raises:
        BudgetExhaustedError: training ended before it reached the target score of the configuration.
    """
    from learner.loop.learner import Outcome

    best = (
        f"best evaluation {format_return(result.best_score)}" if math.isfinite(result.best_score) else "no evaluation"
    )
    files = ("best/", "final/", "config.yaml", "metrics.csv", "learning_curve.png")
    written = ", ".join(name for name in files if (result.run_dir / name).exists())
    answers().write(
        f"\n{config.name}: {result.outcome.value}; {best}; {result.opt_steps} opt steps and "
        f"{result.samples_total} steps\n\n{statistics}\n"
        f"run directory: {result.run_dir} ({written})\n"
    )
    target = config.trainer.target_score
    if target is not None and result.outcome.is_finish and result.outcome is not Outcome.TARGET:
        raise BudgetExhaustedError(f"{result.outcome.value}, but the target score {target:g} was not reached: {best}")
