"""The code that all commands share: options, help, hints at misspelt names, completion, and how a command fails."""

from __future__ import annotations

import argparse
import logging
import math
import os
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, Generic, TextIO, TypeVar

from common.cores import read_cores
from common.errors import ConfigError, CrossborderError, PluginError
from common.hints import nearest
from common.home import expand_home
from common.process.log import LogFormat, escape, escape_lines, log_fault, setup_logging
from common.process.signals import StopSignals
from common.process.standard_streams import own_streams

log = logging.getLogger(__name__)
SubjectT = TypeVar("SubjectT")
Main = Callable[[Sequence[str] | None], int]
"""Runs a command with these words, None for those of this process; returns its exit code."""
SHELLS: Final = ("bash", "zsh", "tcsh", "fish", "powershell")
"""The shells for which shtab writes completion scripts."""

LEAST_FILES: Final = 128
"""The file descriptors that a learner with a few actors needs, and some to spare. Systems allow 256 or more."""


class PrintCompletion(argparse.Action):
    """Prints the completion script of one shell and ends the command.

    The package shtab, which writes the script, comes with ``crossborder[learner]``. It is imported only here, so that
    every other use of a command works on an actor host, which may not have shtab.
    """

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, __: str | None = None) -> None:
        try:
            import shtab  # noqa: PLC0415 - an actor host does not have it
        except ModuleNotFoundError as error:
            parser.error(f"--print-completion: {error}; pip install shtab")
        offered = {"FILE": shtab.FILE} | dict.fromkeys(("DIR", "RUN", "[NAME=]DIR"), shtab.DIRECTORY)
        parsers = [parser]
        for each in parsers:  # The list grows by the parsers of subcommands.
            for action in each._actions:  # argparse has no public list of a parser's options.
                if isinstance(action.metavar, str) and action.metavar in offered:
                    action.complete = offered[action.metavar]  # type: ignore[attr-defined]
                if isinstance(action, argparse._SubParsersAction):
                    parsers.extend(action.choices.values())
        sys.stdout.write(shtab.complete(parser, shell) + "\n")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """The options of a command, by their whole names. The error for a misspelt option names the nearest one.

    Args:
        name: of the command.
        description: the docstring of its module; None where Python leaves docstrings out (``python -OO``).
        examples: command lines.
        level: the lowest level that is logged, unless an option names another one.
    """

    def __init__(self, name: str, description: str | None, examples: str, level: str = "INFO") -> None:
        super().__init__(
            name,
            description=(description or "").replace("`", ""),
            epilog=f"examples:\n{examples.rstrip()}\n\nexit codes: docs/exit-codes.md",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        every = self.add_argument_group("in every command")
        levels = ["DEBUG", "INFO", "WARNING", "ERROR"]
        every.add_argument(
            "--log-level", default=level, choices=levels, help=f"the lowest level that is logged (default: {level})"
        )
        every.add_argument(
            "--log-format",
            default="text",
            choices=["text", "json"],
            help="the format of the log; json writes one object per line (default: text)",
        )
        every.add_argument(
            "--print-completion",
            action=PrintCompletion,
            choices=SHELLS,
            help="print the completion script for this shell, and exit",
        )

    def add_flag(self, name: str, text: str) -> None:
        """Add an option without a value; ``text`` is its help."""
        self.add_argument(name, action="store_true", help=text)

    def add_value(
        self,
        name: str,
        metavar: str,
        text: str,
        kind: Callable[[str], Any] = str,
        *,
        default: Any = None,
        is_required: bool = False,
    ) -> None:
        """Add an option with a value, or an argument without a name; its help is ``text``, then the default."""
        if default not in (None, ""):
            text += f" (default: {f'{default:g}' if isinstance(default, int | float) else default})"
        required: dict[str, Any] = {"required": True} if is_required else {}
        self.add_argument(name, type=kind, default=default, metavar=metavar, help=text, **required)

    def add_words(self, name: str, metavar: str, text: str, kind: Callable[[str], Any] = str) -> None:
        """Add an option with one or more values, which may be repeated; the values become one list."""
        self.add_argument(name, nargs="+", action="extend", default=[], type=kind, metavar=metavar, help=text)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = sys.argv[1:] if args is None else list(args)
        # This comes before argparse, which would say that the right option is missing, not that this one is misspelt.
        for word in takewhile("--".__ne__, words):
            option = word.partition("=")[0]
            if option.startswith("--") and option not in self._option_string_actions:
                self.error(f"unknown option {option}{nearest(option, self._long_options())}")
        return super().parse_known_args(words, namespace)

    def _long_options(self) -> list[str]:
        return [option for option in self._option_string_actions if option.startswith("--")]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"unknown value '{value}'{nearest(str(value), action.choices)}")


def add_settings(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add the option ``--set KEY.KEY=VALUE``, whose values become the list ``name``; ``text`` is its help."""
    parser.add_argument("--set", action="append", default=[], dest=name, metavar="KEY.KEY=VALUE", help=text)


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that takes an integer of ``least`` or more, and not above ``most``."""
    expected = f"{least} or more" if most is None else f"{least} to {most}"

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"expected {expected}, found '{text}'")
        return int(text)

    return number


