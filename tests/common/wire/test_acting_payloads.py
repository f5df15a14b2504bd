from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.errors import PluginError, SchemaMismatchError
from common.interfaces import EnvSpec
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError

BOX, DISCRETE = gymnasium.spaces.Box, gymnasium.spaces.Discrete


def test_bounds_are_told_once_where_all_elements_have_the_same_and_one_by_one_otherwise() -> None:
    low, high = np.array([-1, -2], np.float32), np.array([1, np.inf], np.float32)
    described = Description(EnvSpec(BOX(low, high), DISCRETE(4, start=-1))).leaves()
    assert described == (
        [pb.Leaf(dtype="<f4", shape=[2], low=[-1, -2], high=[1, np.inf])],
        [pb.Leaf(dtype="<i8", low=[-1], high=[2])],
    )


def test_actions_have_the_dtype_and_shape_of_their_space_whatever_the_agent_computes() -> None:
    description = Description(EnvSpec(DISCRETE(2), BOX(-1, 1, (2,), np.float32)))
    (payload,) = description.write_actions(np.array([[0.5, -0.5], [1, 0]], np.float64), [2])
    assert payload == np.array([0.5, -0.5, 1, 0], "<f4").tobytes()
    assert description.read_action(payload, 2).tolist() == [[0.5, -0.5], [1, 0]]  # type: ignore[union-attr]


def test_the_actions_of_a_batch_are_divided_among_its_sessions() -> None:
    parts = gymnasium.spaces.Dict({"arm": BOX(-1, 1, (2,), np.float32), "grip": DISCRETE(9)})
    description = Description(EnvSpec(DISCRETE(2), parts))
    arm, grip = np.arange(8, dtype=np.float32).reshape(4, 2) / 8, np.array([5, 6, 7, 8])
    payloads = description.write_actions({"arm": arm, "grip": grip}, [1, 3])
    found = [description.read_action(payload, k) for payload, k in zip(payloads, (1, 3), strict=True)]
    assert [actions["grip"].tolist() for actions in found] == [[5], [6, 7, 8]]
    assert np.concatenate([actions["arm"] for actions in found]).tolist() == arm.tolist()


@pytest.mark.parametrize("actions", [{"arm": np.zeros((2, 2))}, [[0], [1, 2]]])
def test_a_policy_that_gives_no_action_for_each_lane_is_named(actions: Any) -> None:
    description = Description(EnvSpec(DISCRETE(2), BOX(-1, 1, (3,), np.float32)))
    with pytest.raises(PluginError, match="the policy's actions do not fit the action space: "):
        description.write_actions(actions, [1, 1])


@pytest.mark.parametrize(
    "actions", [np.array([1.7, 0]), np.array(["0", "1"]), np.array([[0], [1]]), np.zeros(3, np.int64), None]
)
def test_actions_of_another_kind_or_shape_are_refused_and_not_converted(actions: Any) -> None:
    description = Description(EnvSpec(DISCRETE(2), DISCRETE(2)))
    expected = (
        r": expected actions for 2 lanes, int64 \[2\], found .* in action|'s actions do not fit the action space: "
    )
    with pytest.raises(PluginError, match=f"the policy({expected})"):
        description.write_actions(actions, [1, 1])


def test_whole_numbers_of_another_dtype_are_actions_if_the_space_can_hold_them() -> None:
    pairs = gymnasium.spaces.MultiDiscrete([3, 200], dtype=np.uint8)
    description = Description(EnvSpec(DISCRETE(2), pairs))
    assert description.write_actions(np.array([[2, 199]], np.int64), [1]) == [bytes([2, 199])]
    with pytest.raises(PluginError, match="uint8 cannot hold these values of int64"):
        description.write_actions(np.array([[2, 300]], np.int64), [1])


def test_an_action_that_is_not_finite_reaches_no_client() -> None:
    description = Description(EnvSpec(DISCRETE(2), BOX(-1, 1, (2,), np.float32)))
    with pytest.raises(PluginError, match="the policy: expected finite actions, found nan in action"):
        description.write_actions(np.array([[0.5, np.nan]]), [1])


def test_observations_may_be_written_as_torch_warns_of_those_that_may_not() -> None:
    description = Description(EnvSpec(BOX(-1, 1, (2,), np.float32), DISCRETE(2)))
    payload = description.write_observation(np.ones((1, 2), np.float32), 1)
    observation = np.asarray(description.read_observation(payload, 1))
    assert observation.flags.writeable
    observation[:] = 0
    assert np.asarray(description.read_observation(payload, 1)).tolist() == [[1.0, 1.0]]


def test_floats_of_observations_may_leave_their_bounds_and_integers_may_not() -> None:
    spec = EnvSpec(gymnasium.spaces.Dict({"goal": DISCRETE(2), "speed": BOX(-1, 1, (1,), np.float32)}), DISCRETE(2))
    description = Description(spec)
    payload = description.write_observation({"goal": np.array([1]), "speed": np.array([[9.0]])}, 1)
    assert description.read_observation(payload, 1)["speed"].tolist() == [[9.0]]
    with pytest.raises(BadMessageError, match="column 'observation/goal': expected 0 to 1, found 2"):
        description.read_observation(payload.replace(b"\x01", b"\x02"), 1)


def described(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> pb.DescribeResponse:
    leaves = Description(EnvSpec(observation, action)).leaves()
    return pb.DescribeResponse(observation=leaves[0], action=leaves[1])


@pytest.mark.parametrize(
    ("theirs", "mine", "message"),
    [
        ((BOX(-1, 1, (3,), np.float32), DISCRETE(2)), (BOX(-1, 1, (2,), np.float32), DISCRETE(2)), "<f4 [3]"),
        (
            (DISCRETE(9), DISCRETE(2)),
            (DISCRETE(8), DISCRETE(2)),
            "observation: the acting service expects <i8 [] from 0",
        ),
        (
            (DISCRETE(9), DISCRETE(2)),
            (DISCRETE(9), DISCRETE(3)),
            "action: the acting service expects <i8 [] from 0 to 1",
        ),
        (
            (DISCRETE(9), BOX(-1, 1, (1,), np.float32)),
            (DISCRETE(9), BOX(-2, 1, (1,), np.float32)),
            "env has <f4 [1] from -2 to 1",
        ),
        (
            (gymnasium.spaces.Dict({"a": DISCRETE(2), "b": DISCRETE(2)}), DISCRETE(2)),
            (gymnasium.spaces.Dict({"a": DISCRETE(2)}), DISCRETE(2)),
            "expects 'b' <i8 [] from 0 to 1, env has no further leaf",
        ),
    ],
)
def test_the_first_leaf_that_differs_from_a_service_is_named(theirs: Any, mine: Any, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=re.escape(message)):
        Description(EnvSpec(*mine)).require_same(described(*theirs), "env")


def test_floats_of_observations_may_have_other_bounds_than_those_of_a_service() -> None:
    spec = EnvSpec(BOX(-1, 1, (3,), np.float32), BOX(-1, 1, (1,), np.float32))
    spec_of_env = EnvSpec(BOX(-9, np.inf, (3,), np.float32), BOX(-1, 1, (1,), np.float32))
    Description(spec_of_env).require_same(described(spec.observation_space, spec.action_space), "env")
