"""``policy-server``: gives actions of a saved policy to programs in any language, over a network."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from common.process.command import Parser, as_path, run_service
from common.process.log import RateFilter, quiet_grpc
from common.process.signals import StopSignals
from learner.commands.policy_command import add_policy_options, find_policy

if TYPE_CHECKING:
    from crossborder.serving.serving_config import ServingConfig

log = logging.getLogger(__name__)
LOGGED_PER_SECOND, LOGGED_AT_ONCE = 10.0, 1000
"""Lines of the log: a stranger cannot fill the disk."""
EXAMPLES = """\
  policy-server --run runs/cartpole-20261121-085026-3f2a/best                  for programs of this user on this host
  policy-server --run runs/cartpole-20261121-085026-3f2a/best --listen 0.0.0.0:50060 \\
      --listen-certificate host.pem --listen-key host.key --token-file clients.tokens           for other hosts too
  policy-server --run runs/cartpole-20261121-085026-3f2a/best --set max_wait_ms=0 --set resume_seconds=600
  policy-server --config serving.yaml --run runs/drone-20261121-085026-3f2a/final --allow drone

A client needs no Python: protos/crossborder/v1/acting.proto and docs/acting-service.md describe what it sends.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("policy-server", __doc__, EXAMPLES)
    add_policy_options(made)
    made.add_argument("--config", type=as_path, metavar="FILE", help="a YAML file with settings of the service")
    made.add_argument("--listen", metavar="HOST:PORT", help="where it listens for clients (default: 127.0.0.1:50060)")
    made.add_argument(
        "--websocket", metavar="HOST:PORT", help="where it listens for clients that speak WebSocket (default: nowhere)"
    )
    files = {
        "--listen-certificate": "the service's certificate",
        "--listen-key": "the private key of that certificate",
        "--listen-client-ca": "authorities that must have issued the clients' certificates (default: they need none)",
        "--token-file": "the file of the clients' tokens",
    }
    for option, text in files.items():
        made.add_argument(option, type=as_path, metavar="FILE", help=text)
    made.add_argument("--metrics", metavar="HOST:PORT", help="where it offers /metrics (default: nowhere)")
    made.add_argument("--explore", action="store_true", help="explore, as in training (default: act greedily)")
    made.add_argument(
        "--insecure", action="store_true", help="listen beyond this host without encryption and without tokens"
    )
    made.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="KEY.KEY=VALUE",
        help="a setting of the service; repeatable",
    )
    return made


def _read_config(arguments: argparse.Namespace) -> ServingConfig:
    """The settings that the words of the command line ask for, checked.

    Raises:
        ConfigError: a setting is wrong.
    """
    from common.config.nested import assign, read_yaml
    from common.settings import validate
    from crossborder.serving.serving_config import ServingConfig

    values: dict[str, Any] = read_yaml(arguments.config) if arguments.config is not None else {}
    for key in ("listen", "websocket", "token_file", "metrics"):
        if getattr(arguments, key) is not None:
            values[key] = str(getattr(arguments, key))
    for key in ("insecure", "explore"):
        if getattr(arguments, key):
            values[key] = True
    tls = {
        "certificate": arguments.listen_certificate,
        "key": arguments.listen_key,
        "client_ca": arguments.listen_client_ca,
    }
    if given := {key: str(value) for key, value in tls.items() if value is not None}:
        values["tls"] = {**(values.get("tls") or {}), **given}
    for setting in arguments.settings:
        assign(values, setting)
    config = validate(ServingConfig, values)
    config.check()
    return config


async def _serve(arguments: argparse.Namespace, config: ServingConfig, signals: StopSignals) -> None:
    from crossborder.serving.serving import Places, serve
    from learner.evaluation.policy import load_policy

    find_policy(arguments)
    place = arguments.run / arguments.checkpoint
    policy = load_policy(place, arguments.allow)
    if config.explore:
        policy.explore()
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        loop.call_soon_threadsafe(stopped.set)

    def tell(places: Places) -> None:
        log.info("%s acts for clients on %s", place, places.address)
        if places.websocket is not None:
            log.info("WebSocket on %s", places.websocket)
        if places.metrics_port is not None:
            log.info("metrics on port %d", places.metrics_port)

    signals.on_stop = stop
    await serve(policy, config, stopped, tell)


def _run(arguments: argparse.Namespace, signals: StopSignals) -> None:
    quiet_grpc(arguments.log_format)
    logging.getLogger().handlers[0].addFilter(RateFilter(LOGGED_PER_SECOND, LOGGED_AT_ONCE))
    asyncio.run(_serve(arguments, _read_config(arguments), signals))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_service(parser(), argv, _run)


if __name__ == "__main__":
    sys.exit(main())
