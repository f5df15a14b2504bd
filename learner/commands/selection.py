"""The options by which `learner-server cordon`, `uncordon` and `drain` name actors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from common.errors import ConfigError
from common.process.command import Parser, at_least
from common.wire.endpoints import split_addresses
from common.wire.trust import add_learner_options, read_trust
from learner.ingest.cordons import Selection

if TYPE_CHECKING:
    from learner.commands.admin_client import AdminClient


def make_selecting_parser(name: str, description: str, examples: str) -> Parser:
    """A parser with the options of an admin, and with those that select actors."""
    made = Parser(name, description, examples, level="WARNING")
    add_learner_options(made, "the admin", several=True)
    made.add_argument(
        "--host",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="choose the actors on these hosts, by whole names",
    )
    made.add_argument(
        "--actor",
        nargs="+",
        action="extend",
        default=[],
        type=at_least(0),
        metavar="ID",
        help="choose the actors with these ids",
    )
    made.add_argument("--all", action="store_true", help="choose all actors")
    return made


def selection_of(arguments: argparse.Namespace) -> Selection:
    """The actors that the options name.

    Raises:
        ConfigError: they name none.
    """
    actors = Selection(frozenset(arguments.actor), frozenset(arguments.host), arguments.all)
    if not actors:
        raise ConfigError("expected --host, --actor or --all, found none of them")
    return actors


@contextmanager
def open_admin_clients(arguments: argparse.Namespace) -> Iterator[list[AdminClient]]:
    """A client of each learner that ``--learner`` names: a run with several ranks has one for each rank.

    Raises:
        ConfigError: the options contradict each other, or a file cannot be read.
    """
    from learner.commands.admin_client import AdminClient, AdminTrust

    trust = read_trust(AdminTrust, arguments)
    with ExitStack() as stack:
        addresses = split_addresses(arguments.learner)
        yield [stack.enter_context(closing(AdminClient(address, trust))) for address in addresses]


def count_actors(count: int) -> str:
    """``1 actor``, ``2 actors``."""
    return f"{count} actor{'' if count == 1 else 's'}"
