"""``PushItems``: decides which batches and reports are taken, and stores and counts them."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np

from common.bad_values import KEEP_ALL
from common.data import FINAL, FIRST, LANE, MAX_ENV_ERROR, MAX_EPISODES, VERSION, Array, Items, ModelVersion, Schema
from common.errors import BadValue, RefusedError, SchemaMismatchError
from common.process.log import quote
from common.shared.mapped import fence
from common.wire.codec import decode
from common.wire.compression import decompress
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import SharedIncarnationError, version_from_pb
from learner.ingest.core import IngestCore
from learner.ingest.limits import holder_of
from learner.ingest.pool_answers import check_games
from learner.ingest.registry import MAX_RETURN
from learner.replay.quarantine import Record, summarize_row
from learner.shared.actor_table import REPORTED, ActorState

log = logging.getLogger(__name__)
MAX_FIGURE: Final = 2**53
"""The largest figure that a report may hold; up to here floats count whole numbers exactly."""
LAG_SMOOTHING: Final = 0.05
_figures_of = attrgetter(*REPORTED)
Payload: TypeAlias = bytes | memoryview


def push(core: IngestCore, row: int, request: Request) -> int | None:
    """Take one request of an actor: store its batch unless it is stored already, and note its report.

    Returns:
        The seq of the batch, which is stored now; None for a report alone.

    Raises:
        RefusedError, SchemaMismatchError: nothing was stored; the message names actor, column, expected and found.
        SharedIncarnationError: nothing was stored; the batch is that of another process with the same incarnation.
    """
    payload = request.payload[0] if len(request.payload) == 1 else b"".join(request.payload)
    try:
        return _take(core, row, request.head, payload)
    except (RefusedError, SchemaMismatchError) as error:
        core.counts.batches_refused[_reason_of(error)] += 1
        if core.quarantine.has_room(core.registry.name(row)):
            core.quarantine.add(_record_refusal(core, row, request.head, payload, error))
        raise type(error)(f"actor {core.registry.actor_id(row)}: {error}") from error


def _take(core: IngestCore, row: int, request: pb.PushItemsRequest, payload: Payload) -> int | None:
    if core.registry.row_of(request.incarnation) != row:
        raise RefusedError(
            f"incarnation: expected that of the stream's first request, found {request.incarnation:016x}", "sequence"
        )
    report, last = request.report, core.writer.last_seq(request.incarnation)
    if report.HasField("score"):
        _take_score(core, row, report.score)
    if request.seq == 0:
        if request.rows or payload:
            raise RefusedError(f"seq: expected 1 or more for a batch of {request.rows} rows, found 0", "sequence")
        figures = _check_report(report)
    elif request.seq <= last:  # The actor has not heard the acknowledgement and sends the batch again.
        _require_same_rows(core, request, payload)
        core.control.duplicates += 1
        figures = _check_report(report)
    else:
        if core.evaluates(row):
            raise RefusedError(f"seq: expected 0 of an actor that evaluates, found {request.seq}", "sequence")
        # The rows are checked before the report. A NaN from the environment makes both wrong, and only the refusal of
        # the rows can name the column.
        began = time.monotonic()
        if request.seq != last + 1:
            raise RefusedError(f"seq: expected {last + 1}, found {request.seq}", "sequence")
        items = _decode(core, request, payload)
        figures = _check_report(report)
        unfinished = _store(core, request, items)
        if unfinished:
            _note_unfinished(core, row, unfinished)
        if request.trace_parent:
            end = core.memory.committed
            core.traces.note_stored(row, request.trace_parent, range(end - request.rows, end), began)
        core.control.payload_bytes += len(payload)
        _note_batch(core, row, request, items)
    core.registry.note_report(row, figures, building=report.building)
    if report.env_error and (missed := core.env_error_log.due()) is not None:
        text, actor_id = quote(report.env_error[-MAX_ENV_ERROR:]), core.registry.actor_id(row)
        log.warning("actor %d failed (%d more before it):\n%s", actor_id, missed, text)
    if report.leaving:
        core.registry.set_state(row, ActorState.LEFT)
    return request.seq or None


def _take_score(core: IngestCore, row: int, score: pb.Score) -> None:
    if core.scoring is None or not core.evaluates(row):
        raise RefusedError("score: expected none of an actor that did not join to evaluate", "report")
    core.scoring.scores.take(score, core.registry.actor_id(row))


def _require_same_rows(core: IngestCore, request: pb.PushItemsRequest, payload: Payload) -> None:
    """Check that a batch whose number is stored has the rows that are stored: the rows of a clone would be lost."""
    items = _decode(core, request, payload)
    if core.memory.has_other_rows(items, request.rows, request.incarnation, request.seq):
        raise SharedIncarnationError(
            f"actor {core.registry.actor_id(core.row_of(request.incarnation))}: batch {request.seq}: expected the rows "
            "that are stored under this number, found others: another process pushes as the same incarnation, as after "
            "a machine or a process was cloned or brought back from a snapshot"
        )


def _decode(core: IngestCore, request: pb.PushItemsRequest, payload: Payload) -> Items:
    """The rows of a batch, checked against the schema and the value rules."""
    if request.schema_hash != core.schema.hash:
        raise SchemaMismatchError(f"schema: expected {core.schema.hash:016x}, found {request.schema_hash:016x}")
    max_rows = _limits_of(core, request.incarnation).max_rows
    if not 1 <= request.rows <= max_rows:
        raise RefusedError(f"rows: expected 1 to {max_rows}, found {request.rows}", "rows")
    if request.behaviour.opt_steps > MAX_FIGURE:
        raise RefusedError(
            f"behaviour: expected opt steps up to {MAX_FIGURE}, found {request.behaviour.opt_steps}", "report"
        )
    items = decode(core.schema, request.rows, _decompress(core, request, payload), core.values)
    if core.schema.is_rows:
        check_flags(items)
    return items


def _limits_of(core: IngestCore, incarnation: int) -> pb.Limits:
    """The limits that an actor process may have been told, maybe by an ingest process before this one."""
    limits = core.batch_limits
    return limits.largest if core.registry.was_here_before(incarnation) else limits.present


def _decompress(core: IngestCore, request: pb.PushItemsRequest, payload: Payload) -> Payload:
    if request.compression == pb.COMPRESSION_ZSTD:
        most = _limits_of(core, request.incarnation).max_message_bytes
        return decompress(payload, min(request.rows * core.schema.row_bytes, most))
    if request.compression:
        raise RefusedError(f"compression: expected none or 1 (zstd), found {request.compression}", "payload")
    return payload


def _check_report(report: pb.Report) -> tuple[float, ...]:
    """The figures of a report, in the order of ``REPORTED``."""
    returns, n_lengths = report.episode_returns, len(report.episode_lengths)
    if len(report.episode_successes) > n_lengths:
        raise RefusedError(
            f"report: expected at most {n_lengths} episode successes, one for each length, "
            f"found {len(report.episode_successes)}",
            "report",
        )
    if len(returns) != n_lengths or n_lengths > MAX_EPISODES:
        raise RefusedError(
            f"report: expected as many episode lengths as returns, at most {MAX_EPISODES}, "
            f"found {n_lengths} and {len(returns)}",
            "report",
        )
    if report.pool_games:
        check_games(report)
    if not sum(map(abs, returns)) <= MAX_RETURN:  # A comparison with NaN is false, so NaN is refused too.
        raise RefusedError(
            f"report: expected finite episode returns with a sum up to {MAX_RETURN:g}, found {max(returns, key=abs)}",
            "report",
        )
    figures: tuple[float, ...] = _figures_of(report)
    # The sum stands for all figures, since a check of each takes longer; a comparison with NaN is false here too.
    if min(figures) < 0 or not sum(figures) <= MAX_FIGURE:
        found = dict(zip(REPORTED, figures, strict=True))
        raise RefusedError(f"report: expected figures from 0 with a sum up to {MAX_FIGURE}, found {found}", "report")
    return figures


def _note_unfinished(core: IngestCore, row: int, episodes: int) -> None:
    """Count episodes that no final row ended, and log them."""
    core.counts.unfinished_episodes += episodes
    if (missed := core.unfinished_log.due()) is not None:
        log.warning(
            "actor %d: an episode has no final row, but the next episode of its lane has begun (%d more before it). "
            "The last step of the unfinished episode is never drawn. The environment failed, the actor made a safe "
            "stop, or its client sends no final rows",
            core.registry.actor_id(row),
            missed,
        )


def _store(core: IngestCore, request: pb.PushItemsRequest, items: Items) -> int:
    """Store a batch and wake the trainer; return how many episodes follow an episode without a final row."""
    unfinished = core.writer.append(
        items, request.rows, request.incarnation, request.seq, follows=not request.after_drop
    )
    core.control.batches += 1
    # The trainer sets ``trainer_waits_for`` and then looks for rows once more before it sleeps; ingest commits the rows
    # and then looks at ``trainer_waits_for``. With a fence between the two steps on either side, at least one of the
    # processes sees what the other has written, so no row comes without the bell while the trainer sleeps.
    fence()
    if core.control.trainer_waits_for:
        core.trainer_bell.ring()
    return unfinished


def _note_batch(core: IngestCore, row: int, request: pb.PushItemsRequest, items: Items) -> None:
    """Count a stored batch for the registry, the turns, the quota and the metrics."""
    behaviour, report, control = version_from_pb(request.behaviour), request.report, core.control
    steps, opt_steps = _count_steps(core.schema, items, request.rows), _acting_opt_steps(core.schema, items, behaviour)
    total = core.registry.note_batch(row, steps, round(opt_steps), report.episode_returns, report.episode_lengths)
    name = core.registry.name(row)
    core.turns.note_batch(row, holder_of(row, name), steps, core.excess(control.sampled))
    core.turns.note_share(row, steps, total, control.batch_steps, control.sampled)
    core.shares.note_batch(row, name, request.rows)
    if report.episode_successes:
        core.registry.note_successes(report.episode_successes)
        # The mean is written before the count: the trainer may read in between, and a count above 0 says that there is
        # a mean.
        control.success_mean = core.registry.success_mean()
        control.success_episodes += len(report.episode_successes)
    newest = core.models.newest()
    if core.pool is not None:
        core.pool.note(report.pool_games, newest)
    if control.acting_incarnation < behaviour.incarnation <= max(MAX_FIGURE, newest.incarnation):
        control.acting_incarnation = behaviour.incarnation
    lag = max(0.0, newest.opt_steps - opt_steps)
    control.policy_lag += LAG_SMOOTHING * (lag - control.policy_lag)
    core.counts.lag_steps.observe(lag)
    core.counts.lag_seconds.observe(time.monotonic() - core.answers.published_at(behaviour))


def _count_steps(schema: Schema, items: Items, rows: int) -> int:
    """How many of the rows are steps; final rows are not steps."""
    return rows - int(np.count_nonzero(items[FINAL.name])) if schema.is_rows else rows


def _acting_opt_steps(schema: Schema, items: Items, behaviour: ModelVersion) -> float:
    """The mean opt steps of the models that acted; for self-contained items, the opt steps of the batch's model."""
    return float(items[VERSION.name].mean()) if schema.is_rows else behaviour.opt_steps


