"""Who makes a call: known before anything of the call is read."""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network
from urllib.parse import unquote

from common.wire.pb import crossborder_pb2 as pb
from common.wire.tokens import UNNAMED

HEALTH = "/grpc.health.v1.Health/"
ACTORS = f"/{pb.DESCRIPTOR.services_by_name['LearnerService'].full_name}/"


class Role(enum.StrEnum):
    """What a caller proved to be."""

    ANYONE = "anyone"
    """No token was asked for."""
    ACTOR = "actor"
    ADMIN = "admin"


@dataclass(frozen=True)
class Caller:
    """One call's method and caller.

    Args:
        method: ``/package.Service/Method``.
        peer: gRPC's name of the other end.
        role: which tokens the caller's is among.
        name: of the token; empty where none was asked for.
        digest: of the token.
    """

    method: str
    peer: str
    role: Role = Role.ANYONE
    name: str = ""
    digest: bytes = b""

    @property
    def account(self) -> str:
        """What limits count a call under: the name of the token; without a name, the address."""
        return self.name if self.name not in ("", UNNAMED) else address_of(self.peer)

    def facts(self) -> dict[str, str]:
        """What the audit log says about the call."""
        return {"method": self.method, "name": self.name, "peer": host_of(self.peer)}


current_caller: ContextVar[Caller] = ContextVar("current_caller")
"""Of the call that is being served."""


def host_of(peer: str) -> str:
    """The host in gRPC's name of a peer, without port, brackets and zone."""
    _, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]").partition("%")[0]


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer; of IPv6 its /64, which is one host's to choose from.

    >>> address_of("ipv4:10.0.0.5:50123"), address_of("ipv6:%5B2001:db8::7:1%5D:50123")
    ('10.0.0.5', '2001:db8::/64')
    """
    host = host_of(peer)
    if not peer.startswith("ipv6"):
        return host
    mapped = IPv6Address(host).ipv4_mapped  # A socket that listens on [::] sees IPv4 so.
    return str(mapped or ip_network((host, 64), strict=False))
