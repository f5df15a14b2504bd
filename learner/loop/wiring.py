"""Putting together a run's learner: recorders, evaluator and checkpoints around the user's agent."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save

from common.agents.tensor_copies import copy_to_cpu
from common.data import ModelVersion
from common.errors import ConfigError
from common.evaluation import open_evaluator
from common.interfaces import Recorder
from common.lanes.lanes import Busy
from common.lanes.watched_envs import Watch
from common.plugins.part_config import PluginConfig, require_role
from common.plugins.part_loading import naming_fault
from common.process.log import LogThrottle
from learner.evaluation.evaluator_process import EvaluatorProcess
from learner.evaluation.scoring import InlineScoring, Scoring
from learner.loop.learner import Learner, Publish, publish_to_nobody
from learner.loop.learner_parts import computing_in
from learner.loop.life import Life
from learner.loop.opt_step import OptStep, do_nothing
from learner.loop.replay_opening import place_on_device
from learner.loop.run import Run
from learner.loop.run_records import UNWRITTEN_LOGGED_EVERY, Callbacks, RecordWindow, RunRecords, facts_of
from learner.loop.together import Together
from learner.models.model_pool import Pool
from learner.ranks.agent_state import RandomState
from learner.ranks.beginning import begin_in_order
from learner.records.beside import BesideRecorder, close_all
from learner.records.csv_recorder import CsvRecorder
from learner.records.curve import plot_learning_curve
from learner.replay.interventions import record_interventions
from learner.replay.screening import report_suspects
from learner.shared.durable import logging_write_errors
from learner.storage.checkpointer import WINDOW, Checkpointer
from learner.storage.resume import Resumable, ResumePoint, Trained
from learner.storage.training_state import Moment

log = logging.getLogger(__name__)
ACTING: Final = "acting"
"""The name in checkpoints of the part that acts in turns."""


def make_learner(
    run: Run,
    earlier: ResumePoint | None,
    stack: ExitStack,
    *,
    publish: Publish = publish_to_nobody,
    actor_in_turns: Resumable | None = None,
    scoring: Scoring | None = None,
    episodes: Callable[[], dict[str, float]] | None = None,
    show_life: Callable[[], None] = do_nothing,
    ranks: Together | None = None,
) -> Learner:
    """Make the learner of a run: restore a resumed run from its checkpoint, write the first checkpoint of a new run.

    Args:
        run: opened.
        earlier: the state that earlier lives of the run left; None for a new run.
        stack: closes the files and processes that are opened here.
        publish: makes the agent's present policy the newest model.
        actor_in_turns: the part that acts in training in turns, whose state checkpoints keep too.
        scoring: scores the agent; None: as the configuration says, in this process or in a child.
        episodes: means of the newest training episodes by key, for each record.
        show_life: called often during an evaluation in this process.
        ranks: what this process shares with the other ranks of the run; None: there are no other ranks.

    Raises:
        CrossborderError: a part cannot be built, or the checkpoint does not fit.
    """
    leads = run.place.leads
    # 1. The parts whose state checkpoints keep, at the moment at which this life of the run begins.
    kept = _restore_parts(run, earlier, actor_in_turns, ranks)
    # 2. The records; only rank 0 draws the curve, records and saves policies.
    if earlier is None:
        run.write_config()
    recorders = _make_recorders(run, stack, kept.began.opt_steps) if leads else ()
    # 3. The learner.
    learner = Learner(
        _make_opt_step(run, ranks),
        run.config.trainer,
        scoring=scoring or _make_scoring(run, stack, show_life),
        records=RunRecords(recorders, kept.window, kept.callbacks, episodes and _with_counts(run, episodes)),
        checkpoints=run.checkpoints if leads else None,
        checkpointer=kept.checkpointer,
        publish=publish if run.pool is None else _publish_to_pool(run, run.pool, publish, kept.began),
        life=_make_life(run, earlier, kept.began, ranks),
    )
    # 4. The first checkpoint and ``run.json``: from now on the run can be resumed.
    _begin_run(run, kept.checkpointer, ranks, is_resumable=earlier is not None and leads)
    return learner


@dataclass(frozen=True)
class _Kept:
    """The moment at which this life of a run begins, and some of the parts whose state checkpoints keep."""

    began: Moment
    window: RecordWindow
    callbacks: Callbacks
    checkpointer: Checkpointer


def _restore_parts(
    run: Run, earlier: ResumePoint | None, actor_in_turns: Resumable | None, ranks: Together | None
) -> _Kept:
    """Make the parts whose state checkpoints keep, and put those of a resumed run back to its checkpoint."""
    window = RecordWindow(ranks or run.buffer)
    callbacks = Callbacks.build(
        run.config.callbacks, facts_of(run.config, run.dir.identity) | {"run_dir": run.dir.path}
    )
    parts: dict[str, Resumable]
    parts = {"buffer": run.buffer, WINDOW: window, "callbacks": callbacks, "products": run.products}
    if actor_in_turns is not None:
        parts[ACTING] = actor_in_turns
    # The agent of rank 0 is that of all ranks.
    agent = run.parts.agent if run.place.leads else RandomState(run.parts.agent)
    began = _find_beginning(run, earlier, agent, parts, ranks)
    return _Kept(began, window, callbacks, _make_checkpointer(run, agent, parts, began))


def _make_opt_step(run: Run, ranks: Together | None) -> OptStep:
    """The opt step of the run's agent; with other ranks, it draws this rank's share of each batch."""
    trainer, buffer = run.config.trainer, place_on_device(run.buffer, run.config)
    return OptStep(
        run.parts.agent,
        buffer if ranks is None else ranks.share_draws(buffer),
        computing=computing_in(trainer.precision, trainer.device),
        explain=lambda: report_suspects(run.memory, run.buffer.last_drawn, run.find_actor, run.quarantine),
        after=do_nothing if ranks is None else ranks.after_opt,
    )


def _publish_to_pool(run: Run, pool: Pool, publish: Publish, began: Moment) -> Publish:
    """Publish models and offer them to the pool, which goes back to the moment at which this life of the run begins."""
    pool.go_back_to(began.opt_steps)
    incarnation, throttle = run.dir.identity.incarnation, LogThrottle(UNWRITTEN_LOGGED_EVERY)

    def make_file() -> bytes:
        return save(copy_to_cpu(run.parts.agent.model_info()))

    def publish_and_offer(opt_steps: int, /, *, wait: bool = False) -> None:
        with logging_write_errors("the pool goes on without this model", throttle):
            pool.offer(ModelVersion(incarnation, opt_steps), make_file)
        publish(opt_steps, wait=wait)

    return publish_and_offer


def _with_counts(run: Run, episodes: Callable[[], dict[str, float]]) -> Callable[[], dict[str, float]]:
    """The means of episodes, with the interventions, and the strength of the policy by its games against the pool."""

    def record() -> dict[str, float]:
        against_pool = {} if run.pool is None else run.pool.record()
        return {**episodes(), **record_interventions(run.memory), **against_pool}

    return record


def _make_life(run: Run, earlier: ResumePoint | None, began: Moment, ranks: Together | None) -> Life:
    """This life of the run, which begins at ``began``."""
    return Life(
        began,
        earlier.take_best_score(run.config) if earlier is not None else -math.inf,
        elsewhere=None if ranks is None else lambda: ranks.inserted_elsewhere,
        is_restarted=run.place.restarts_left > 0,
    )


def _begin_run(run: Run, checkpointer: Checkpointer, ranks: Together | None, *, is_resumable: bool) -> None:
    """Write ``run.json``, and before it the first checkpoint unless the run can be resumed already."""

    def begin() -> None:
        if not is_resumable:
            checkpointer.write_first()
        run.dir.begin()

    if ranks is None:
        begin()
    else:
        begin_in_order(ranks.group, begin, run.dir.note_ranks)


def _make_checkpointer(run: Run, agent: Trained, parts: dict[str, Resumable], began: Moment) -> Checkpointer:
    """The checkpointer of the agent and these parts; in turns, the part that acts is among them."""
    # In turns the replay must be able to go back to a checkpoint. Its slack holds three times the rows between two
    # checkpoints, so there is room while a checkpoint is still being written.
    rows = run.memory.slack // 3 or None if ACTING in parts else None
    device, seconds = run.config.trainer.device, run.config.trainer.checkpoint_seconds
    return Checkpointer(run.states, agent, parts, device, newest=began, seconds=seconds, replay=run.memory, rows=rows)


def _find_beginning(
    run: Run, earlier: ResumePoint | None, agent: Trained, parts: dict[str, Resumable], ranks: Together | None
) -> Moment:
    """The moment at which this life begins: that of the checkpoint, to which agent and parts are put back, or 0."""
    began = Moment(0, run.memory.steps, 0.0) if earlier is None else _restore(run, earlier, agent, parts)
    return began if ranks is None else ranks.share_beginning(run.parts.agent, began)


def _restore(run: Run, earlier: ResumePoint, agent: Trained, parts: dict[str, Resumable]) -> Moment:
    """Put the agent and the parts back to the checkpoint; return its moment."""
    earlier.restore(agent, parts, run.config.trainer.device)
    moment, inserted = earlier.moment, run.memory.steps
    # Steps that came after the checkpoint count as drawn. Otherwise the trainer would catch up with them while actors
    # wait. A queue does catch up. After a power cut there may be fewer steps than at the checkpoint.
    after = run.limiter().draws_between(moment.samples_total, inserted)
    run.buffer.skip(max(0, after - run.buffer.waiting))
    log.info(
        "resumed at opt step %d with %d steps to draw of %d ever stored",
        *(moment.opt_steps, run.memory.drawable, inserted),
    )
    return moment


def _make_recorders(run: Run, stack: ExitStack, opt_steps: int) -> list[Recorder]:
    """Open ``metrics.csv``, whose records after ``opt_steps`` are removed, and the recorders of the configuration.

    When they have closed, the learning curve is drawn from ``metrics.csv``.
    """
    stack.callback(_draw_curve, run)
    with run.dir.writing():
        csv = CsvRecorder(run.dir.path / "metrics.csv", opt_steps)
    stack.callback(logging_write_errors("the last records are missing")(csv.close))
    beside: list[BesideRecorder] = []
    stack.callback(close_all, beside)
    facts = facts_of(run.config, run.dir.identity)
    for index, config in enumerate(run.config.recorders):
        build = partial(_build_recorder, config, index, run.dir.path, facts)
        beside.append(BesideRecorder(config.target, build))
    return [csv, *beside]


def _build_recorder(config: PluginConfig, index: int, run_dir: Path, facts: Mapping[str, Any]) -> Recorder:
    """Build the recorder that the configuration names at this place in its list."""
    with naming_fault(f"recorders.{index} {config.target}"):
        recorder: Recorder = config.build(run_dir=run_dir, optional=facts)
    require_role(recorder, "recorder", f"recorders.{index}.target")
    return recorder


def _make_scoring(run: Run, stack: ExitStack, show_life: Callable[[], None]) -> Scoring:
    """The scoring that the configuration names, in this process or in a child."""
    config = run.config
    if not config.trainer.eval_interval:
        return Scoring()
    if config.evaluator.process == "actor":
        raise ConfigError("evaluator.process: expected inline or child, since this run has no actors; found actor")
    if config.evaluator.process == "child":
        process = EvaluatorProcess(config, run.checkpoints, waits=not run.dir.is_resumed)
        stack.callback(process.end)
        return process
    abandoned, busy = threading.Event(), Busy()
    evaluator = open_evaluator(config, run.parts.frames, Watch(abandoned, busy, show_life), stack)
    return InlineScoring(evaluator, run.checkpoints, abandoned, busy, config.env.timeout_seconds)


def _draw_curve(run: Run) -> None:
    """Draw the learning curve; a full disk or a damaged ``metrics.csv`` costs the run only this picture."""
    path, target = run.dir.path, run.config.trainer.target_score
    try:
        plot_learning_curve(path / "metrics.csv", path / "learning_curve.png", run.config.name, target)
    except (OSError, ConfigError) as error:
        log.error("the run ends without its learning curve: %s", error)
