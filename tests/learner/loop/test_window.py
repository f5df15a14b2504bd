from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from common.data import Snapshot
from common.testing import ItemMemory
from learner.loop.window import RecordWindow


def growing(inserted: int = 0) -> ItemMemory:
    """A buffer that only counts."""
    buffer = ItemMemory({"x": np.zeros(1)})
    buffer.inserted = inserted
    return buffer


def test_means_are_over_every_value_since_the_last_call() -> None:
    window = RecordWindow(growing())
    for value in range(1000):
        window.add({"a": torch.tensor(float(value)), "b": 2})
    assert window.means() == {"a": 499.5, "b": 2.0}
    assert window.means() == {}
    window.add({"b": 4})
    assert window.means() == {"b": 4.0}


def test_a_key_that_comes_now_and_then_is_averaged_over_the_times_it_came() -> None:
    window = RecordWindow(growing())
    window.add({"a": 1.0})
    window.add({"a": 3.0, "rare": 10.0})
    assert window.means() == {"a": 2.0, "rare": 10.0}


def test_all_evaluations_since_the_last_record_are_left_out_of_opt_steps_per_second() -> None:
    now = 0.0
    window = RecordWindow(growing(), lambda: now)
    for _ in range(6):
        window.add({})
    window.leave_out(3.0)
    window.leave_out(5.0)
    now = 10.0
    assert window.rates()["opt_steps_per_sec"] == 3.0, "six in two seconds"


@pytest.mark.parametrize("cut", [0, 1, 300, 599])
def test_a_window_that_another_process_goes_on_with_gives_the_same_to_the_last_bit(cut: int) -> None:
    values = np.random.default_rng(0).normal(size=600).tolist()
    now = 0.0

    def collect(window: RecordWindow, buffer: ItemMemory, some: list[float]) -> None:
        nonlocal now
        for value in some:
            window.add({"loss": value})
            buffer.inserted += 3
            now += 0.5

    whole_buffer = growing()
    whole = RecordWindow(whole_buffer, lambda: now)
    collect(whole, whole_buffer, values)
    expected = whole.means(), whole.rates()

    first_buffer = growing()
    first = RecordWindow(first_buffer, lambda: now)
    collect(first, first_buffer, values[:cut])
    kept = json.loads(json.dumps(first.state().values))
    collect(first, first_buffer, values[cut:])
    assert (first.means(), first.rates()) == expected, "keeping it changes nothing"

    now += 1000.0  # Nobody trains, but items come.
    second_buffer = growing(first_buffer.inserted)
    second = RecordWindow(second_buffer, lambda: now)
    second.restore(Snapshot(kept))
    second.start()
    collect(second, second_buffer, values[cut:])
    assert (second.means(), second.rates()) == expected
