from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from crossborder.sweeps.board import Board


def show(board: Board) -> None:
    with board:
        board.began(2, {"lr": 0.00012345, "units": [64, 64]})
        for values in ({}, {100.0: 3.0}, {100.0: 3.0}, {100.0: 3.0, 200.0: 4.25}):
            board.progressed(2, 7, 250, 1000, values)
        board.ended(2, "score 4.25")


def test_elsewhere_than_in_a_terminal_each_event_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        show(Board(5, 1, None))
    assert caplog.messages == [
        "trial 2: lr 0.00012345, units [64, 64]",
        "trial 2, seed 7: opt step 100 of 1000, 3",
        "trial 2, seed 7: opt step 200 of 1000, 4.25",
        "trial 2: score 4.25",
    ]


def test_a_terminal_has_a_bar_for_each_run_and_one_for_the_trials() -> None:
    stream = io.StringIO()
    show(Board(5, 1, Console(file=stream, force_terminal=True, width=100)))
    shown = stream.getvalue()
    assert "trials" in shown
    assert "2/5" in shown


def test_a_run_may_begin_while_another_trial_ends() -> None:
    board = Board(5, 0, None)

    class Ending(int):
        """The number of a trial; another thread begins a run when it is compared."""

        def __eq__(self, other: object) -> bool:
            board.progressed(3, 0, 0, 1000, {})
            return int(self) == other

        __hash__ = int.__hash__

    for seed in range(2):
        board.progressed(2, seed, 0, 1000, {})
    board.ended(Ending(2), "score 4.25")
    assert [*board._runs] == [(3, 0)]
