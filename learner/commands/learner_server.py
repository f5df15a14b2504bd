"""``learner-server``: owns the replay and the optimiser, and serves actors."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from rich.console import Console

from common.config.run_config import RunConfig
from common.process.command import Parser, at_least
from common.process.signals import StopSignals
from learner.commands import server_ratio, server_status
from learner.commands.training_command import (
    add_origin,
    add_override,
    add_resume,
    make_training_parser,
    origin_of,
    run_training_command,
    tell_result,
)

COMMANDS: Final = {
    "status": (server_status.parser, server_status.main),
    "ratio": (server_ratio.parser, server_ratio.main),
}
EXAMPLES = """\
  learner-server --config configs/cartpole.yaml                     then start actor-worker, here or elsewhere
  learner-server --config configs/cartpole.yaml --local-actors 2    with two actors on this host
  learner-server --config configs/cartpole.yaml --set seed=3 --set agent.params.lr=0.001
  learner-server --config configs/cartpole.yaml --listen 0.0.0.0:50051 \\
      --certificate server.pem --key server.key --token-file actor.token    made by crossborder-certs
  learner-server --resume runs/cartpole-20250101-120000-1a2b       go on after a crash, Ctrl-C or with more steps
  learner-server --config FILE --from runs/pendulum-20250101-120000-1a2b --with replay    a new run from a saved agent
  learner-server status --learner gpu-host:50051                   a live table of its actors; see status --help
  learner-server ratio --learner gpu-host:50051 4                  another replay ratio; see ratio --help
"""


def parser() -> Parser:
    """The command's options."""
    made = make_training_parser("learner-server", __doc__, EXAMPLES)
    add_override(made, "--listen", "server.listen", "HOST:PORT", "where actors connect; port 0 takes a free one")
    made.add_argument(
        "--insecure",
        action="append_const",
        dest="overrides",
        const="server.insecure=true",
        help="allow an address beyond loopback, unencrypted",
    )
    add_resume(made)
    add_origin(made)
    for option, key, text in (
        ("--certificate", "tls.certificate", "the server's certificate"),
        ("--key", "tls.key", "its private key"),
        ("--client-ca", "tls.client_ca", "authorities of the actors' certificates, for mutual TLS"),
        ("--token-file", "actor_token_file", "the actors' tokens, one a line"),
    ):
        add_override(made, option, f"server.{key}", "FILE", text)
    made.add_argument(
        "--local-actors", type=at_least(0), default=0, metavar="N", help="actors on this host (default: 0)"
    )
    # Only for help and completion: ``main`` looks for these commands first.
    commands = made.add_subparsers(title="instead of training", metavar="", parser_class=_command_parser)  # type: ignore[call-overload] # argparse only calls it
    commands.add_parser("status", help="show the actors of a learner that runs")
    commands.add_parser("ratio", help="set the replay ratio of a learner that runs")
    return made


def _command_parser(*, prog: str, **_: object) -> Parser:
    """The parser that argparse makes for ``learner-server COMMAND``."""
    made, _main = COMMANDS[prog.rpartition(" ")[2]]
    return made()


def _train(config: RunConfig, arguments: argparse.Namespace, console: Console | None, signals: StopSignals) -> None:
    from learner.loop.server import LearnerServer
    from learner.loop.summaries import actor_stats_fmt
    from learner.records.progress import Progress

    resume, origin = bool(arguments.resume), origin_of(arguments)
    with LearnerServer(config, arguments.local_actors, resume=resume, origin=origin) as server:
        signals.on_stop = server.learner.request_stop
        with Progress(server.status, console):
            result = server.train()
    tell_result(config, result, f"{result.trainer.fmt()}\n{actor_stats_fmt(result.actors)}")


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in COMMANDS:
        _parser, command = COMMANDS[words[0]]
        return command(words[1:])
    return run_training_command(parser(), words, _train)


if __name__ == "__main__":
    sys.exit(main())
