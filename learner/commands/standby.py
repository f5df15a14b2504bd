"""``learner-server --standby``: keeps a run alive.

The process that the user starts is the keeper. It runs the learner as a child, which is forked from a process that has
imported torch and all of crossborder that a learner needs. If the learner is killed, or ends with an exception, another
one is forked, and goes on with the run as ``--resume`` does, seconds earlier than a new Python could.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, Self

from common.config.run_config import RunConfig, dump_config
from common.errors import ChildFailedError, ConfigError, CrossborderError, RunDirectoryError
from common.plugins.shipped import OWN_PACKAGES
from common.process.child import Child, may_restart_help
from common.process.command import run_until_signal
from common.process.fork_server import ForkServer
from common.process.log import setup_logging
from common.process.signals import StopSignals
from common.process.standard_streams import answers, own_streams
from common.process.supervisor import Supervisor
from learner.commands.training_command import load_run, require_consistent
from learner.ranks.place import RANKS, count_ranks
from learner.storage.rundir import default_run_dir, find_work, read_identity

log = logging.getLogger(__name__)
OPTION: Final = "--standby"
CHILD: Final = "learner.commands.standby_child"
"""The module of the learner's process."""
SERVER: Final = "learner.loop.server"
"""The module that trains; it imports torch."""
IMPORTS: Final = (SERVER, "learner.records.progress")
"""The modules that ``learner-server`` imports when it trains, besides the parts of the configuration."""
ENDS: Final = frozenset(code for code in range(256) if code == 0 or not may_restart_help(code))
"""Exit codes with which a learner has ended for good."""
LOOK_SECONDS: Final = 1.0
"""The time between two looks for the run that the first learner begins."""


