"""``learner-server set-best-aside``: takes back a wrong score, by which a policy became the best one of its run."""

from __future__ import annotations

import argparse
from pathlib import Path

from common.errors import CheckpointError
from common.process.command import Parser, as_path, command_of
from common.process.standard_streams import answers

EXAMPLES = """\
  learner-server set-best-aside --run runs/cartpole-20250101-120000-1a2b
  learner-server set-best-aside --run runs/cartpole && learner-server --resume runs/cartpole    if the run has ended

best/ becomes best-OPT_STEPS/, and the next score of the run is its best score. The run may go on meanwhile. If the
score has ended it (trainer.target_score), --resume goes on. audit.jsonl of the run gets a line.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("learner-server set-best-aside", __doc__, EXAMPLES, level="WARNING")
    made.add_value("--run", "DIR", "the run's directory, on this host", as_path, is_required=True)
    return made


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


main = command_of(parser, _set_aside)
