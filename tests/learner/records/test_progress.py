from __future__ import annotations

import io
import logging
import math
from dataclasses import replace
from importlib.util import find_spec

import pytest
from rich.console import Console

from learner.records import progress
from learner.records.progress import Progress, loading_progress, render
from learner.records.status import Status

STATUS = Status(
    name="cartpole",
    seconds=12.0,
    opt_steps=4000,
    max_opts=80_000,
    best_score=123.4,
    target_score=475.0,
    inserted=10_000,
    sampled=256_000,
    replay_size=9_000,
    samples_per_insert=32.0,
    actors_online=2,
    return_mean=88.8,
    policy_lag=42.0,
    record={"opt_steps_per_sec": 9.0, "samples_per_sec": 0.0, "loss": 0.01, "eval_reward": 99.0},
)
BEFORE = replace(STATUS, seconds=10.0, opt_steps=2700, inserted=7400)
SHOWN = [
    "4,000 of 80,000",
    "123.4 of 475",
    "650 opt/s",
    "1300 steps/s",
    "ratio 25.6 of 32",
    "2 actors",
    "88.8",
    "lag 42",
]


def text_of(status: Status) -> str:
    console = Console(file=io.StringIO(), width=150)
    with console.capture() as capture:
        console.print(render(status, BEFORE))
    return capture.get()


@pytest.mark.parametrize("shown", SHOWN)
def test_the_live_display_shows_target_rates_returns_actors_ratio_and_lag(shown: str) -> None:
    assert shown in text_of(STATUS)


def test_a_target_below_zero_is_shown_without_a_bar() -> None:
    shown = text_of(Status(**{**vars(STATUS), "target_score": -200.0, "best_score": -1200.5}))
    assert "best -1200.5 of -200" in shown
    without = text_of(Status(**{**vars(STATUS), "target_score": None}))
    assert shown.count("━") == without.count("━") < text_of(STATUS).count("━"), "only the steps have a bar"


def test_a_run_that_has_only_begun_can_be_shown() -> None:
    begun = Status(**{**vars(STATUS), "best_score": -math.inf, "inserted": 0, "sampled": 0, "record": {}})
    assert "best evaluation -, " in begun.line(begun)
    assert "0 opt/s, 0 steps/s" in begun.line(begun)
    assert "ratio 0.0" in begun.line(begun)


@pytest.mark.parametrize("key", ["loss", "loss_critic"])
def test_the_live_display_shows_the_loss_under_the_name_that_the_agent_gives_it(key: str) -> None:
    status = Status(**{**vars(STATUS), "record": {key: 0.0625, "loss_actor": 7.0}})
    assert "loss 0.0625" in text_of(status)


def test_without_a_terminal_it_logs_plain_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.001)
    with caplog.at_level(logging.INFO), Progress(lambda: STATUS, None) as shown:
        while not caplog.messages:
            shown._closed.wait(0.001)
    assert caplog.messages[0] == STATUS.line(STATUS)


def test_in_a_terminal_the_last_state_stays_on_the_screen() -> None:
    screen = io.StringIO()
    with Progress(lambda: STATUS, Console(file=screen, force_terminal=True, width=150)):
        pass
    assert "of 80,000" in screen.getvalue()


def test_in_a_file_each_status_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.001)
    file = io.StringIO()
    with Progress(lambda: STATUS, Console(file=file, width=80)) as shown:
        while not file.getvalue():
            shown._closed.wait(0.001)
    assert set(file.getvalue().splitlines()) == {STATUS.line(STATUS)}


@pytest.mark.filterwarnings("error")
@pytest.mark.skipif(find_spec("ipywidgets") is not None, reason="the live display works")
def test_in_a_notebook_without_ipywidgets_it_prints_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.001)
    console, shown = Console(force_jupyter=True), list[str]()
    monkeypatch.setattr(console, "print", shown.append)
    with Progress(lambda: STATUS, console) as bar:
        while not shown and bar._thread.is_alive():
            bar._closed.wait(0.001)
    assert shown[0] == STATUS.line(STATUS)


def test_loading_has_a_bar_in_a_terminal() -> None:
    screen = io.StringIO()
    with loading_progress("minari:played-v0", 40, Console(file=screen, force_terminal=True, width=150)) as advance:
        for _ in range(4):
            advance(10)
    assert "loading minari:played-v0" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_without_a_terminal_loading_logs_plain_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    with caplog.at_level(logging.INFO), loading_progress("runs/a", 40, None) as advance:
        advance(10)
        advance(30)
    assert caplog.messages == [
        "loading runs/a: 10 of 40 rows",
        "loading runs/a: 40 of 40 rows",
        "loaded 40 rows from runs/a",
    ]
