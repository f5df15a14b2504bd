from __future__ import annotations

from crossborder.people.device import Command


def test_a_person_who_says_nothing_leaves_the_step_to_the_agent() -> None:
    assert Command() == Command(action=None, label=None)