class Keeper:
    """Keeps a learner running. Use it once, as a context manager; at its end all its processes have ended.

    Raises:
        ChildFailedError: crossborder cannot be imported in another process.
        OSError: the host has no process or memory for a learner.
    """

    def __init__(self, config: RunConfig, arguments: argparse.Namespace, words: Sequence[str]) -> None:
        self._run_dir = config.run_dir or default_run_dir(config.name)
        self._config = config.model_copy(update={"run_dir": self._run_dir})
        self._words = [word for word in words if word != OPTION]
        self._resume = [] if arguments.resume else ["--resume"]
        self._is_first = True
        self._former_id = None if arguments.resume else self._find_run()
        """The run that was in the directory before: if it has no row, a new one takes its place."""
        self._run_id: str | None = None
        """The run that the learner trains; None until it was seen in its directory."""
        self._is_interrupted = False
        """Whether a signal came while no learner ran."""
        self._given_up: CrossborderError | None = None
        with ExitStack() as stack:
            self._output_fds = [os.dup(stream.fileno()) for stream in (answers(), sys.stderr)]
            for fd in self._output_fds:
                stack.callback(os.close, fd)
            self._learners = ForkServer([*find_imports(config), CHILD], self._output_fds)
            stack.callback(self._learners.end)
            self._learners.begin_here(SERVER)
            self._supervisor = Supervisor(self._start, self._give_up, ENDS)
            stack.callback(self._end_learner)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _end_learner(self) -> None:
        self._supervisor.stop_watching()
        self._supervisor.child.kill()
        self._supervisor.child.end(1.0)

    def _start(self) -> Child:
        """Start the learner: first as the user said, later with ``--resume``.

        Raises:
            RunDirectoryError: the run is no longer in its directory, where ``--resume`` would begin another one, or go
                on with one.
            ConfigError: a file of certificates or tokens cannot be used at this moment; the supervisor tries again.
        """
        words = self._words
        if not self._is_first:
            self._config.server.check()
            self._require_run()
            self._former_id = None  # A learner that died before it took the place of the former run leaves that one.
            words = [*words, *self._resume]
        self._is_first = False
        boot = {"words": words, "config": dump_config(self._config), "output_fds": self._output_fds}
        return self._learners.start_child("learner", CHILD, boot)

    def _require_run(self) -> None:
        """Raise RunDirectoryError if the run that the learner trained is neither in its directory nor mirrored."""
        if self._run_id is None:
            return
        is_away = not find_work(self._run_dir)
        if is_away and self._config.storage.mirror is not None:
            return  # The learner restores it.
        if is_away or read_identity(self._run_dir).run_id != self._run_id:
            found = "none" if is_away else "another"
            raise RunDirectoryError(
                f"{self._run_dir}: expected the run that the learner trained, found {found}: "
                "the directory was renamed, removed or replaced, or its disk is no longer mounted; put it back, and go "
                "on with --resume"
            )

    def _find_run(self) -> str | None:
        """The id of the run in the directory; None if there is none."""
        with suppress(OSError, RunDirectoryError):
            return read_identity(self._run_dir).run_id
        return None

    def _give_up(self, error: CrossborderError) -> None:
        self._given_up = error

    def stop(self, number: int) -> None:
        """Pass a signal on to the learner, which is not started again; from any thread but the supervisor's."""
        self._is_interrupted = True
        self._supervisor.stop_watching()
        if self._supervisor.child.poll() is None:
            self._is_interrupted = False
            self._supervisor.child.signal(number)
        else:
            self._learners.end()  # If it still imports, the supervisor waits for it to start the next learner.

    def wait(self) -> int:
        """Wait until the learner has ended for good; return the exit code of the command.

        Raises:
            ChildFailedError: the learner was killed too often.
            RunDirectoryError: the run is no longer in its directory.
            KeyboardInterrupt: a signal came between the end of a learner and the start of the next one.
        """
        while not self._supervisor.wait(LOOK_SECONDS):
            if self._run_id is None and (found := self._find_run()) != self._former_id:
                self._run_id = found
        code = self._supervisor.child.wait(math.inf)
        assert code is not None
        # A learner that fails too often has told its error, and ends the command with its own exit code.
        if self._given_up is not None and (code < 0 or not isinstance(self._given_up, ChildFailedError)):
            raise self._given_up
        if self._is_interrupted and code not in ENDS:
            raise KeyboardInterrupt
        return code if code >= 0 else 128 - code


def find_imports(config: RunConfig) -> list[str]:
    """The modules of crossborder that a learner with this configuration imports.

    The user's modules are left out, since their import may start threads or a simulator, which no fork survives: each
    learner imports them for itself.
    """
    learner_builds_no_env = {"env"} if config.env.spaces is not None else set()
    targets = _find_targets(config.model_dump(exclude=learner_builds_no_env))
    modules = {target.partition(":")[0] for target in targets}
    return [*IMPORTS, *sorted(module for module in modules if module.partition(".")[0] in OWN_PACKAGES)]


def _find_targets(value: Any) -> Iterator[str]:
    """All parts that plain values name as ``target``."""
    if isinstance(value, dict):
        if isinstance(target := value.get("target"), str):
            yield target
        for each in value.values():
            yield from _find_targets(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _find_targets(each)


def keep_running(parser: argparse.ArgumentParser, arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run ``learner-server --standby``; return its exit code, which is that of the last learner."""
    require_consistent(parser, arguments)
    ended = list[int]()

    def keep(signals: StopSignals) -> None:
        if count_ranks() > 1:
            raise ConfigError(
                f"{OPTION}: expected a learner without other ranks, found {RANKS}={os.environ[RANKS]}: torchrun starts "
                "ranks again (--max-restarts)"
            )
        with Keeper(load_run(arguments), arguments, words) as keeper:
            signals.on_stop = lambda: keeper.stop(signals.received or signal.SIGTERM)
            ended.append(keeper.wait())

    with own_streams():
        setup_logging(arguments.log_level, arguments.log_format)
        code = run_until_signal(parser.prog, arguments.log_format, keep)
    return ended[0] if ended else code
