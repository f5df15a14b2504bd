"""``crossborder-health``: asks a learner or an acting service whether it serves; containers use it as their probe."""

from __future__ import annotations

import argparse
import threading
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import CrossborderError, LearnerUnreachableError
from common.process.clocks import Backoff, Deadline
from common.process.command import Parser, command_of, positive
from common.process.standard_streams import answers
from common.wire.address import join_address, split_address
from common.wire.channel import hint_at_server, open_channel, watch_credentials
from common.wire.endpoints import Endpoint, find_endpoints, split_addresses
from common.wire.rpc import describe, typed_error
from common.wire.trust import Trust, add_learner_options, read_trust

SERVICE: Final = ""
"""The whole server. A learner and an acting service have different gRPC services, and both tell this health."""
EXAMPLES = """\
  crossborder-health --learner localhost:50051 --ca certs/ca.pem
  crossborder-health --learner gpu-host:50051 --ca ca.pem --patience 120    as soon as it serves, or after two minutes
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-health", __doc__, EXAMPLES)
    add_learner_options(made, "the caller", several=True)
    made.add_value("--timeout", "SECONDS", "how long to wait for the answer", positive, default=5.0)
    made.add_value(
        "--patience",
        "SECONDS",
        "ask again until the learner serves, for this time at most (default: ask once)",
        positive,
    )
    return made


def check_health(addresses: str, trust: Trust, seconds: float) -> None:
    """Check that a learner or an acting service at one of these addresses serves. Asks each once, until one does.

    Args:
        addresses: HOST:PORT, or several, separated by commas; see ``find_endpoints``.
        trust: as an actor's.
        seconds: to wait for each answer.

    Raises:
        LearnerUnreachableError: it does not answer within ``seconds``, or says that it does not serve.
        AuthenticationError: this host and the learner do not trust each other.
        ConfigError: a file of ``trust`` cannot be read, or its settings contradict each other.
    """
    endpoints = find_endpoints(split_addresses(addresses))
    for endpoint in endpoints:
        try:
            _check(endpoint, trust, seconds)
            break
        except CrossborderError:
            if endpoint is endpoints[-1]:
                raise


def _check(endpoint: Endpoint, trust: Trust, seconds: float) -> None:
    address, port = endpoint.address, split_address(endpoint.address)[1]
    credentials = watch_credentials(join_address(endpoint.name, port), trust).get()
    with open_channel(address, credentials, endpoint.name) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=seconds
            )
        except grpc.RpcError as error:
            reason = describe(error)
            unreachable = LearnerUnreachableError(f"{address}: {reason}{hint_at_server(address, reason)}")
            raise typed_error(error) or unreachable from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        found = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise LearnerUnreachableError(f"{address}: expected SERVING, found {found}")


def _ask(arguments: argparse.Namespace) -> None:
    """Ask until the learner serves, or once without ``--patience``; the error is that of the last answer."""
    trust, deadline, backoff = read_trust(Trust, arguments), Deadline(arguments.patience or 0.0), Backoff(highest=1.0)
    while True:
        try:
            check_health(arguments.learner, trust, arguments.timeout)
            break
        except LearnerUnreachableError:
            if deadline.passed():
                raise
            threading.Event().wait(min(backoff.next_delay(), deadline.remaining()))
    answers().write(f"{arguments.learner}: serving\n")


main = command_of(parser, _ask)
