"""``actor-relay``: fetches each model once for actors that are near each other, and passes on all else."""

from __future__ import annotations

import argparse
import asyncio
import logging

from common.process.command import Parser, as_path, service_of
from common.process.log import quiet_grpc
from common.process.signals import StopSignals
from common.wire.trust import Trust, add_learner_options, read_trust

log = logging.getLogger(__name__)
EXAMPLES = """\
  actor-relay --learner gpu-host:50051 --ca ca.pem --listen 0.0.0.0:50051 \\
      --listen-certificate relay.pem --listen-key relay.key       then: actor-worker --learner relay-host:50051 …
  actor-relay --learner gpu-host:50051 --ca ca.pem --listen 127.0.0.1:50051    for actors on this host only

Actors send their own tokens; the relay passes them on and has none of its own.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("actor-relay", __doc__, EXAMPLES)
    add_learner_options(made, "the relay")
    made.add_value("--listen", "HOST:PORT", "where the relay listens", is_required=True)
    files = {
        "--listen-certificate": "the relay's certificate for the actors that connect to it",
        "--listen-key": "the private key of that certificate",
        "--listen-client-ca": "authorities that must have issued the actors' certificates (default: actors need none)",
    }
    for option, text in files.items():
        made.add_value(option, "FILE", text, as_path)
    return made


async def _serve(arguments: argparse.Namespace, signals: StopSignals) -> None:
    from crossborder.relaying.relay import RelaySettings, relay

    settings = RelaySettings(
        learner=arguments.learner,
        listen=arguments.listen,
        trust=read_trust(Trust, arguments),
        certificate=arguments.listen_certificate,
        key=arguments.listen_key,
        client_ca=arguments.listen_client_ca,
    )
    settings.check()
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        loop.call_soon_threadsafe(stopped.set)

    signals.on_stop = stop
    await relay(settings, stopped, lambda address: log.info("relay for %s listens on %s", arguments.learner, address))


def _relay(arguments: argparse.Namespace, signals: StopSignals) -> None:
    quiet_grpc(arguments.log_format)
    asyncio.run(_serve(arguments, signals))


main = service_of(parser, _relay)
