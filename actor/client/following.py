"""A learner may lead an actor to another learner. The actor follows only if it may trust the other learner as much."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Final

from common.errors import RefusedError
from common.wire.address import is_loopback, join_address, split_address
from common.wire.endpoints import Endpoint
from common.wire.trust import Trust

MAX_ADDRESS: Final = 300
"""Characters of an address that a learner names."""


def follow(here: Endpoint, elsewhere: str, trust: Trust, listed: Sequence[str]) -> Endpoint:
    """The endpoint to which the learner at ``here`` leads an actor, if the actor may follow.

    A learner on the actor's host may name any code, and a learner without TLS could be anybody. So a learner on the
    actor's host cannot lead the actor to another host, and a learner on another host cannot lead it to its own host.
    Without TLS, an actor follows only to hosts that its user has named. With TLS, it checks the certificate of the
    other learner as it checked that of the first.

    A learner that listens on all addresses is named by its host's name. An actor that has reached the first learner on
    loopback reaches the other learner of that host on loopback too.

    Args:
        here: the learner that leads.
        elsewhere: HOST:PORT, as that learner says.
        trust: of the actor.
        listed: the hosts that the user has named.

    Raises:
        RefusedError: the actor may not go there.
        ConfigError: it is no HOST:PORT.
    """
    if len(elsewhere) > MAX_ADDRESS or not re.fullmatch(r"[\w.:\[\]-]+", elsewhere, re.ASCII):
        raise RefusedError(f"expected HOST:PORT of at most {MAX_ADDRESS} characters, found {elsewhere[:MAX_ADDRESS]!a}")
    host, port = split_address(elsewhere)
    if is_loopback(here.name) and host == socket.gethostname():
        host = here.name
    if is_loopback(host) != is_loopback(here.name):
        raise RefusedError("a learner on the actor's host may lead it only to this host, and others to other hosts")
    if not (trust.uses_tls(host) or is_loopback(host) or host in listed):
        raise RefusedError(f"without TLS an actor follows only to hosts that --learner names; name {host} there too")
    return Endpoint(join_address(host, port), host)
