"""``actor-worker``: actors on this host for a learner on another."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from actor.manager import ActorManager
from actor.trust import Trust
from common.address import split_address
from common.errors import ConfigError, CrossborderError
from common.log import setup_logging
from common.signals import StopSignals

log = logging.getLogger(__name__)
EXAMPLES = """examples:
  actor-worker --learner 127.0.0.1:50051                  one actor in this process
  actor-worker --learner 127.0.0.1:50051 --num-actors 8   eight, each a process of its own, restarted when they die
  actor-worker --learner gpu-host:50051 --ca ca.pem --token-file actor.token

The token may come from the environment too: CROSSBORDER_TOKEN_FILE or CROSSBORDER_TOKEN.
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
    _add_trust(made)
    made.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return made


def _add_trust(made: argparse.ArgumentParser) -> None:
    files = {
        "--ca": "authorities that the learner's certificate must descend from (default: the public ones)",
        "--certificate": "this actor's own certificate, for mutual TLS",
        "--key": "the private key of that certificate",
        "--token-file": "holds this actor's token",
    }
    for option, text in files.items():
        made.add_argument(option, type=Path, metavar="FILE", help=text)
    made.add_argument("--insecure", action="store_true", help="speak to another host unencrypted")
    made.add_argument(
        "--allow",
        nargs="+",
        action="extend",
        default=[],
        metavar="MODULE",
        help="modules the learner may name parts from, those below included (default: any)",
    )


def _trust(arguments: argparse.Namespace) -> Trust:
    """What was said about trust.

    Raises:
        ConfigError: it contradicts itself.
    """
    trust = Trust(**{name: getattr(arguments, name) for name in Trust.model_fields})
    trust.uses_tls(split_address(arguments.learner)[0])
    return trust


def _run_one(arguments: argparse.Namespace, trust: Trust, signals: StopSignals) -> None:
    from actor.worker import Actor, run_actor

    actor = Actor(arguments.learner, arguments.patience, trust)
    signals.on_stop = actor.stop
    run_actor(actor)


def _run_many(arguments: argparse.Namespace, trust: Trust, signals: StopSignals) -> None:
    failures: list[CrossborderError] = []

    def on_failure(error: CrossborderError) -> None:
        log.error("a worker is not started again: %s", error)
        failures.append(error)

    manager = ActorManager(arguments.learner, arguments.num_actors, on_failure, trust, arguments.patience)
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
        run = _run_one if arguments.num_actors == 1 else _run_many
        run(arguments, _trust(arguments), signals)
    except CrossborderError as error:
        if signals.received is None:
            sys.stderr.write(f"actor-worker: {error}\n")
            return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("actor-worker: interrupted\n")
    return signals.exit_code


if __name__ == "__main__":
    sys.exit(main())
