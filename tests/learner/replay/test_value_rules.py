from __future__ import annotations

import contextlib

import numpy as np
import pytest

from common.bad_values import LARGEST_VALUE
from common.data import PRIORITY, Column, Items, Schema
from common.domain import Domain
from common.errors import RefusedError
from common.wire.codec import decode, encode
from learner.replay.value_rules import ValueRules

SCHEMA = Schema((Column("obs", "<f4", (2,)), Column("reward", "<f2"), Column("n", "<i8")))
BOUNDED = Schema(
    (
        Column("obs", "<f4", (2,), domain=Domain.between([-1, -np.inf], [1, np.inf], "<f4")),
        Column("action", "<i8", domain=Domain.between(0, 1, "<i8")),
        PRIORITY,
    )
)
NAN, INF = np.nan, np.inf


def items(reward: list[float], obs: float = 0.0) -> Items:
    made = SCHEMA.empty(len(reward))
    made["obs"][:], made["reward"][:], made["n"][:] = obs, reward, 7
    return made


def test_nan_becomes_0_infinity_the_bound_and_what_is_finite_stays() -> None:
    rules = ValueRules(SCHEMA, {"reward": 10.0})
    payload = encode(SCHEMA, items([NAN, INF, -INF, 500.0]), 4)
    assert decode(SCHEMA, 4, payload, rules)["reward"].tolist() == [0.0, 10.0, -10.0, 500.0]
    assert rules.nonfinite_found == {"obs": 0, "reward": 3}


def test_a_column_without_a_bound_is_refused_and_counted() -> None:
    rules = ValueRules(SCHEMA, {"reward": 10.0})
    with pytest.raises(RefusedError, match="column 'obs': expected finite values, found inf in row 0"):
        decode(SCHEMA, 2, encode(SCHEMA, items([0.0, 1.0], obs=INF), 2), rules)
    assert rules.nonfinite_found == {"obs": 4, "reward": 0}


def bounded(obs: float = 0.0, action: int = 0, priority: float = 0.0) -> Items:
    """Three items, the second of which has these values."""
    made = {column.name: np.zeros((3, *column.shape), column.dtype) for column in BOUNDED.columns}
    made["obs"][1, 0], made["action"][1], made["priority"][1] = obs, action, priority
    return made


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"action": 2}, "column 'action': expected 0 to 1, found 2 in row 1"),
        ({"action": -1}, "column 'action': expected 0 to 1, found -1 in row 1"),
        ({"priority": -0.5}, "column 'priority': expected at least 0, found -0.5 in row 1"),
    ],
)
def test_a_value_outside_its_domain_is_refused_by_column_bounds_value_and_row(
    values: dict[str, float], message: str
) -> None:
    rules = ValueRules(BOUNDED, {})
    with pytest.raises(RefusedError, match=f"^{message}$") as refused:
        decode(BOUNDED, 3, encode(BOUNDED, bounded(**values), 3), rules)  # type: ignore[arg-type]
    assert refused.value.reason == "bounds"
    assert rules.outside_found.total() == 1
    with pytest.raises(RefusedError, match=f"^{message}$"):  # As do items that come over no wire.
        rules.check(bounded(**values), 3)  # type: ignore[arg-type]


def test_observations_of_floats_are_counted_and_stored_unless_the_configuration_refuses_them() -> None:
    payload, rules = encode(BOUNDED, bounded(obs=2.0), 3), ValueRules(BOUNDED, {})
    assert decode(BOUNDED, 3, payload, rules)["obs"][1, 0] == 2.0
    assert rules.check(bounded(obs=2.0), 3)["obs"][1, 0] == 2.0
    assert rules.outside_found == {"obs": 2, "action": 0, "priority": 0}
    with pytest.raises(RefusedError, match="column 'obs': expected -1 to 1, found 2 in row 1"):
        decode(BOUNDED, 3, payload, ValueRules(BOUNDED, {"obs": "refuse"}))


