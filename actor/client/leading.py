"""Whether an actor follows a learner that leads it to another one: only where it may trust that one as much."""

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
    """Where an actor goes that is led from ``here`` to ``elsewhere``.

    A learner that nothing has authenticated could be anybody, and an actor lets a learner on its own host name any
    code. So an actor goes from this host to no other host and from no other host to this one, and without TLS only to
    hosts that its user has named. With TLS the certificate of the other learner is checked as that of the first was.

    A learner that listens on all addresses is named by its host's name. An actor on that host, which has reached the
    first learner on loopback, reaches the other one there too.

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
        raise RefusedError("an actor on the learner's host is led to no other host, and one elsewhere not to loopback")
    if not (trust.uses_tls(host) or is_loopback(host) or host in listed):
        raise RefusedError(f"without TLS an actor is led only to hosts that --learner names; name {host} there too")
    return Endpoint(join_address(host, port), host)
