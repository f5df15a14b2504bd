"""Putting together a run's learner: recorders, evaluator and checkpoints around the user's agent."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from contextlib import ExitStack

from actor.guard import Busy
from common.config.run_config import dump_config
from common.interfaces import Recorder
from learner.evaluation.evaluator import build_evaluator
from learner.evaluation.evaluator_process import EvaluatorProcess
from learner.evaluation.scoring import AbandonableEnv, InlineScoring, Scoring
from learner.loop.learner import Learner, Publish, do_nothing, publish_to_nobody
from learner.loop.precision import computing_in
from learner.loop.replay_opening import place_on_device
from learner.loop.run import Run
from learner.loop.window import RecordWindow
from learner.records.csv_recorder import CsvRecorder
from learner.records.curve import plot_learning_curve
from learner.replay.limiter import RatioLimiter
from learner.replay.screening import report_suspects
from learner.shared.durable import logging_write_errors
from learner.storage.checkpointer import WINDOW, Checkpointer
from learner.storage.moment import Moment
from learner.storage.resume import Resumable, ResumePoint

log = logging.getLogger(__name__)


def make_learner(
    run: Run,
    earlier: ResumePoint | None,
    stack: ExitStack,
    *,
    publish: Publish = publish_to_nobody,
    actor_in_turns: Resumable | None = None,
    show_life: Callable[[], None] = do_nothing,
    episodes: Callable[[], dict[str, float]] | None = None,
) -> Learner:
    """Make the learner of a run: restore a resumed run from its checkpoint, write the first checkpoint of a new run.

    Args:
        run: opened.
        earlier: the state that earlier lives of the run left; None for a new run.
        stack: closes the files and processes that are opened here.
        publish: makes the agent's present policy the newest model.
        actor_in_turns: the part that acts in training in turns, whose state checkpoints keep too.
        show_life: called at each step of an evaluation that training waits for.
        episodes: means of the newest training episodes by key, for each record.

    Raises:
        CrossborderError: a part cannot be built, or the checkpoint does not fit.
    """
    config, trainer, window = run.config, run.config.trainer, RecordWindow(run.buffer)
    parts: dict[str, Resumable] = {"buffer": run.buffer, WINDOW: window}
    if actor_in_turns is not None:
        parts["acting"] = actor_in_turns
    began = _restore(run, earlier, parts) if earlier is not None else Moment(0, run.memory.committed, 0.0)
    checkpointer = Checkpointer(
        run.states,
        run.parts.agent,
        parts,
        trainer.device,
        newest=began,
        seconds=trainer.checkpoint_seconds,
        # In turns the replay must be able to go back to a checkpoint. Its slack holds three times the items between two
        # checkpoints, so there is room while one is still being written.
        items=None if actor_in_turns is None else run.memory.slack // 3 or None,
        replay=run.memory,
    )
    run.dir.write_text("config.yaml", dump_config(config))
    stack.callback(logging_write_errors("the run ends without its learning curve")(_draw_curve), run)
    learner = Learner(
        agent=run.parts.agent,
        buffer=place_on_device(run.buffer, run.memory, config),
        scoring=_make_scoring(run, stack, show_life),
        recorders=_make_recorders(run, stack, began.opt_steps),
        checkpoints=run.checkpoints,
        config=trainer,
        publish=publish,
        began=began,
        best_score=earlier.best_score if earlier is not None else -math.inf,
        checkpointer=checkpointer,
        window=window,
        computing=computing_in(trainer.precision, trainer.device),
        explain=lambda: report_suspects(run.memory, run.buffer.last_drawn, run.find_actor, run.quarantine),
        episodes=episodes,
    )
    if earlier is None:
        checkpointer.write_first()
    run.dir.begin()
    return learner


def _restore(run: Run, earlier: ResumePoint, parts: dict[str, Resumable]) -> Moment:
    """Put the agent and the parts back to the checkpoint; return its moment."""
    earlier.restore(run.parts.agent, parts, run.config.trainer.device)
    moment, inserted = earlier.moment, run.memory.committed
    # Items that came after the checkpoint count as drawn. Otherwise the trainer would catch up with them while actors
    # wait. After a power cut there may be fewer items than at the checkpoint.
    limiter = RatioLimiter.of(run.config, run.memory.began)
    run.buffer.skip(max(0, limiter.draws_between(moment.samples_total, inserted)))
    log.info(
        "resumed at opt step %d with %d items of %d ever stored, start %d",
        *(moment.opt_steps, len(run.memory), inserted, run.dir.identity.incarnation),
    )
    return moment


def _make_recorders(run: Run, stack: ExitStack, opt_steps: int) -> list[Recorder]:
    """Open ``metrics.csv``, whose records after ``opt_steps`` are removed, and the recorders of the configuration."""
    recorders: list[Recorder] = []
    closing = logging_write_errors("the last records are missing")
    with run.dir.writing():
        recorders.append(CsvRecorder(run.dir.path / "metrics.csv", opt_steps))
    stack.callback(closing(recorders[0].close))
    for config in run.config.recorders:
        recorders.append(config.build(run_dir=run.dir.path, optional={"identity": run.dir.identity}))
        stack.callback(closing(recorders[-1].close))
    return recorders


def _make_scoring(run: Run, stack: ExitStack, show_life: Callable[[], None]) -> Scoring:
    if run.config.evaluator.process == "child":
        process = EvaluatorProcess(run.config, run.checkpoints)
        stack.callback(process.end)
        return process
    abandoned, busy = threading.Event(), Busy()
    env = AbandonableEnv(run.eval_env, abandoned, busy, show_life)
    evaluator = build_evaluator(env, run.config.evaluator)
    return InlineScoring(evaluator, run.checkpoints, abandoned, busy, run.config.env.timeout_seconds)


def _draw_curve(run: Run) -> None:
    path, target = run.dir.path, run.config.trainer.target_score
    plot_learning_curve(path / "metrics.csv", path / "learning_curve.png", run.config.name, target)
