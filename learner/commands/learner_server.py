"""``learner-server``: owns the replay and the optimiser, and serves actors."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import Final

from rich.console import Console

from actor.manager import ACTOR
from common.config.run_config import RunConfig
from common.process.command import Parser, at_least
from common.process.signals import StopSignals
from learner.commands import server_orders, server_status
from learner.commands.standby import SERVER, keep_running
from learner.commands.training_command import (
    Load,
    add_origin,
    add_override,
    add_resume,
    load_run,
    make_training_parser,
    origin_of,
    run_training_command,
    tell_result,
)
from learner.ingest.ingest_process import ComingIngest
from learner.ranks.place import Place
from learner.ranks.torchrun import end_with_torchrun

COMMANDS: Final = {
    "status": ("show the actors of a learner that runs", server_status.parser, server_status.main),
    "ratio": ("set the replay ratio of a learner that runs", server_orders.ratio_parser, server_orders.set_ratio),
    "cordon": ("let no new actor join from a host", server_orders.cordon_parser, server_orders.cordon),
    "drain": (
        "have the actors of a host hand over their rows and leave",
        server_orders.drain_parser,
        server_orders.drain,
    ),
    "uncordon": ("let actors join again from a host", server_orders.uncordon_parser, server_orders.uncordon),
    "set-best-aside": (
        "take back a wrong score, by which a policy became the best one",
        server_orders.aside_parser,
        server_orders.set_aside,
    ),
}
"""By name, what a command does, its options and its function."""
EXAMPLES = """\
  learner-server --config configs/cartpole.yaml                     then start actor-worker, here or elsewhere
  learner-server --config configs/cartpole.yaml --local-actors 2    with two actors on this host
  learner-server --config configs/cartpole.yaml --set seed=3 --set agent.params.lr=0.001
  learner-server --config configs/cartpole.yaml --listen 0.0.0.0:50051 \\
      --certificate server.pem --key server.key --token-file actor.token    made by crossborder-certs
  learner-server --resume runs/cartpole-20250101-120000-1a2b       go on after a crash, Ctrl-C or with more steps
  learner-server --resume s3://bucket/runs/cartpole                go on from a mirror, on a host without the run
  learner-server --config configs/cartpole.yaml --standby          go on within seconds when the learner is killed
  learner-server --config FILE --from runs/pendulum-20250101-120000-1a2b --with replay    a new run from a saved agent
  learner-server status --learner gpu-host:50051                   a live table of its actors; see status --help
  learner-server ratio --learner gpu-host:50051 4                  another replay ratio; see ratio --help
  learner-server drain --learner gpu-host:50051 --host cpu-7       the actors of a host leave; see also cordon, uncordon
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
        help="listen on an address beyond loopback without encryption",
    )
    add_resume(made, mirrored=True)
    add_origin(made)
    for option, key, text in (
        ("--certificate", "tls.certificate", "the server's certificate"),
        ("--key", "tls.key", "the private key of that certificate"),
        ("--client-ca", "tls.client_ca", "authorities of the actors' certificates, for mutual TLS"),
        ("--token-file", "actor_token_file", "the file of the actors' tokens, one on each line"),
    ):
        add_override(made, option, f"server.{key}", "FILE", text)
    made.add_value(
        "--local-actors", "N", "the number of actors that the learner starts on this host", at_least(0), default=0
    )
    made.add_flag("--standby", "have another process resume the run at once if the learner is killed")
    # Only for help and completion: ``main`` looks for these commands first.
    commands = made.add_subparsers(title="instead of training", metavar="", parser_class=_command_parser)  # type: ignore[call-overload] # argparse only calls it
    for name, (purpose, _parser, _main) in COMMANDS.items():
        commands.add_parser(name, help=purpose)
    return made


def _command_parser(*, prog: str, **_: object) -> Parser:
    """The parser that argparse makes for ``learner-server COMMAND``."""
    _purpose, made, _main = COMMANDS[prog.rpartition(" ")[2]]
    return made()


class _Training:
    """A run with actors, as the command trains it. Without ``coming_ingest`` it starts a process for ingest."""

    def __init__(self, stack: ExitStack, coming_ingest: ComingIngest | None) -> None:
        self._stack, self._coming_ingest = stack, coming_ingest
        self._place = Place()
        self.has_ended_as_rank = False
        """Whether this process, one of several ranks, has ended its training in order."""

    def adapt(self, config: RunConfig) -> RunConfig:
        """The configuration of this process, which torchrun may have started as one of several ranks."""
        self._place = Place.find()
        return self._place.adapt(config)

    def prepare(self, arguments: argparse.Namespace) -> None:
        """Import torch, and fork the process that forks ingest and local actors: it has torch, and imports the rest."""
        if self._coming_ingest is None:
            others = [ACTOR] if arguments.local_actors else []
            self._coming_ingest = self._stack.enter_context(ComingIngest(others, here=SERVER))

    def run(
        self, config: RunConfig, arguments: argparse.Namespace, console: Console | None, signals: StopSignals
    ) -> None:
        """Train, and print the summary."""
        from learner.loop.run import actor_stats_fmt
        from learner.loop.server import LearnerServer
        from learner.records.progress import Progress

        if self._place.torchrun is not None:
            end_with_torchrun(self._place.torchrun, signals)
        resume, origin, coming = bool(arguments.resume), origin_of(arguments, config.run_dir), self._coming_ingest
        with LearnerServer(
            config,
            arguments.local_actors,
            resume=resume,
            origin=origin,
            coming_ingest=coming,
            place=self._place,
            when_met=signals.hold,
        ) as server:
            signals.on_stop = server.request_stop  # A signal since the ranks met has waited for this.
            with Progress(server.status, console):
                result = server.train()
        if self._place.leads:
            tell_result(config, result, f"{result.trainer.fmt()}\n{actor_stats_fmt(result.actors)}")
        self.has_ended_as_rank = not self._place.is_alone


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in COMMANDS:
        _purpose, _parser, command = COMMANDS[words[0]]
        return command(words[1:])
    made = parser()
    arguments = made.parse_args(words)
    if arguments.standby and not (arguments.show_config or arguments.check):
        return keep_running(made, arguments, words)
    return run_learner(made, words)


def run_learner(
    parser: Parser, words: list[str], coming_ingest: ComingIngest | None = None, load: Load = load_run
) -> int:
    """Run the command without a standby; return its exit code.

    Args:
        parser: of the command.
        words: of the command.
        coming_ingest: a process that forks ingest, which the caller closes; None starts one.
        load: makes the configuration of the run from the parsed words.
    """
    with ExitStack() as stack:
        training = _Training(stack, coming_ingest)
        code = run_training_command(parser, words, training.run, training.prepare, training.adapt, load=load)
        # A signal at one rank ends training on all, and sends all actors away. With the exit code of a signal, torchrun
        # would take this for a failure, and start the ranks again without actors.
        return 0 if training.has_ended_as_rank else code
