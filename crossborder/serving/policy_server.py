"""``policy-server``: gives actions of a policy to programs in any language, over a network."""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from common.errors import ConfigError
from common.process.command import Parser, add_settings, as_path, positive, service_of, tell_error
from common.process.log import RateFilter, quiet_grpc
from common.process.signals import StopSignals
from common.process.standard_streams import answers
from common.wire.endpoints import split_addresses
from common.wire.trust import Trust, add_learner_options, read_trust
from crossborder.policies.policy_command import RUN_HELP, add_policy_options, find_policy

if TYPE_CHECKING:
    from crossborder.serving.serving import Places
    from crossborder.serving.serving_config import ServingConfig

log = logging.getLogger(__name__)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""It becomes the name of a directory, too."""
LOGGED_PER_SECOND, LOGGED_AT_ONCE = 10.0, 1000
"""Lines of the log: a stranger cannot fill the disk."""
EXAMPLES = """\
  policy-server --run runs/cartpole-20261121-085026-3f2a/best                  for programs of this user on this host
  policy-server --run runs/cartpole-20261121-085026-3f2a/best --listen 0.0.0.0:50060 \\
      --listen-certificate host.pem --listen-key host.key --listen-tokens clients.tokens        for other hosts too
  policy-server --run runs/cartpole-20261121-085026-3f2a/best --set max_wait_ms=2 --set resume_seconds=600
  policy-server --config serving.yaml --run runs/drone-20261121-085026-3f2a/final --allow drone
  policy-server --run runs/cartpole-20261121-085026-3f2a/best --record data/episodes   and keep every whole episode
  policy-server --run easy=runs/easy --run hard=runs/hard/best         two policies, of which each session chooses one
  policy-server --run runs/easy --listen 0.0.0.0:50060 --check                     would it work here?
  policy-server --learner gpu-host:50051 --ca ca.pem --token-file actor.token      an actor whose clients are its lanes

Options whose names begin with --listen are about clients. --ca, --certificate, --key, --token-file and --insecure are
about the learner. A client needs no Python: protos/crossborder/v1/acting.proto and docs/acting-service.md describe
what it sends.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("policy-server", __doc__, EXAMPLES)
    made.add_argument(
        "--run",
        type=_as_named_run,
        action="append",
        metavar="[NAME=]DIR",
        help=f"{RUN_HELP}; repeatable, each time with a NAME by which clients choose the policy",
    )
    add_policy_options(made, namer="the policy or the learner")
    add_learner_options(made, "the service", several=True, required=False)
    made.add_value(
        "--patience",
        "SECONDS",
        "how long to look for the learner, at the start and after a broken connection",
        positive,
        default=120.0,
    )
    made.add_flag("--check", "check whether the service would work here, and exit")
    made.add_value("--config", "FILE", "a YAML file with settings of the service", as_path)
    _add_client_options(made)
    made.add_value(
        "--metrics",
        "HOST:PORT",
        "where it offers /metrics, /healthz, and at / a page for people on its host (default: nowhere)",
    )
    made.add_value("--device", "DEVICE", "where the policy computes, such as cuda (default: cpu)")
    made.add_value(
        "--record",
        "DIR",
        "write every whole episode into DIR, as a dataset for offline-train and replay.sources",
        as_path,
    )
    made.add_flag(
        "--explore",
        "explore, as in training, with a saved policy (default: act greedily); with a learner it always explores",
    )
    add_settings(made, "settings", "a setting of the service; repeatable")
    return made


def _add_client_options(made: Parser) -> None:
    """Add the options that say where clients come in, and who may."""
    made.add_value("--listen", "HOST:PORT", "where it listens for clients (default: 127.0.0.1:50060)")
    made.add_value("--websocket", "HOST:PORT", "where it listens for clients that speak WebSocket (default: nowhere)")
    files = {
        "--listen-certificate": "the service's certificate",
        "--listen-key": "the private key of that certificate",
        "--listen-client-ca": "authorities that must have issued the clients' certificates (default: they need none)",
        "--listen-tokens": "the file of the clients' tokens",
    }
    for option, text in files.items():
        made.add_value(option, "FILE", text, as_path)
    made.add_flag("--listen-insecure", "listen beyond this host without encryption and without tokens")


def _as_named_run(text: str) -> tuple[str, Path]:
    """The type of ``--run``: a policy's name, or none, and a directory. A directory whose name has a = is no name."""
    name, equals, directory = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        return "", as_path(text)
    if not _NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f"expected a name of up to 64 letters, digits, hyphens, dots and underscores before the =, found '{name}'"
        )
    return name, as_path(directory)


