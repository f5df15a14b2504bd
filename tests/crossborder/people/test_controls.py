from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from common.errors import ConfigError
from common.settings import validate
from crossborder.people.controls import Binding, Controls, ControlsConfig, Inputs, rest_of

BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32))


def controls(space: spaces.Space[Any], moves: dict[str, Binding], **values: Any) -> Controls:
    return Controls(space, validate(ControlsConfig, {"take_over": "hold", **values}), moves, "pad")


def test_each_input_moves_its_dimension_towards_a_bound() -> None:
    pad = controls(BOX, {"left": (0, -1.0), "up": (1, 1.0), "slow": (0, 0.25)})
    assert pad.command({"left": 1.0}).action == pytest.approx([-2, 0])
    assert pad.command({"up": 0.5, "slow": 1.0}).action == pytest.approx([0.5, 0.5])
    assert pad.command({"left": 1.0}).action.dtype == np.float32


def test_the_values_of_inputs_add_up_and_stay_within_the_bounds() -> None:
    pad = controls(BOX, {"right": (0, 1.0), "more": (0, 1.0), "left": (0, -1.0)}, speed=0.5)
    assert pad.command({"right": 1.0, "more": 1.0}).action == pytest.approx([1, 0])
    assert pad.command({"right": 1.0, "left": 1.0}).action == pytest.approx([0, 0])


def test_of_discrete_actions_the_input_that_was_pressed_last_counts() -> None:
    pad = controls(spaces.Discrete(3, start=5), {"a": 5, "b": 7})
    assert pad.command({"a": 1.0, "b": 1.0}).action == 7
    assert pad.command({"b": 1.0, "a": 1.0}).action == 5


def test_a_person_who_takes_over_and_does_not_move_stays_at_rest() -> None:
    assert controls(BOX, {}).command({"hold": 1.0}).action == pytest.approx([0, 0])
    assert controls(spaces.Discrete(3, start=5), {}).command({"hold": 1.0}).action == 5
    assert controls(BOX, {}).command({"other": 1.0}).action is None


def test_labels_come_with_or_without_an_action() -> None:
    pad = controls(BOX, {"up": (1, 1.0)}, success="y", failure="n", discard="x")
    assert (pad.command({"y": 1.0}).label, pad.command({"y": 1.0}).action) == ("success", None)
    both = pad.command({"up": 1.0, "n": 1.0})
    assert both.label == "failure"
    assert both.action == pytest.approx([0, 1])


def test_the_action_at_rest_is_as_near_to_zero_as_bounds_allow() -> None:
    assert rest_of(spaces.Box(2, 3, (2,), np.float32)) == pytest.approx([2, 2])
    assert rest_of(spaces.Box(-np.inf, np.inf, (1,), np.float32)) == pytest.approx([0])


def test_the_action_at_rest_is_the_first_of_actions_that_are_counted() -> None:
    assert rest_of(spaces.Discrete(3, start=5)) == 5
    assert rest_of(spaces.MultiDiscrete([2, 3])).tolist() == [0, 0]
    assert rest_of(spaces.MultiBinary(2)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("space", "moves", "message"),
    [
        (spaces.MultiBinary(2), {}, r"pad: expected Discrete actions or a Box of floats.*found MultiBinary\(2\)"),
        (spaces.Box(-np.inf, 1, (1,)), {}, "finite bounds"),
        (BOX, {"a": (2, 1.0)}, r"pad: moves\.a: expected \[dimension, value\] with a dimension from 0 to 1"),
        (BOX, {"a": (0, 1.5)}, r"value from -1 to 1, found \(0, 1.5\)"),
        (BOX, {"a": 1}, r"pad: moves\.a: expected \[dimension, value\]"),
        (spaces.Discrete(2), {"a": 2}, r"pad: moves\.a: expected an action of Discrete\(2\), found 2"),
        (spaces.Discrete(2), {"hold": 1}, "expected each input to do one thing, found two for hold"),
    ],
)
def test_what_does_not_fit_the_actions_is_named(space: Any, moves: dict[str, Binding], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        controls(space, moves)


def test_a_short_tap_between_two_looks_is_seen_once() -> None:
    inputs = Inputs()
    inputs.press("a")
    inputs.press("b")
    inputs.release("a")
    assert inputs.look() == ["a", "b"]
    assert inputs.look() == ["b"]
    inputs.release("b")
    assert inputs.look() == []


def test_a_tap_counts_as_pressed_after_an_input_that_is_held_for_longer() -> None:
    inputs = Inputs()
    inputs.press("held")
    inputs.press("tapped")
    inputs.release("tapped")
    assert inputs.look() == ["held", "tapped"]
    assert inputs.look() == ["held"]


def test_at_the_beginning_of_an_episode_only_moves_that_are_still_held_count() -> None:
    inputs = Inputs()
    for name in ("label", "held", "let go"):
        inputs.press(name)
    inputs.release("let go")
    inputs.begin(["label"])
    assert inputs.look() == ["held"]
    inputs.press("label")
    assert inputs.look() == ["held", "label"]
