from __future__ import annotations

import torch

from learner.window import RecordWindow


def test_means_are_over_every_value_since_the_last_call() -> None:
    window = RecordWindow()
    for value in range(1000):
        window.add({"a": torch.tensor(float(value)), "b": 2})
    assert window.means() == {"a": 499.5, "b": 2.0}
    assert window.means() == {}
    window.add({"b": 4})
    assert window.means() == {"b": 4.0}


def test_a_key_that_comes_now_and_then_is_averaged_over_the_times_it_came() -> None:
    window = RecordWindow()
    window.add({"a": 1.0})
    window.add({"a": 3.0, "rare": 10.0})
    assert window.means() == {"a": 2.0, "rare": 10.0}
