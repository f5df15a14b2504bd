from __future__ import annotations

from typing import Any

import pytest

from crossborder.people.device import Label
from crossborder.people.labels import Outcome, judge


def outcome(**info: Any) -> Outcome:
    return "obs", 0.25, False, False, info


@pytest.mark.parametrize(
    ("label", "reward", "ends", "info"),
    [
        (None, 0.25, (False, False), {"is_success": False, "discarded": False}),
        ("success", 1.25, (True, False), {"is_success": True, "discarded": False}),
        ("failure", 0.25, (True, False), {"is_success": False, "discarded": False}),
        ("discard", 0.25, (False, True), {"is_success": False, "discarded": True}),
    ],
)
def test_each_label_has_its_outcome(
    label: Label | None, reward: float, ends: tuple[bool, bool], info: dict[str, bool]
) -> None:
    judged = judge(outcome(force=3), label, reward=1.0, success_ends=True)
    assert judged == ("obs", reward, *ends, {"force": 3, **info})


def test_without_a_label_the_environments_own_success_counts() -> None:
    assert judge(outcome(is_success=True), None, reward=1.0, success_ends=True)[4]["is_success"] is True


def test_a_person_overrules_the_environment() -> None:
    judged = judge(outcome(is_success=True), "failure", reward=1.0, success_ends=True)
    assert (judged[2], judged[4]["is_success"]) == (True, False)


def test_a_success_need_not_end_the_episode() -> None:
    judged = judge(outcome(), "success", reward=1.0, success_ends=False)
    assert judged[1:4] == (1.25, False, False)
    assert judged[4]["is_success"] is True
