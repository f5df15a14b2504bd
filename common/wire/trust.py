"""How an actor and its learner check each other, which code the learner may name, and the options for both."""

from __future__ import annotations

import argparse
from typing import ClassVar, Final, TypeVar

from pydantic import Field

from common.errors import AuthenticationError, ConfigError
from common.process.command import Parser, as_path
from common.settings import PathElsewhere, Settings
from common.wire.address import is_loopback, split_address
from common.wire.endpoints import split_addresses
from common.wire.owners import find_listeners, find_strangers
from common.wire.tokens import ACTOR_VARIABLE, CLIENT_VARIABLE, Token, TokenSource
from common.wire.watched import Watched

ANY: Final = "any"
"""In ``allow``: the learner may name any code."""


class Trust(Settings):
    """How an actor checks its learner and proves its own identity to it, and which code the learner may name.

    The actor speaks TLS to every other host, and to this host if a file is given.
    """

    PEER: ClassVar[str] = "learner"
    """Who is checked, for messages."""
    TOKEN_VARIABLE: ClassVar[str] = ACTOR_VARIABLE
    """The variable of the environment that holds the token if there is no ``token_file``."""

    ca: PathElsewhere | None = Field(
        None, description="Authorities that must have issued the learner's certificate; null: the public ones."
    )
    certificate: PathElsewhere | None = Field(None, description="The actor's own certificate, for mutual TLS.")
    key: PathElsewhere | None = Field(None, description="The private key of that certificate.")
    token_file: PathElsewhere | None = Field(
        None, description="File with the actor's token; null: the token in the environment, if there is one."
    )
    insecure: bool = Field(False, description="Speak to a host beyond loopback although nothing is encrypted.")
    allow: tuple[str, ...] = Field(
        (),
        description="Parts that the learner may name besides crossborder's own: module:attr, or modules; any: all "
        "parts; empty: none, but all if the learner is on this host and this user's or root's.",
    )

    def uses_tls(self, host: str) -> bool:
        """Whether to speak TLS to ``host``.

        Raises:
            ConfigError: these settings contradict each other.
        """
        files = [name for name in ("ca", "certificate", "key", "token_file") if getattr(self, name)]
        if self.insecure and files:
            raise ConfigError(f"--insecure: expected none of {', '.join(files)} beside it: nothing would be encrypted")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--certificate and --key: expected both or neither, found one of them")
        return bool(files) or not (self.insecure or is_loopback(host))

    def tokens(self) -> Watched[tuple[Token, ...]] | None:
        """The tokens, of which the first is sent; None if there are none.

        Raises:
            ConfigError: the tokens cannot be read.
        """
        source = TokenSource.find(self.token_file, self.TOKEN_VARIABLE)
        return source.watch() if source else None

    def allows_anything(self, *, is_own_host: bool) -> bool:
        """Whether a learner may name any code.

        This user's or root's learner on this host may, unless ``allow`` names some code: it could run any code itself.
        Another learner may only if ``allow`` says ``any``.
        """
        return ANY in self.allow or (not self.allow and is_own_host)

    def require_own_learner(self, address: str) -> None:
        """Check that no other user of this host listens at HOST:PORT, if the actor would speak to it without TLS.

        Raises:
            AuthenticationError: another user listens there.
        """
        host, _ = split_address(address)
        if self.insecure or not is_loopback(host) or self.uses_tls(host):
            return
        strangers = find_strangers(find_listeners(address))
        if strangers:
            raise AuthenticationError(
                f"{address}: expected this user's or root's {self.PEER}, found one of uid {min(strangers)}; an actor "
                "trusts another user of its host no more than another host: use TLS (--ca), or --insecure if you trust "
                "that user"
            )


class ServiceTrust(Trust):
    """How a client and an acting service check each other; the service cannot name any code."""

    PEER: ClassVar[str] = "acting service"
    TOKEN_VARIABLE: ClassVar[str] = CLIENT_VARIABLE


TrustT = TypeVar("TrustT", bound=Trust)


def add_learner_options(parser: Parser, caller: str, *, several: bool = False, required: bool = True) -> None:
    """Add ``--learner`` and the options of trust. Help texts call the command ``caller``, a noun.

    With ``several``, ``--learner`` takes several addresses.
    """
    form, text = "HOST:PORT", "where the learner server listens"
    if several:
        form, text = "HOST:PORT[,…]", f"{text}; several for a run with several ranks, or a name that stands for them"
    parser.add_argument("--learner", required=required, metavar=form, help=text)
    files = {
        "--ca": "authorities that the learner's certificate must descend from (default: the public ones)",
        "--certificate": f"{caller}'s own certificate, for mutual TLS",
        "--key": "the private key of that certificate",
        "--token-file": f"the file of {caller}'s token",
    }
    for option, text in files.items():
        parser.add_argument(option, type=as_path, metavar="FILE", help=text)
    parser.add_argument("--insecure", action="store_true", help="connect to another host without encryption")


def read_trust(kind: type[TrustT], arguments: argparse.Namespace, addresses: str | None = None) -> TrustT:
    """Read the trust from a command line's arguments. It is for ``addresses``; None: for those of ``--learner``.

    Raises:
        ConfigError: they contradict each other, or ``addresses`` are no list of HOST:PORT.
    """
    trust = kind(**{name: getattr(arguments, name) for name in kind.model_fields if hasattr(arguments, name)})
    for address in split_addresses(arguments.learner if addresses is None else addresses):
        trust.uses_tls(split_address(address)[0])
    return trust