@pytest.mark.parametrize(
    ("name", "is_counted"),
    [
        ("obs/arm/joints", True),
        ("next_obs/arm", True),
        ("next_obs", True),
        ("observed", False),
        ("reward", False),
        ("action/obs", False),
    ],
)
def test_every_leaf_of_an_observation_of_floats_is_counted(name: str, *, is_counted: bool) -> None:
    schema = Schema((Column(name, "<f4", (2,), domain=Domain.between(-1, 1, "<f4")),))
    rules, values = ValueRules(schema, {}), np.array([[0.0, 5.0]], np.float32)
    with contextlib.nullcontext() if is_counted else pytest.raises(RefusedError, match="expected -1 to 1, found 5"):
        assert rules.check({name: values}, 1)[name] is values
    assert rules.outside_found[name] == 1
    assert rules.find_refused(schema.columns[0], values).tolist() == [not is_counted]


def test_observations_of_whole_numbers_address_tables_and_are_refused() -> None:
    schema = Schema((Column("obs", "<i8", domain=Domain.between(0, 10, "<i8")),))
    with pytest.raises(RefusedError, match="column 'obs': expected 0 to 10, found 11 in row 0"):
        decode(schema, 1, encode(schema, {"obs": np.array([11])}, 1), ValueRules(schema, {}))


def test_another_column_is_counted_where_the_configuration_says_so() -> None:
    rules = ValueRules(BOUNDED, {"action": "count"})
    decode(BOUNDED, 3, encode(BOUNDED, bounded(action=7), 3), rules)
    assert rules.outside_found["action"] == 1


def test_items_that_come_over_no_wire_are_clipped_too_and_those_given_stay_as_they_are() -> None:
    rules, given = ValueRules(SCHEMA, {"reward": 10.0}), items([NAN, 1.0])
    assert rules.check(given, 2)["reward"].tolist() == [0.0, 1.0]
    assert np.isnan(given["reward"][0])
    with pytest.raises(RefusedError, match="column 'obs': expected finite values, found inf in row 0"):
        rules.check(items([0.0], obs=INF), 1)


WITH_INFO = Schema((*SCHEMA.columns, Column("info/time", "<f8")))


def with_info(time: float, obs: float) -> Items:
    return {**items([0.0, 1.0], obs=obs), "info/time": np.array([0.0, time])}


@pytest.mark.parametrize("value", [1e20, -1e20, 3e38])
def test_a_finite_value_beyond_the_largest_is_refused_and_counted(value: float) -> None:
    rules = ValueRules(WITH_INFO, {})
    rows = with_info(0.0, value)
    with pytest.raises(
        RefusedError, match=r"column 'obs': expected values from -1e\+12 to 1e\+12 \(server\.unusual_values"
    ):
        decode(WITH_INFO, 2, encode(WITH_INFO, rows, 2), rules)
    with pytest.raises(RefusedError, match=r"server\.unusual_values"):
        rules.check(rows, 2)
    assert rules.nonfinite_found["obs"] == 8
    assert rules.find_refused(WITH_INFO.by_name["obs"], rows["obs"]).tolist() == [True, True]


def test_values_up_to_the_largest_and_any_finite_value_of_info_are_kept() -> None:
    rules = ValueRules(WITH_INFO, {})
    rows = with_info(1e300, -LARGEST_VALUE)
    assert decode(WITH_INFO, 2, encode(WITH_INFO, rows, 2), rules)["info/time"].tolist() == [0.0, 1e300]
    assert rules.check(rows, 2) is rows


def test_a_clipped_column_has_its_bound_in_place_of_values_beyond_the_largest() -> None:
    rules = ValueRules(SCHEMA, {"obs": 10.0})
    assert rules.check(items([0.0], obs=-1e20), 1)["obs"].tolist() == [[-10.0, -10.0]]
    wide = ValueRules(SCHEMA, {"obs": 1e30})
    stored = wide.check(items([0.0], obs=INF), 1)["obs"]
    assert not wide.find_refused(SCHEMA.by_name["obs"], stored).any()


def test_a_number_for_a_column_leaves_the_bounds_of_its_space_as_they_are_by_default() -> None:
    schema = Schema(tuple(Column(name, "<f4", domain=Domain.between(-1, 1, "<f4")) for name in ("obs", "action")))
    rules = ValueRules(schema, {"obs": 9.0, "action": 9.0})
    inside = np.zeros(1, np.float32)
    stored = rules.check({"obs": np.array([INF], np.float32), "action": inside}, 1)
    assert stored["obs"].tolist() == [9.0], "clipped, and beyond the bounds of the space"
    with pytest.raises(RefusedError, match="column 'action': expected -1 to 1, found 9 in row 0"):
        rules.check({"obs": inside, "action": np.array([INF], np.float32)}, 1)
