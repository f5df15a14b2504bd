"""``actor-worker``: environments on this host, for a learner or with an acting service on another."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from actor.child_main import FINISH_SECONDS, ActorWork, run_worker
from actor.manager import ActorManager
from common.cores import bind, require_usable
from common.errors import ConfigError, CrossborderError
from common.process.command import Parser, add_settings, as_cores, as_path, at_least, positive, service_of, tell_error
from common.process.log import quiet_grpc
from common.process.signals import StopSignals
from common.process.standard_streams import answers
from common.wire.endpoints import split_addresses
from common.wire.trust import ServiceTrust, Trust, add_learner_options, read_trust

if TYPE_CHECKING:
    from actor.remote_config import RemoteConfig

log = logging.getLogger(__name__)
EXAMPLES = """\
  actor-worker --learner 127.0.0.1:50051                  one actor in this process
  actor-worker --learner 127.0.0.1:50051 --num-actors 8   eight, each a separate process, restarted when they die
  actor-worker --learner gpu-host:50051 --num-actors 12 --cores 4-15       each on a core of its own
  actor-worker --learner gpu-host:50051 --ca ca.pem --token-file actor.token
  actor-worker --learner gpu-1:50051,gpu-2:50051 --ca ca.pem …              a run with several ranks: one of them
  actor-worker --learner gpu-host:50051 --evaluate        score candidates (evaluator.process: actor)
  actor-worker --learner gpu-host:50051 --record data/episodes             and keep every whole episode as a file
  actor-worker --learner gpu-host:50051 --id 1            the actor of robot 1, with its overrides
  actor-worker --learner gpu-host:50051 --allow my_parts …                  the learner may name your own parts
  actor-worker --learner gpu-host:50051 --ca ca.pem --token-file actor.token --check   would it work from here?
  actor-worker --policy gpu-host:50060 --ca ca.pem --token-file client.token --config run.yaml
                                                          the environments are here, an acting service chooses actions
  actor-worker --policy gpu-host:50060 --ca ca.pem --token-file client.token --config run.yaml --check
  actor-worker --config robot.yaml                        the same, with policy: gpu-host:50060 in the file

The token may come from the environment too: CROSSBORDER_TOKEN_FILE or CROSSBORDER_TOKEN; with --policy
CROSSBORDER_CLIENT_TOKEN_FILE or CROSSBORDER_CLIENT_TOKEN. Everything else comes from the learner; with --policy the
environment comes from the file.
"""
STOP_SECONDS: Final = 3 * FINISH_SECONDS
"""Longer than a worker takes to put its last rows into the spool, to hand them over and to write its recording."""
_ACTOR_OPTIONS: Final = ("allow", "evaluate", "id", "record")
"""The options that only actors of a learner have."""


def parser() -> Parser:
    """The command's options."""
    made = Parser("actor-worker", __doc__, EXAMPLES)
    add_learner_options(made, "this actor", several=True, required=False)
    _add_policy_options(made)
    _add_run_options(made)
    made.add_value("--num-actors", "N", "the number of actors on this host", at_least(1), default=1)
    made.add_value(
        "--cores", "LIST", "the cores that the actors use, such as 4-15, divided among them (default: all)", as_cores
    )
    made.add_value(
        "--patience",
        "SECONDS",
        "how long to look for the learner or the acting service, at the start and after a broken "
        "connection; if there are several learners, an actor then starts over at another one",
        positive,
        default=120.0,
    )
    made.add_flag("--check", "check whether it would work from this host, and exit")
    return made


def _add_run_options(made: Parser) -> None:
    """Add the options that only actors of a learner have; ``_ACTOR_OPTIONS`` names them."""
    made.add_words(
        "--allow",
        "TARGET",
        "the code that the learner may name besides crossborder's own parts: module:attr, or a module for the "
        "classes in it and below it; any: all code (default: none; a learner on this host may name all code)",
    )
    made.add_value(
        "--id",
        "N",
        "the actor id that this actor must have, so that a robot always gets its own overrides (default: the "
        "smallest free one)",
        at_least(0),
    )
    made.add_flag(
        "--evaluate", "score the trainer's candidates instead of recording steps (with evaluator.process: actor)"
    )
    made.add_value(
        "--record",
        "DIR",
        "write every whole episode into DIR, as a dataset for offline-train and replay.sources",
        as_path,
    )


def _add_policy_options(made: Parser) -> None:
    """Add the options of workers for which an acting service chooses the actions."""
    made.add_value(
        "--policy",
        "[NAME=]HOST:PORT",
        "where an acting service listens (policy-server), which chooses the actions and sends the rows; instead "
        "of --learner; NAME is that of one of its policies (default: the first)",
    )
    made.add_value(
        "--config",
        "FILE",
        "with --policy: a YAML file with env and envs_per_actor, such as the run's own; it may name the policy too",
        as_path,
    )
    add_settings(made, "settings", "with --policy: a setting of that file; repeatable")


