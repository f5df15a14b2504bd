"""A check for callbacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from common.interfaces import Callback, Evaluation
from common.testing.play import explaining

RECORD: Final = {"seconds": 1.5, "samples_total": 64.0, "loss": 0.25}
SCORES: Final = (1.0, -3.5, 1.0, 2.0)


def check_callback(make: Callable[[], Callback]) -> None:
    """Show records and evaluations to a callback as a learner does, and restore it into a new one.

    Args:
        make: makes the callback; called twice.

    Raises:
        AssertionError: naming what does not fit and what to do.
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
