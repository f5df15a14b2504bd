"""Every error that a user can meet, as one tree. Each message names the expected and the found value.

    CrossborderError                     exit code
    ├── ConfigError                       2   a configuration, option or override is wrong
    ├── PluginError                       3   a `module:attr` cannot be loaded or does not fit
    ├── RunDirectoryError                 4   the run directory is taken, locked or not writable
    ├── AddressError                      5   an address cannot be listened on
    ├── LearnerUnreachableError           6   no learner has answered in time
    ├── ProtocolMismatchError             7   the two sides speak different protocol versions
    ├── SchemaMismatchError               8   items do not have the columns that both sides agreed on
    ├── RefusedError                      9   the learner refused a request or items of an actor
    ├── BudgetExhaustedError             10   training ended before the target score was reached
    ├── ChildFailedError                 11   a child process keeps dying
    ├── CheckpointError                  12   a model cannot be saved, read, or does not fit
    ├── StarvedError                     13   no items arrived for too long
    ├── DatasetError                     14   a dataset cannot be read, or cannot be trained from
    ├── AuthenticationError              15   learner and actor do not accept each other's credentials
    ├── DivergedError                    16   a loss or a score is NaN or infinite
    ├── EnvHungError                     17   an environment does not return
    ├── HostUnreachableError             18   a host cannot be reached by ssh, or its connection broke
    ├── RankLostError                    19   another rank of this training has ended, or does not answer
    └── TakenOverError                   20   another learner has taken over this run

0 is success; 128 + n means that signal n ended the command (130 Ctrl-C, 143 SIGTERM) after an orderly shutdown.
`docs/exit-codes.md` says how to resolve each error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class CrossborderError(Exception):
    """Base of all errors that are raised on purpose; ``exit_code`` is the exit code of a command that fails with it."""

    exit_code = 1


class ConfigError(CrossborderError):
    exit_code = 2


class PluginError(CrossborderError):
    exit_code = 3


class FaultError(PluginError):
    """The code of a user's part raised an exception, the cause of this error, while it was imported or built.

    A command that ends with it, and a child process, log the traceback of the cause before the message. The exit code
    is that of every fault in a user's code: a process of an actor is started again after it.
    """

    exit_code = CrossborderError.exit_code


class RunDirectoryError(CrossborderError):
    exit_code = 4


class AddressError(CrossborderError):
    exit_code = 5


class LearnerUnreachableError(CrossborderError):
    exit_code = 6


class ProtocolMismatchError(CrossborderError):
    exit_code = 7


class SchemaMismatchError(CrossborderError):
    exit_code = 8


@dataclass(frozen=True)
class BadValue:
    """A value that a column may not hold, and the first row that holds it."""

    column: str
    expected: str
    found: str
    row: int

    def at(self, place: str) -> str:
        """The message, with ``place`` instead of the row's index: a name by which the reader knows the row."""
        return f"column '{self.column}': expected {self.expected}, found {self.found} in {place}"

    def __str__(self) -> str:
        return self.at(f"row {self.row}")


class RefusedError(CrossborderError):
    """The learner refused a request or items.

    Args:
        message: for people.
        reason: one word by which refusals are counted.
        bad: the value that was refused, if a single value is the reason.
    """

    exit_code = 9

    def __init__(self, message: str, reason: str = "", bad: BadValue | None = None) -> None:
        super().__init__(message)
        self.reason, self.bad = reason, bad


class BudgetExhaustedError(CrossborderError):
    exit_code = 10


class ChildFailedError(CrossborderError):
    exit_code = 11


class CheckpointError(CrossborderError):
    exit_code = 12


class NotInPlaceError(CheckpointError):
    """The directory of a run is not at its path; it may be put back."""


class StarvedError(CrossborderError):
    exit_code = 13


class DatasetError(CrossborderError):
    exit_code = 14


class AuthenticationError(CrossborderError):
    exit_code = 15


class DivergedError(CrossborderError):
    exit_code = 16


class EnvHungError(CrossborderError):
    exit_code = 17


class HostUnreachableError(CrossborderError):
    exit_code = 18


class RankLostError(CrossborderError):
    exit_code = 19


class TakenOverError(CrossborderError):
    exit_code = 20


def by_exit_code(code: int, message: str) -> CrossborderError:
    """The error of the tree above that has this exit code; an unknown code gives a plain ``CrossborderError``."""
    for kind in CrossborderError.__subclasses__():
        # Subclasses in other modules that set no exit code are left out: they inherit 1, the code of any failure.
        if kind.exit_code == code != CrossborderError.exit_code:
            return kind(message)
    return CrossborderError(message)


def describe_error(error: BaseException) -> str:
    """The class and the message of an exception of foreign code, whose ``__str__`` may raise too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as other:  # noqa: BLE001 - foreign code may raise anything
        return f"{type(error).__name__} (its message is missing: __str__ has raised {type(other).__name__})"


def show(value: object) -> str:
    """A value in a message: in one line, which an array's ``repr`` is not, and of 80 characters at most."""
    return " ".join(f"{value!r:.80}".split())


@contextmanager
def naming_failed_part(what: str) -> Iterator[None]:
    """A context that calls a part, which may raise anything.

    Raises:
        PluginError: in the place of a ``FaultError`` and of an error that is no ``CrossborderError``; its message
            begins with ``what``.
    """
    try:
        yield
    except FaultError as error:
        raise PluginError(f"{what}: {error}") from error
    except CrossborderError:
        raise
    except Exception as error:
        raise PluginError(f"{what}: {describe_error(error)}") from error
