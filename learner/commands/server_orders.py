"""``learner-server ratio``, ``cordon``, ``drain``, ``uncordon`` and ``set-best-aside``: orders to a run from outside.

An admin gives the first four to a learner that runs; the last one works on the run's directory.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.errors import CheckpointError, ConfigError, CrossborderError, LearnerUnreachableError
from common.process.clocks import Deadline
from common.process.command import Parser, as_path, at_least, command_of, positive, service_of
from common.process.signals import StopSignals
from common.process.standard_streams import answers
from common.wire.endpoints import split_addresses
from common.wire.trust import add_learner_options, read_trust
from learner.commands.fleet_table import PRESENT, ActorView
from learner.ingest.cordons import NOBODY, Selection
from learner.replay.ratio import format_ratio

if TYPE_CHECKING:
    from learner.commands.admin_client import AdminClient

LOOK_SECONDS: Final = 0.5
MAX_NAMED: Final = 20
"""The error message names at most this many actors."""
_RATIO_EXAMPLES: Final = """\
  learner-server ratio --learner 127.0.0.1:50051 4           each step is drawn four times on average, from now on
  learner-server ratio --learner 127.0.0.1:50051 null        both sides run free
  learner-server ratio --learner gpu-host:50051 --ca ca.pem --token-file admin.token 4

`learner-server status` shows the ratio in force, and its --help names the options that a learner needs to answer. A
resumed run keeps the ratio, unless replay.samples_per_insert in its configuration has changed.
"""
_CORDON_EXAMPLES: Final = """\
  learner-server cordon --learner 127.0.0.1:50051 --host cpu-7           no new actor joins from cpu-7
  learner-server cordon --learner gpu-host:50051 --ca ca.pem --token-file admin.token --host cpu-7 cpu-8
  learner-server cordon --learner 127.0.0.1:50051 --actor 3              nobody gets id 3

Actors that have joined already go on; `learner-server drain` has them leave too. An actor that is kept out asks again
until its --patience is over, and joins after `learner-server uncordon`. `learner-server status` shows the cordons. A
learner that is started again keeps them.
"""
_DRAIN_EXAMPLES: Final = """\
  learner-server drain --learner 127.0.0.1:50051 --host cpu-7            its actors leave, and none joins from there
  learner-server drain --learner gpu-host:50051 --ca ca.pem --token-file admin.token --host cpu-7 cpu-8
  learner-server drain --learner 127.0.0.1:50051 --all --timeout 300

A drained actor hands over its rows and ends with exit code 0; actor-worker --num-actors does not start it again. The
command waits until all these actors have left. An actor that is away now leaves when it comes back. `learner-server
uncordon` lets actors join again.
"""
_UNCORDON_EXAMPLES: Final = """\
  learner-server uncordon --learner 127.0.0.1:50051 --host cpu-7
  learner-server uncordon --learner 127.0.0.1:50051 --all                ends every cordon

Actors that wait join within seconds. Only `uncordon --all` ends a cordon of --all.
"""
_ASIDE_EXAMPLES: Final = """\
  learner-server set-best-aside --run runs/cartpole-20250101-120000-1a2b
  learner-server set-best-aside --run runs/cartpole && learner-server --resume runs/cartpole    if the run has ended

