"""The main function of a worker that ``ActorManager`` starts."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from actor.stat import ActorStat
from common.cores import bind
from common.errors import ConfigError, CrossborderError
from common.process.child import keep_buffers, on_hang_up, read_boot, say, say_error, wait_for_hang_up
from common.process.log import setup_logging
from common.process.signals import StopSignals
from common.process.supervisor import FILES_SECONDS
from common.settings import HomePath, Settings

log = logging.getLogger(__name__)
FINISH_SECONDS: Final = 10.0
"""A worker that ends has this long to hand over its last rows, or steps, and then as long to write its recording."""


class Worker(Protocol):
    """Acts in environments."""

    def stop(self) -> None:
        """Have ``run`` end in order; from any thread."""

    def run(self) -> ActorStat:
        """Act until told to stop.

        Raises:
            CrossborderError: it cannot go on.
        """


class ActorWork(Settings):
    """What an actor does."""

    evaluates: bool = False
    """Whether it scores the trainer's candidates, and records no steps."""
    record: HomePath | None = None
    """The directory into which every whole episode is written; None: none is."""
    models: HomePath | None = None
    """The file of the trainer's models on this host, or the directory in which the actors of this host share models;
    None: the actor fetches each model for itself."""


ONLY_ACTS: Final = ActorWork()


def run_worker(worker: Worker) -> ActorStat:
    """Run a worker in a process that keeps freed memory for reuse."""
    keep_buffers()
    stat = worker.run()
    log.info("actor %d took %d steps in %.1f s", stat.actor_id, stat.env_steps, stat.duration)
    return stat


def _make_in_time(make: Callable[[Mapping[str, Any]], Worker], boot: Mapping[str, Any]) -> Worker:
    """Make a worker. One that is started again waits for files that cannot be used at this moment.

    The settings are those of its first start: so only a file that they name, such as that of its token, can be wrong.

    Raises:
        ConfigError: a file or a setting is wrong at the first start, or the parent no longer waits.
    """
    reason = ""
    while True:
        try:
            return make(boot)
        except ConfigError as error:
            if not boot["again"]:
                raise
            if reason != str(error):
                log.error("waiting until this can be used: %s", error)
            reason = str(error)
            if wait_for_hang_up(FILES_SECONDS):
                raise


def run_child(make: Callable[[Mapping[str, Any]], Worker]) -> int:
    """Run a child of ``ActorManager``: one JSON line in, one out at its end; ends with stdin; return the exit code."""
    setup_logging(form="json")
    boot = read_boot()
    try:
        if boot["cores"]:
            bind(boot["cores"])
        worker = _make_in_time(make, boot)
        on_hang_up(worker.stop)
        signals = StopSignals()
        signals.on_stop = worker.stop
        stat = run_worker(worker)
    except CrossborderError as error:
        return say_error(error)
    except (Exception, SystemExit):
        log.exception("the actor failed")
        return 1
    say({"stat": vars(stat)})
    if signals.received is not None:  # To its parent, the actor ends as if the signal had ended it at once.
        signal.signal(signals.received, signal.SIG_DFL)
        os.kill(os.getpid(), signals.received)
    return 0
