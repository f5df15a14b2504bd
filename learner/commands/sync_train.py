"""``sync-train``: trains in turns, in one process and without a network; use it as a baseline and to debug."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from actor.sampling.guard import watch_envs
from actor.sampling.sampler import require_lanes
from common.config.run_config import RunConfig
from common.process.command import Parser, tell_error
from common.process.log import LogFormat
from common.process.signals import StopSignals
from learner.commands.training_command import (
    add_origin,
    add_resume,
    make_training_parser,
    origin_of,
    run_training_command,
    tell_result,
)

if TYPE_CHECKING:
    from learner.loop.in_turns import Trainer

EXAMPLES = """\
  sync-train --config configs/cartpole.yaml                the same configuration as learner-server
  sync-train --config configs/cartpole.yaml --set seed=3   the same seed gives the same curve every time
  sync-train --resume runs/cartpole-20250101-120000-1a2b   go on with a run
  sync-train --config FILE --from runs/cartpole-20250101-120000-1a2b    a new run from a saved agent
"""


def parser() -> Parser:
    """The command's options."""
    made = make_training_parser("sync-train", __doc__, EXAMPLES)
    add_resume(made)
    add_origin(made)
    made.set_defaults(local_actors=1)  # This process acts itself.
    return made


def _train(config: RunConfig, arguments: argparse.Namespace, console: Console | None, signals: StopSignals) -> None:
    from learner.loop.in_turns import Trainer
    from learner.records.progress import Progress

    with Trainer(config, resume=bool(arguments.resume), origin=origin_of(arguments, config.run_dir)) as trainer:
        signals.on_stop = _make_stop(trainer, arguments.log_format)
        with Progress(trainer.status, console):
            result = trainer.train()
    tell_result(config, result, result.trainer.fmt())


def _make_stop(trainer: Trainer, form: LogFormat) -> Callable[[], None]:
    """What a signal does: it ends training, and this process too if an environment does not return from then on."""
    busy, tell = require_lanes(trainer.run.parts).busy, partial(tell_error, "sync-train", form=form)
    watching = watch_envs(busy, trainer.config.env, tell, ends_process=False)

    def stop() -> None:
        trainer.learner.request_stop()
        watching.__enter__()  # Not before: somebody may be debugging the environment.

    return stop


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_training_command(parser(), argv, _train)