best/ becomes best-OPT_STEPS/, and the next score of the run is its best score. The run may go on meanwhile. If the
score has ended it (trainer.target_score), --resume goes on. audit.jsonl of the run gets a line.
"""


def ratio_parser() -> Parser:
    """The options of ``learner-server ratio``."""
    made = _make_parser("ratio", "sets the replay ratio of a running learner", _RATIO_EXAMPLES, selects=False)
    made.add_value("ratio", "RATIO", "how often each step is drawn on average; null sets no ratio", _parse_ratio)
    return made


def _parse_ratio(text: str) -> float | None:
    return None if text == "null" else positive(text)


def cordon_parser() -> Parser:
    """The options of ``learner-server cordon``."""
    return _make_parser("cordon", "keeps new actors of some hosts, or with some ids, out", _CORDON_EXAMPLES)


def drain_parser() -> Parser:
    """The options of ``learner-server drain``."""
    made = _make_parser("drain", "has actors hand over their rows and leave", _DRAIN_EXAMPLES)
    made.add_value("--timeout", "SECONDS", "how long to wait until the actors have left", positive, default=60.0)
    return made


def uncordon_parser() -> Parser:
    """The options of ``learner-server uncordon``."""
    return _make_parser("uncordon", "lets actors that were cordoned or drained join again", _UNCORDON_EXAMPLES)


def aside_parser() -> Parser:
    """The options of ``learner-server set-best-aside``."""
    name = "learner-server set-best-aside"
    purpose = "takes back a wrong score, by which a policy became the best one of its run"
    made = Parser(name, f"{name}: {purpose}.", _ASIDE_EXAMPLES, level="WARNING")
    made.add_value("--run", "DIR", "the run's directory, on this host", as_path, is_required=True)
    return made


def _make_parser(command: str, purpose: str, examples: str, *, selects: bool = True) -> Parser:
    """A parser with the options of an admin, and with those that select actors if the command ``selects`` some."""
    name = f"learner-server {command}"
    made = Parser(name, f"{name}: {purpose}.", examples, level="WARNING")
    add_learner_options(made, "the admin", several=selects)
    if selects:
        made.add_words("--host", "NAME", "choose the actors on these hosts, by whole names")
        made.add_words("--actor", "ID", "choose the actors with these ids", at_least(0))
        made.add_flag("--all", "choose all actors")
    return made


def _set_ratio(arguments: argparse.Namespace) -> None:
    from learner.commands.admin_client import AdminClient, AdminTrust

    with closing(AdminClient(arguments.learner, read_trust(AdminTrust, arguments))) as client:
        before = client.set_replay_ratio(arguments.ratio)
    answers().write(f"replay ratio {format_ratio(arguments.ratio)} instead of {format_ratio(before)}\n")


def _cordon(arguments: argparse.Namespace) -> None:
    actors = selection_of(arguments)
    with open_admin_clients(arguments) as clients:
        present = sum(client.cordon(actors) for client in clients)
    answers().write(f"cordoned: {actors}; {count_actors(present)} of them there and going on\n")


def _drain(arguments: argparse.Namespace, signals: StopSignals) -> None:
    stopped = threading.Event()
    signals.on_stop = stopped.set
    actors = selection_of(arguments)
    with open_admin_clients(arguments) as clients:
        told = sum(client.drain(actors) for client in clients)
        left = _wait_until_gone(clients, actors, arguments.timeout, stopped)
    if stopped.is_set():
        return
    if left:
        named = ", ".join(f"{actor.actor_id} ({actor.host}, {actor.state})" for actor in left[:MAX_NAMED])
        raise CrossborderError(f"{len(left)} of {count_actors(told)} have not left in time, and are to leave: {named}")
    answers().write(f"drained: {actors}; {count_actors(told)} told to leave, and none is left\n")


def _wait_until_gone(
    clients: Sequence[AdminClient], actors: Selection, seconds: float, stopped: threading.Event
) -> list[ActorView]:
    """Wait until the actors have left, the time is over, or the command is stopped; return those that have not left.

    The learner keeps the order, so it may be away meanwhile, as while its ingest is started again.

    Raises:
        LearnerUnreachableError: the time is over, and the learner does not answer.
    """
    deadline = Deadline(seconds)
    while True:
        left, away = list[ActorView](), None
        try:
            for client in clients:
                present = (actor for actor in client.fetch_status().actors if actor.state in PRESENT)
                left += [actor for actor in present if actors.covers(actor.actor_id, actor.host)]
        except LearnerUnreachableError as error:
            away = error
        if not left and away is None:
            return left
        if deadline.passed() or stopped.wait(min(LOOK_SECONDS, deadline.remaining())):
            if away is not None and not stopped.is_set():
                raise away
            return left


def _uncordon(arguments: argparse.Namespace) -> None:
    actors, left = selection_of(arguments), NOBODY
    with open_admin_clients(arguments) as clients:
        for client in clients:
            client.uncordon(actors)
            left = left.plus(client.fetch_status().cordoned)
    answers().write(f"uncordoned: {actors}; still cordoned: {left}\n")


def _set_aside(arguments: argparse.Namespace) -> None:
    from learner.ingest.audit import AuditLog
    from learner.storage.checkpoint import read_best, set_best_aside

    run: Path = arguments.run
    best = read_best(run)
    if best is None:
        raise CheckpointError(f"{run}: expected a run with a policy in best/, found none that can be read")
    kept = set_best_aside(run, best)
    AuditLog(run / "audit.jsonl").note("best", "set aside", opt_steps=best.opt_steps, score=best.score, kept=kept.name)
    answers().write(
        f"best/ of opt step {best.opt_steps} with the score {best.score:g} is {kept.name}/ now; the next score is the "
        "best one\n"
    )


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


set_ratio = command_of(ratio_parser, _set_ratio)
cordon = command_of(cordon_parser, _cordon)
drain = service_of(drain_parser, _drain)
uncordon = command_of(uncordon_parser, _uncordon)
set_aside = command_of(aside_parser, _set_aside)
