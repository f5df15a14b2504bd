"""Asking a learner or an acting service whether it serves, through the standard gRPC health service."""

from __future__ import annotations

from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import CrossborderError, LearnerUnreachableError
from common.wire.address import join_address, split_address
from common.wire.channel import hint_at_server, open_channel, watch_credentials
from common.wire.endpoints import Endpoint, find_endpoints, split_addresses
from common.wire.rpc import describe, typed_error
from common.wire.trust import Trust

SERVICE: Final = ""
"""The whole server. A learner and an acting service have different gRPC services, and both tell this health."""


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
