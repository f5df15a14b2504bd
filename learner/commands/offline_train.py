"""``offline-train``: trains from a dataset, in one process and without actors."""

from __future__ import annotations

import argparse
from dataclasses import replace

from rich.console import Console

from common.config.run_config import RunConfig
from common.process.command import Parser
from common.process.signals import StopSignals
from learner.commands.training_command import (
    add_origin,
    add_resume,
    make_training_parser,
    origin_of,
    run_training_command,
    tell_result,
)

EXAMPLES = """\
  offline-train --config configs/pendulum_offline.yaml --dataset runs/pendulum-…       the replay of an earlier run
  offline-train --config FILE --dataset minari:mujoco/hopper/expert-v0                 after minari download
  offline-train --config FILE --dataset data/episodes                                  recorded by actor-worker --record
  offline-train --config FILE --dataset data/my-dataset-v0                             in Minari's or LeRobot's format
  offline-train --resume runs/pendulum-20250101-120000-1a2b                            go on; its rows are there
"""


def parser() -> Parser:
    """The command's options."""
    made = make_training_parser("offline-train", __doc__, EXAMPLES)
    made.add_value(
        "--dataset",
        "SOURCE",
        "minari:ID, or the path of episodes (.npz, .parquet), of a LeRobot or Minari dataset or of an earlier run",
    )
    add_resume(made)
    add_origin(made)
    return made


def _train(config: RunConfig, arguments: argparse.Namespace, console: Console | None, signals: StopSignals) -> None:
    from learner.loop.offline import OfflineTrainer
    from learner.records.progress import Progress

    resume, origin = bool(arguments.resume), origin_of(arguments, config.run_dir)
    with OfflineTrainer(config, arguments.dataset, console, resume=resume, origin=origin) as trainer:
        signals.on_stop = trainer.learner.request_stop
        with Progress(trainer.status, console):
            result = trainer.train()
    nothing_sampled = replace(result.trainer, samples_per_sec=None)
    tell_result(config, result, nothing_sampled.fmt())


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_training_command(parser(), argv, _train)
