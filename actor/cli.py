"""``actor-worker``: actors on this host for a learner on another."""

from __future__ import annotations

import argparse
import logging
import sys

from actor.manager import ActorManager
from common.errors import ConfigError, CrossborderError
from common.log import setup_logging
from common.signals import StopSignals

log = logging.getLogger(__name__)
EXAMPLES = """examples:
  actor-worker --learner gpu-host:50051                  one actor in this process
  actor-worker --learner gpu-host:50051 --num-actors 8   eight, each a process of its own, restarted when they die

Everything else comes from the learner. exit codes: docs/exit-codes.md"""
STOP_SECONDS = 20.0
"""More than a worker takes to hand over what it has."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "actor-worker", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--learner", required=True, metavar="HOST:PORT", help="where the learner server listens")
    made.add_argument("--num-actors", type=int, default=1, metavar="N", help="actors on this host (default: 1)")
    made.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long to look for the learner (default: 120)",
    )
    made.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return made


def _run_one(arguments: argparse.Namespace, signals: StopSignals) -> None:
    from actor.worker import Actor, run_actor

    actor = Actor(arguments.learner, arguments.patience)
    signals.on_stop = actor.stop
    run_actor(actor)


def _run_many(arguments: argparse.Namespace, signals: StopSignals) -> None:
    failures: list[CrossborderError] = []

    def on_failure(error: CrossborderError) -> None:
        log.error("a worker is not started again: %s", error)
        failures.append(error)

    manager = ActorManager(arguments.learner, arguments.num_actors, on_failure, arguments.patience)
    signals.on_stop = manager.ask_to_stop
    manager.wait()
    for stat in manager.stop_and_join(STOP_SECONDS):
        sys.stdout.write(f"actor {stat.actor_id}: {stat.env_steps} steps in {stat.duration:.1f} s\n")
    if failures:
        raise failures[0]


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    setup_logging(arguments.log_level)
    signals = StopSignals()
    try:
        if arguments.num_actors < 1:
            raise ConfigError(f"--num-actors: expected at least 1, found {arguments.num_actors}")
        (_run_one if arguments.num_actors == 1 else _run_many)(arguments, signals)
    except CrossborderError as error:
        if signals.received is None:
            sys.stderr.write(f"actor-worker: {error}\n")
            return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("actor-worker: interrupted\n")
    return signals.exit_code


if __name__ == "__main__":
    sys.exit(main())