def _read_config(arguments: argparse.Namespace) -> ServingConfig:
    """The settings that the words of the command line ask for."""
    from common.config.nested import assign, put, read_yaml
    from common.settings import validate
    from crossborder.serving.serving_config import ServingConfig

    # Options replace what the file says, and --set replaces options.
    values: dict[str, Any] = read_yaml(arguments.config) if arguments.config is not None else {}
    given_texts = {
        "listen": arguments.listen,
        "websocket": arguments.websocket,
        "token_file": arguments.listen_tokens,
        "metrics": arguments.metrics,
        "device": arguments.device,
        "record": arguments.record,
    }
    values |= {key: str(text) for key, text in given_texts.items() if text is not None}
    flags = {"insecure": arguments.listen_insecure, "explore": arguments.explore}
    values |= {key: True for key, is_given in flags.items() if is_given}
    tls = {
        "certificate": arguments.listen_certificate,
        "key": arguments.listen_key,
        "client_ca": arguments.listen_client_ca,
    }
    for key, path in tls.items():
        if path is not None:
            put(values, f"tls.{key}", str(path))
    for setting in arguments.settings:
        assign(values, setting)
    config = validate(ServingConfig, values)
    if arguments.learner is not None and (chosen := {"explore", "seed"} & config.model_fields_set):
        raise ConfigError(
            f"{', '.join(sorted(chosen))}: expected a saved policy beside it: a learner decides it itself"
        )
    return config


def _check(arguments: argparse.Namespace, config: ServingConfig) -> None:
    from crossborder.serving.checking import ServingHost, examine

    places = {} if arguments.run is None else _find_policies(arguments)
    learners = [] if arguments.learner is None else split_addresses(arguments.learner)
    trust = Trust() if arguments.learner is None else read_trust(Trust, arguments)
    examine(ServingHost(config, places, arguments.allow), learners, trust, answers())


def _serve_saved_policy(arguments: argparse.Namespace, config: ServingConfig, signals: StopSignals) -> None:
    import torch

    from common.process.child import keep_buffers
    from crossborder.serving.saved_policies import opening
    from crossborder.serving.serving import serve

    torch.set_num_threads(1)
    keep_buffers()
    places, stopped = _find_policies(arguments), threading.Event()
    signals.on_stop = stopped.set
    source = ", ".join(f"{name}={place}" if name else str(place) for name, place in places.items())
    with opening(places, arguments.allow, config) as policies:
        asyncio.run(serve(policies, config, stopped.is_set, partial(_tell_places, source)))


def _find_policies(arguments: argparse.Namespace) -> dict[str, Path]:
    """The directory of each saved policy, by name."""
    names = [name for name, _ in arguments.run]
    if len(names) > 1 and ("" in names or len({*names}) < len(names)):
        found = ", ".join(f"{name}={run}" if name else str(run) for name, run in arguments.run)
        raise ConfigError(f"--run: expected NAME=DIR for each of several policies, with different names, found {found}")
    return {name: Path(*find_policy(run, arguments.checkpoint)) for name, run in arguments.run}


def _serve_run(arguments: argparse.Namespace, config: ServingConfig, signals: StopSignals) -> None:
    from actor.child_main import ActorWork, run_worker
    from actor.episode_recording import make_directory
    from actor.worker import Actor
    from crossborder.serving.acting_for_clients import ActingForClients

    if config.record is not None:
        make_directory(config.record)
    tell = partial(tell_error, "policy-server", form=arguments.log_format)
    act = ActingForClients(arguments.learner, config, partial(_tell_places, arguments.learner))
    trust, work = read_trust(Trust, arguments), ActorWork(record=config.record)
    actor = Actor(arguments.learner, arguments.patience, trust, tell, work=work, act=act)
    signals.on_stop = actor.stop
    run_worker(actor)


def _tell_places(source: str, places: Places) -> None:
    log.info("%s acts for clients on %s", source, places.address)
    if places.websocket is not None:
        log.info("WebSocket on %s", places.websocket)
    if places.metrics_port is not None:
        log.info("metrics on port %d, and at / a page for people on this host", places.metrics_port)


def _require_used(arguments: argparse.Namespace) -> None:
    """Refuse options that would do nothing: those about trust beside --run, a checkpoint beside --learner."""
    about_learner = ("ca", "certificate", "key", "token_file", "insecure")
    beside, idle = ("--run", about_learner) if arguments.learner is None else ("--learner", ("checkpoint",))
    if given := [f"--{name.replace('_', '-')}" for name in idle if vars(arguments)[name]]:
        hint = "; options about clients begin with --listen" if arguments.learner is None else ""
        raise ConfigError(f"{', '.join(given)}: expected none beside {beside}{hint}")


def _run(arguments: argparse.Namespace, signals: StopSignals) -> None:
    from common.agents.torch_device import require_device

    quiet_grpc(arguments.log_format)
    logging.getLogger().handlers[0].addFilter(RateFilter(LOGGED_PER_SECOND, LOGGED_AT_ONCE))
    if (arguments.run is None) == (arguments.learner is None):
        raise ConfigError("expected one of --run and --learner: the policy is a saved one, or that of a learner")
    _require_used(arguments)
    config = _read_config(arguments)
    if arguments.check:
        _check(arguments, config)
        return
    config.check()
    require_device(config.device, "device")
    serve = _serve_run if arguments.learner is not None else _serve_saved_policy
    serve(arguments, config, signals)


main = service_of(parser, _run)
