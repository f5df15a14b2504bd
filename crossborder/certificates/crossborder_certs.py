"""``crossborder-certs``: makes an authority, certificates of learner and actors, and tokens."""

from __future__ import annotations

import argparse

from common.errors import ConfigError, PluginError
from common.process.command import Parser, as_path, at_least, command_of
from common.process.standard_streams import answers

EXAMPLES = """\
  crossborder-certs --out certs --host gpu-host --host 10.0.0.5     once
  crossborder-certs --out certs --host gpu-host --renew             new ones, same authority; old tokens stay valid
  crossborder-certs --out certs --actor cpu-1                       a token for cpu-1's actors: certs/actors/cpu-1.token
  crossborder-certs --out certs --admin alice                       a token for alice: certs/admins/alice.token
  crossborder-certs --out certs --client game                       a token for a client of an acting service:
                                                                    certs/clients/game.token
  sed -i '/^cpu-1 /d' certs/actor.token                             cpu-1 is out within a second

  learner-server … --certificate certs/server.pem --key certs/server.key --token-file certs/actor.token
  actor-worker … --ca certs/ca.pem --token-file certs/actor.token
  policy-server … --listen-certificate certs/server.pem --listen-key certs/server.key \\
                  --listen-tokens certs/clients.tokens
  mutual TLS: learner-server … --client-ca certs/ca.pem
              actor-worker … --certificate certs/actor.pem --key certs/actor.key

Keep ca.key to yourself: anybody who has it can pose as your learner.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-certs", __doc__, EXAMPLES)
    made.add_value("--out", "DIR", "the directory of the files", as_path, is_required=True)
    made.add_argument(
        "--host",
        action="append",
        dest="hosts",
        metavar="NAME",
        help="a name or address by which actors reach the learner; repeat the option for more names",
    )
    made.add_value("--days", "N", "the days until the certificates expire", at_least(1), default=365)
    made.add_value("--actor", "NAME", "only add a token of this name for actors, and write it to DIR/actors/NAME.token")
    made.add_value(
        "--admin", "NAME", "only add a token of this name for an admin, and write it to DIR/admins/NAME.token"
    )
    made.add_value(
        "--client",
        "NAME",
        "only add a token of this name for a client of an acting service to DIR/clients.tokens, and write it to "
        "DIR/clients/NAME.token",
    )
    made.add_value(
        "--for-learner", "DIR2", "copy the files that the learner needs to DIR2; ca.key is not one of them", as_path
    )
    made.add_value(
        "--for-actors", "DIR3", "copy the files that actors need to DIR3; ca.key is not one of them", as_path
    )
    made.add_flag(
        "--renew", "make new certificates and tokens; the authority stays, and the newest old tokens stay valid"
    )
    return made


def _write(arguments: argparse.Namespace) -> None:
    """Make the files that the options ask for, and print their paths."""
    try:
        from crossborder.certificates.authority import add_token, hand_out, make_files
    except ImportError as error:
        raise PluginError(f"{error}; for certificates: pip install 'crossborder[certs]'") from error

    directory, renew = arguments.out, arguments.renew
    holders = {"actor": arguments.actor, "admin": arguments.admin, "client": arguments.client}
    added = {role: name for role, name in holders.items() if name is not None}
    if added:
        made = [path for role, name in added.items() for path in add_token(directory, role, name, renew=renew)]
    elif arguments.hosts:
        made = make_files(directory, arguments.hosts, arguments.days, renew=renew)
    elif arguments.for_learner or arguments.for_actors:
        made = []
    else:
        raise ConfigError("--host: expected a name by which actors reach the learner, found none")
    written = [*made, *hand_out(directory, arguments.for_learner, arguments.for_actors)]
    answers().write("".join(f"{path}\n" for path in written))


main = command_of(parser, _write)