def _record_refusal(
    core: IngestCore,
    row: int,
    request: pb.PushItemsRequest,
    payload: Payload,
    error: RefusedError | SchemaMismatchError,
) -> Record:
    """The record of a refused batch for people to inspect: its actor, the reason, and its first bad row if any."""
    record = Record(
        reason=_reason_of(error),
        message=str(error),
        actor_id=core.registry.actor_id(row),
        host=core.registry.host(row),
        sender=core.registry.name(row),
        incarnation=f"{request.incarnation:016x}",
        seq=request.seq,
    )
    bad = error.bad if isinstance(error, RefusedError) else None
    if bad is None:
        return record
    try:
        items = decode(core.schema, request.rows, _decompress(core, request, payload), KEEP_ALL)
    except RefusedError:
        return record  # The batch has more than one fault, and no rows that can be shown.
    values = summarize_row(items, bad.row)
    return replace(record, column=bad.column, expected=bad.expected, found=bad.found, row=bad.row, values=values)


def _reason_of(error: RefusedError | SchemaMismatchError) -> str:
    return error.reason if isinstance(error, RefusedError) else "schema"


def check_flags(items: Items) -> None:
    """Check where the episodes of a batch begin and end.

    No final row begins an episode or says how a step ended. In each lane a final row is followed by the first row of an
    episode, and a truncated row by its final row: otherwise the step's next observation would be of another episode. A
    row that is terminated may be followed by any row, since its next observation does not count: a map of rows may call
    the loss of a life an end.

    Args:
        items: rows in the order of time, ``[n]`` each.

    Raises:
        RefusedError: naming the first row that breaks a rule.
    """
    final = items[FINAL.name]
    truncated = items.get("truncated", np.zeros_like(final))
    if not np.count_nonzero(final | truncated):
        return
    for name in (FIRST.name, "terminated", "truncated"):
        if name in items:
            _refuse(np.flatnonzero(final & items[name]), name, wanted=False, where="in a final row")
    # The rows of each lane one after the other, so that the next row of a lane is the next one in these arrays.
    order = np.argsort(items[LANE.name], kind="stable")
    columns = (items[LANE.name], items[FIRST.name], final, truncated)
    lane, first, final, truncated = (column[order] for column in columns)
    goes_on, following = lane[1:] == lane[:-1], order[1:]
    _refuse(
        following[goes_on & final[:-1] & ~first[1:]], FIRST.name, wanted=True, where="after a final row of its lane"
    )
    cut_off = goes_on & truncated[:-1] & ~final[1:]
    _refuse(following[cut_off], FINAL.name, wanted=True, where="after a truncated row of its lane")


def _refuse(rows: Array, name: str, *, wanted: bool, where: str) -> None:
    """Raise an error if there are rows that hold a wrong flag.

    Args:
        rows: their numbers in the batch, ``[k]``.
        name: the flag's column.
        wanted: the right flag.
        where: the place in which the flag is wrong.
    """
    if len(rows):
        bad = BadValue(name, f"{wanted} {where}", str(not wanted), int(rows.min()))
        raise RefusedError(str(bad), "values", bad)
