"""How a command line says what it and a learner demand of each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeVar

from common.process.command import Parser
from common.wire.address import split_address
from common.wire.trust import Trust

TrustT = TypeVar("TrustT", bound=Trust)


def add_learner(parser: Parser, who: str) -> None:
    """The options that name a learner and say how to trust it; ``who`` is whoever calls it."""
    parser.add_argument("--learner", required=True, metavar="HOST:PORT", help="where the learner server listens")
    files = {
        "--ca": "authorities that the learner's certificate must descend from (default: the public ones)",
        "--certificate": f"{who}'s own certificate, for mutual TLS",
        "--key": "the private key of that certificate",
        "--token-file": f"holds {who}'s token",
    }
    for option, text in files.items():
        parser.add_argument(option, type=Path, metavar="FILE", help=text)
    parser.add_argument("--insecure", action="store_true", help="speak to another host unencrypted")


def trust_in(kind: type[TrustT], arguments: argparse.Namespace) -> TrustT:
    """What was said about trust.

    Raises:
        ConfigError: it contradicts itself, or the learner is not HOST:PORT.
    """
    trust = kind(**{name: getattr(arguments, name) for name in kind.model_fields if hasattr(arguments, name)})
    trust.uses_tls(split_address(arguments.learner)[0])
    return trust