def _run_one(arguments: argparse.Namespace, trust: Trust, signals: StopSignals) -> None:
    from actor.worker import Actor

    tell, work = _teller(arguments), _work_of(arguments)
    actor = Actor(arguments.learner, arguments.patience, trust, tell, work=work, actor_id=arguments.id)
    signals.on_stop = actor.stop
    run_worker(actor)


def _run_remote(arguments: argparse.Namespace, trust: ServiceTrust, signals: StopSignals, config: RemoteConfig) -> None:
    from actor.remote_worker import RemoteWorker

    worker = RemoteWorker(config, arguments.patience, trust, _teller(arguments))
    signals.on_stop = worker.stop
    run_worker(worker)


def _work_of(arguments: argparse.Namespace) -> ActorWork:
    return ActorWork(evaluates=arguments.evaluate, record=arguments.record)


def _teller(arguments: argparse.Namespace) -> Callable[[CrossborderError], int]:
    return partial(tell_error, "actor-worker", form=arguments.log_format)


def _run_many(
    arguments: argparse.Namespace, trust: Trust, signals: StopSignals, remote: RemoteConfig | None = None
) -> None:
    failures: list[CrossborderError] = []

    def on_failure(error: CrossborderError) -> None:
        log.error("a worker is not started again: %s", error)
        failures.append(error)

    manager = ActorManager(
        arguments.learner if remote is None else remote.address,
        arguments.num_actors,
        on_failure,
        trust,
        arguments.patience,
        work=_work_of(arguments) if remote is None else remote,
        cores=arguments.cores or (),
    )
    signals.on_stop = manager.ask_to_stop
    manager.wait()
    for stat in manager.stop_and_join(STOP_SECONDS):
        answers().write(f"actor {stat.actor_id}: {stat.env_steps} steps in {stat.duration:.1f} s\n")
    if failures:
        raise failures[0]


def _check(arguments: argparse.Namespace, trust: Trust, _: StopSignals) -> None:
    from actor.commands.doctor import examine_all

    addresses = split_addresses(arguments.learner)
    examine_all(addresses, trust, answers(), evaluates=arguments.evaluate, actor_id=arguments.id)


def _prepare_recording(arguments: argparse.Namespace) -> None:
    """Make the directory of the recording."""
    from actor.episode_recording import make_directory

    if arguments.evaluate:
        raise ConfigError("--record: expected an actor that records steps, found --evaluate")
    make_directory(arguments.record)


def _read_remote(arguments: argparse.Namespace) -> RemoteConfig:
    """The settings of a worker whose policy is an acting service."""
    from actor.remote_config import read_remote_config

    unset = parser().get_default
    if given := [f"--{name}" for name in _ACTOR_OPTIONS if getattr(arguments, name) != unset(name)]:
        raise ConfigError(
            f"--policy: expected none of {', '.join(f'--{name}' for name in _ACTOR_OPTIONS)} beside it, found "
            f"{', '.join(given)}: the acting service is the actor"
        )
    if arguments.config is None and not arguments.settings:
        raise ConfigError("--policy: expected --config FILE beside it, which names the environment")
    return read_remote_config(arguments.config, arguments.policy, arguments.settings)


def _run(arguments: argparse.Namespace, signals: StopSignals) -> None:
    # 1. Who chooses the actions.
    quiet_grpc("text" if arguments.num_actors > 1 else arguments.log_format)
    has_policy = arguments.policy is not None or arguments.config is not None or bool(arguments.settings)
    if (arguments.learner is not None) == has_policy:
        found = "both" if has_policy else "neither"
        raise ConfigError(
            f"expected one of --learner and --policy (with --config), found {found}: a learner's actor acts itself, "
            "or an acting service chooses the actions"
        )
    remote = _read_remote(arguments) if has_policy else None
    # 2. What would fail only later, in each worker: its id, the directory of its recording, its cores.
    if arguments.id is not None and arguments.num_actors > 1:
        raise ConfigError(f"--id: expected one actor, found --num-actors {arguments.num_actors}")
    if arguments.record is not None:
        _prepare_recording(arguments)
    if arguments.cores is not None:
        require_usable(arguments.cores, "--cores")
        bind(arguments.cores)
    # 3. Check, or run one worker in this process, or several as children.
    if remote is not None and arguments.check:
        from actor.commands.service_doctor import examine_service

        examine_service(remote, read_trust(ServiceTrust, arguments, remote.address), answers())
        return
    if remote is not None:
        act = _run_remote if arguments.num_actors == 1 else _run_many
        act(arguments, read_trust(ServiceTrust, arguments, remote.address), signals, remote)
        return
    run = _check if arguments.check else _run_one if arguments.num_actors == 1 else _run_many
    run(arguments, read_trust(Trust, arguments), signals)


main = service_of(parser, _run)
