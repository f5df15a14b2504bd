"""Checks parts of the learner: replay buffer, evaluator, recorder, callback."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from common.data import RUN_KEYS, Items
from common.evaluation import score_agent
from common.interfaces import Agent, Callback, Evaluation, Evaluator, Recorder, ReplayBuffer
from crossborder.testing.play import check_record, explaining

RECORDS: tuple[tuple[int, Mapping[str, float]], ...] = (
    (1, {"loss": 0.5}),
    (2, {"loss": 0.25, "eval_reward": -3.0}),
    (2**40, {"brand_new": 1e-9}),
    (3, {"eval_reward": 7.0}),
)
"""Records as a learner writes them: keys come and go, and a score may come late."""


def check_replay_buffer(
    buffer: ReplayBuffer, items: Items, *, inserted: int | None = None, steps: int = 1, size: int = 256
) -> None:
    """Check that a buffer draws stored items and counts them, and draws by priority if it is prioritised.

    Args:
        buffer: newly filled.
        items: everything that can be drawn, or more, in the form of a batch: ``[n, …]``, with at least two different
            rows.
        inserted: the number of steps that were stored; None: n.
        steps: the steps in one draw, by which ``sampled`` counts.
        size: of the largest batch.
    """
    count = len(next(iter(items.values())))
    inserted = count if inserted is None else inserted
    assert buffer.inserted == inserted, (
        f"inserted is {buffer.inserted} after {inserted} steps: count every step, forever"
    )
    assert 0 < len(buffer) <= inserted, (
        f"len() is {len(buffer)}, expected 1 to {inserted}: the number that can be drawn now"
    )
    # Draw one row, many rows, and more rows than there are: then the same row must come twice.
    known = {_row(items, i, items) for i in range(count)}
    drawn: set[bytes] = set()
    indexed: dict[int, bytes] = {}
    for n in (1, size, 2 * len(buffer)):
        before = buffer.sampled
        with explaining(f"batch({n}) failed with {len(buffer)} that can be drawn: draw with replacement"):
            batch = buffer.batch(n)
        _check_batch(batch, items, n)
        _check_prioritised(batch, items, indexed)
        assert buffer.sampled == before + n * steps, (
            f"sampled grew by {buffer.sampled - before} at batch({n}), expected {n * steps}: count every step drawn"
        )
        drawn |= {_row(batch, i, items) for i in range(n)}
        assert drawn <= known, "batch() gave a row that was never inserted: take all columns of a row from one step"
    assert buffer.inserted == inserted, "inserted changed while batches were drawn: it counts what comes in"
    assert len(drawn) > 1, f"batch() gave the same row {size + 2 * len(buffer)} times: draw at random"
    if "index" in buffer.batch(1):
        _check_priorities(buffer, size)


def _row(items: Items, index: int, names: Items) -> bytes:
    return b"".join(items[name][index].tobytes() for name in names)


def _check_batch(batch: Items, items: Items, n: int) -> None:
    missing = sorted(items.keys() - batch.keys())
    assert not missing, f"batch() lacks the columns {', '.join(missing)}"
    for name, column in batch.items():
        shape = (n, *(items[name].shape if name in items else column.shape)[1:])
        assert column.shape == shape, f"batch({n}) gave '{name}' as {list(column.shape)}, expected {list(shape)}"
        dtype = items[name].dtype if name in items else column.dtype
        assert column.dtype == dtype, f"batch() gave '{name}' as {column.dtype}, inserted was {dtype}"


def _check_prioritised(batch: Items, items: Items, indexed: dict[int, bytes]) -> None:
    """Check that the columns ``index`` and ``weight``, which only a prioritised buffer adds, fit the draws.

    Args:
        batch: newly drawn.
        items: have the columns that are stored.
        indexed: the rows that were drawn before, by index; this function adds the rows of the batch.
    """
    added = {"index", "weight"} & batch.keys() - items.keys()
    if not added:
        return
    assert len(added) == 2, f"batch() gave '{added.pop()}' alone: a prioritised buffer gives both index and weight"
    for name, dtype in (("index", np.int64), ("weight", np.float32)):
        found = batch[name]
        assert found.ndim == 1, f"batch() gave '{name}' as {list(found.shape)}, expected one number for each draw"
        assert found.dtype == dtype, f"batch() gave '{name}' as {found.dtype}, expected {np.dtype(dtype)}"
    index, weight = batch["index"], batch["weight"]
    for i, number in enumerate(index.tolist()):
        row = _row(batch, i, items)
        assert indexed.setdefault(number, row) == row, (
            f"batch() gave the index {number} for two different rows: an index names one draw for good"
        )
    assert ((weight > 0) & (weight <= 1)).all(), (
        f"batch() gave weights from {weight.min()} to {weight.max()}, expected above 0 and at most 1: divide by the "
        "largest"
    )


def _check_priorities(buffer: ReplayBuffer, size: int) -> None:
    """Check that a row is drawn more often after its error became by far the largest."""
    before = buffer.batch(size)["index"]
    worst = before[0]
    with explaining("update_priority() failed on the index of a batch"):
        buffer.update_priority(before, np.where(before == worst, 1e9, 0.0).astype(np.float32))
    after = buffer.batch(size)["index"]
    times = [int((index == worst).sum()) for index in (before, after)]
    # The row's odds must double, not its share: one of two rows has half of the draws, and cannot have twice that.
    assert times[1] * (size - times[0]) > 2 * times[0] * (size - times[1]), (
        f"update_priority() changed nothing: the row with by far the largest error was drawn {times[1]} times in "
        f"{size}, and {times[0]} times before"
    )


def check_evaluator(evaluator: Evaluator, agent: Agent, *, repeatable: bool = True) -> None:
    """Check that an evaluator gives a score and leaves the agent as it was.

    Args:
        evaluator: runs the agent, more than once.
        agent: fits the evaluator's environment.
        repeatable: whether the same agent must get the same score again, so that scores of a run can be compared.
    """
    agent.eval()
    before = {name: value.detach().clone() for name, value in agent.model_info().items()}
    first = evaluator.evaluate(agent)
    assert isinstance(first, Evaluation), f"evaluate() gave {type(first).__name__}: return Evaluation(score, record)"
    check_record({"score": first.score}, "evaluate()", ())
    check_record(first.record, "evaluate()", RUN_KEYS)
    assert not agent.is_train, "evaluate() left the agent in train mode: the learner switches, an evaluator need not"
    for name, value in agent.model_info().items():
        assert value.equal(before[name]), f"evaluate() left '{name}' of the agent changed: an evaluation must not train"
    if repeatable:
        again = score_agent(evaluator, agent)[0]
        assert math.isclose(first.score, again), (
            f"evaluate() scored the same agent {first.score} and then {again}: start the episodes from the same seeds "
            "every time, or say repeatable=False"
        )


def check_recorder(
    recorder: Recorder, read: Callable[[], Sequence[tuple[int, Mapping[str, float]]]] | None = None
) -> None:
    """Check that a recorder takes the records that a learner writes, and close it.

    Args:
        recorder: newly made; closed at the end.
        read: gives the records as other processes can see them, in any order: opt steps, and the values by key.
    """
    for opt_steps, record in RECORDS:
        given = dict(record)
        with explaining(
            f"write({opt_steps}, {given}) failed: keys come and go, opt_steps takes 64 bits and may go back"
        ):
            recorder.write(opt_steps, given)
        assert given == record, "write() changed the record it was given: the learner goes on using it"
        recorder.flush()
        _check_readable(read, RECORDS[: RECORDS.index((opt_steps, record)) + 1], "flush()")
    with explaining("write() failed on a value that is not finite: a loss may become one, and must be seen"):
        recorder.write(2**40 + 1, {"loss": math.inf})
    recorder.close()
    _check_readable(read, (*RECORDS, (2**40 + 1, {"loss": math.inf})), "close()")


def _check_readable(
    read: Callable[[], Sequence[tuple[int, Mapping[str, float]]]] | None,
    written: Sequence[tuple[int, Mapping[str, float]]],
    when: str,
) -> None:
    if read is None:
        return
    found, expected = (
        sorted(((opt_steps, dict(record)) for opt_steps, record in rows), key=itemgetter(0))
        for rows in (read(), written)
    )
    assert found == expected, f"after {when} others can read {found}, expected {expected}"


RECORD: Final = {"seconds": 1.5, "samples_total": 64.0, "loss": 0.25}
SCORES: Final = (1.0, -3.5, 1.0, 2.0)


def check_callback(make: Callable[[], Callback]) -> None:
    """Show records and evaluations to a callback as a learner does, and restore it into a new one.

    Args:
        make: makes the callback; called twice.
    """
    callback, restored = make(), make()
    _show(callback, 0)
    with explaining("state() must return values that JSON can hold"):
        state = json.loads(json.dumps(callback.state()))
    with explaining("restore() failed on what state() returned, after JSON"):
        restored.restore(state)
    assert json.loads(json.dumps(restored.state())) == state, "restore() did not bring back what state() returned"
    answers = _show(callback, len(SCORES)), _show(restored, len(SCORES))
    assert answers[0] == answers[1], f"a restored callback answers {answers[1]}, not {answers[0]}: state() lacks a part"


def _show(callback: Callback, opt_steps: int) -> list[str | None]:
    """A callback's answers to a few evaluations and records."""
    answers: list[str | None] = []
    for score in SCORES:
        opt_steps += 1
        given = {**RECORD, "eval_reward": score}
        record = dict(given)
        with explaining("on_evaluation() failed"):
            answers.append(callback.on_evaluation(opt_steps, Evaluation(score, {"eval_reward": score})))
        with explaining("on_record() failed: keys come and go"):
            answers.append(callback.on_record(opt_steps, record))
        assert record == given, "on_record() changed the record it was given"
    wrong = [answer for answer in answers if answer is not None and not isinstance(answer, str)]
    assert not wrong, f"expected a reason as text, or None, found {wrong[:1]}"
    return answers