def as_path(text: str) -> Path:
    """The type of an option that takes a path; ``~`` is the user's home, as in ``--output=~/curve.png``."""
    try:
        return expand_home(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def as_output(text: str) -> Path:
    """The type of an option for a file that is written after long work: a file that cannot be is told before it.

    A symbolic link stands for the file that it leads to: a file that is put in the place of another one would replace
    the link.
    """
    given = as_path(text)
    try:
        path = given.resolve()
        TemporaryFile(dir=path.parent).close()
        why = "it is a directory" if path.is_dir() else None
        if len(os.fsencode(f".{path.name}.part")) > os.pathconf(path.parent, "PC_NAME_MAX"):
            why = "its name is too long for the name of its draft"
        if path.exists() and not (path.is_file() or path.is_dir()):
            why = "it is a device or a pipe"
    except OSError as error:
        why = error.strerror
    if why is not None:
        raise argparse.ArgumentTypeError(f"{given}: cannot be written: {why}")
    return path if given.is_symlink() else given


def as_cores(text: str) -> tuple[int, ...]:
    """The type of an option that takes a list of cores; see ``read_cores``."""
    try:
        return read_cores(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive(text: str) -> float:
    """The type of an option that takes a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found '{text}'")
    return value


def command_of(make: Callable[[], Parser], act: Callable[[argparse.Namespace], None]) -> Main:
    """The main function of a command that does one thing and ends: it parses its words, sets up logging, and acts."""
    return service_of(make, lambda arguments, _: act(arguments))


def service_of(make: Callable[[], Parser], act: Callable[[argparse.Namespace, StopSignals], None]) -> Main:
    """As ``command_of``, for a command that goes on until a signal; ``act`` sets ``on_stop`` of the signals."""

    def main(argv: Sequence[str] | None = None) -> int:
        parser = make()
        arguments = parser.parse_args(argv)
        with own_streams():
            setup_logging(arguments.log_level, arguments.log_format)
            return run_until_signal(parser.prog, arguments.log_format, partial(act, arguments))

    return main


def run_until_signal(command: str, form: LogFormat, act: Callable[[StopSignals], None]) -> int:
    """Do the work of a command until it is done or a signal comes, and tell the user why it ends.

    Args:
        command: its name.
        form: of the log.
        act: does the work. It may set ``on_stop`` of the signals; without that a signal raises KeyboardInterrupt in it.

    Returns:
        The exit code: that of the error that ``act`` raised, 128 + the signal that came, or 0.
    """
    signals = StopSignals()
    try:
        _require_descriptors()
        _require_directory()
        act(signals)
    except CrossborderError as error:
        if signals.received is None or error.exit_code:  # An error with exit code 0 only says that ``act`` had to stop.
            return tell_error(command, error, form)
    except (SystemExit, KeyboardInterrupt) as error:
        if signals.received is None:
            return tell_exit(error)
        sys.stderr.write(f"{command}: interrupted\n")
    except (EOFError, ConnectionError):
        if signals.received is None:
            raise
        # A signal to all processes of a job has ended those of an environment, say. Other errors keep their exit code:
        # that of a signal promises an orderly end.
        log.exception("this came while the command ended at a signal")
    finally:
        signals.ignore()
    return signals.exit_code


def _require_descriptors() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < LEAST_FILES:  # No limit is -1.
        raise PluginError(f"open files: expected a limit of at least {LEAST_FILES}, found {soft}: raise it (ulimit -n)")


def _require_directory() -> None:
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"expected a current directory, found none: {error.strerror}; it was removed: cd to another one, or to its "
            "path again"
        ) from error


def tell_exit(error: BaseException) -> int:
    """Log where a user's part raised SystemExit or KeyboardInterrupt; return the exit code of any other exception."""
    message = f"one of your parts raised {error!r}, which would end this process in silence"
    if log.isEnabledFor(logging.CRITICAL):
        log.critical("%s", message, exc_info=error)
    else:  # A part has turned the log off.
        sys.stderr.write("".join(traceback.format_exception(error)) + message + "\n")
    return 1


def tell_error(command: str, error: CrossborderError, form: LogFormat) -> int:
    """Tell the user why a command fails and where to read on: as a log record in json, else as text on stderr.

    Returns:
        The exit code of the error.
    """
    log_fault(error)
    code = error.exit_code
    lines = [*escape_lines(str(error)), f"exit code {code}: docs/exit-codes.md#exit-code-{code}"]
    if form == "json":
        log.critical("%s", "\n".join(lines))
    else:
        sys.stderr.write("".join(f"{command}: {line}\n" for line in lines))
    return code


@dataclass(frozen=True)
class Check(Generic[SubjectT]):
    """A check of a subject, such as a host, and advice to a user for whom it fails."""

    name: str
    run: Callable[[SubjectT], str]
    advice: str
    is_vital: bool = False
    """Whether the later checks are left out if this check fails, since they would fail too."""


def run_checks(checks: Sequence[Check[SubjectT]], subject: SubjectT, out: TextIO) -> None:
    """Run all checks; write a line for each at once, and advice below those that fail.

    Raises:
        CrossborderError: the error of the first check that failed.
    """
    failures: list[CrossborderError] = []
    width = 2 + max(len(check.name) for check in checks)
    for check in checks:
        try:
            out.write(f"pass  {check.name:<{width}}{escape(check.run(subject))}\n")
        except CrossborderError as error:
            indent = " " * (6 + width)
            found = f"\n{indent}".join(escape_lines(str(error)))
            out.write(f"FAIL  {check.name:<{width}}{found}\n{indent}to do: {check.advice}\n")
            failures.append(error)
            if check.is_vital:
                break
        out.flush()
    if failures:
        raise failures[0]
