"""The loop that trains with actors: one opt step after another, until the run ends.

``Learner.step`` is an opt step and all that is due after it. The other loops are short: ``Together.train`` has an
exchange with other ranks in each turn, ``Trainer.train`` acts and learns in turns, and ``OfflineTrainer.train`` learns
from a dataset.
"""

from __future__ import annotations

from learner.loop.intake import Intake
from learner.loop.learner import Learner
from learner.loop.opt_traces import OptTraces
from learner.models.publisher import ModelPublisher


def train(learner: Learner, intake: Intake, publisher: ModelPublisher, traces: OptTraces) -> None:
    """Take opt steps until training ends.

    Raises:
        CrossborderError: no rows have come for too long, training has diverged, or the evaluator failed.
        Exception: from the agent or the evaluator.
    """
    while learner.outcome is None:
        intake.show_life()
        if intake.may_sample() and learner.step():
            intake.note_step(learner.opt_steps)
            publisher.settle()
            traces.note_opt()
        else:
            publisher.settle(wait=True)  # This takes a moment; waiting for rows may take seconds.
            intake.wait()
        learner.tick()
