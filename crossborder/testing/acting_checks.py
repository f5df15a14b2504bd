"""Checks how an agent acts: its actions, its memory, and its extra columns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from common.action_masks import MASK, find_masks
from common.data import Array, Items, Leaves
from common.interfaces import Agent, EnvSpec, TrainingState, acting_for_lanes
from common.leaves import by_path, copy_leaves, n_rows, pick_leaves, stack_lanes
from common.spaces import leaves_of, to_columns
from crossborder.testing.play import explaining

FORGET = "begins is True where an episode begins, and these lanes forget (crossborder.LaneMemory does so)"
SOME_LANES = np.array([4, 0, 2])
"""The lanes for which an agent acts together; the last of them also acts alone."""


def check_acting(agents: Sequence[Agent], obs: Leaves, space: gymnasium.Space[Any]) -> None:
    """Check that agents act and record as the system expects; the first agent ends in train mode.

    Args:
        agents: three agents with the same seed.
        obs: observations of n lanes.
        space: of the actions.
    """
    check_actions(agents[0], obs, space, train=False)
    _check_extras(agents[0], obs)
    _check_begin(agents, obs)
    _check_modes(agents[0], obs)
    _check_evaluation_between(agents[0], obs)
    _check_lanes(agents[1], agents[2], obs, space)


def switch(agent: Agent, *, train: bool) -> None:
    """Switch as torch's modules do: ``train`` explores, ``eval`` does not."""
    agent.train() if train else agent.eval()
    name = "train" if train else "eval"
    assert agent.is_train is train, f"{name}() did not make is_train {train}: call super().{name}() in your own"


def begin(agent: Agent, obs: Leaves) -> Leaves:
    """Begin an episode in every lane, and return the actions for its first observation."""
    with explaining("begin() failed: it is given [n] bool, all True at first, and n may change between episodes"):
        agent.begin(np.ones(n_rows(obs), np.bool_))
    actions: Leaves = agent.sample(obs)
    return actions


def _answer(agent: Agent, obs: Leaves) -> Items:
    """The agent's actions for observations, and the recurrent state that it records before them."""
    actions = to_columns("action", agent.sample(obs))
    return actions | {name: column.copy() for name, column in agent.extras().items() if is_state(name)}


def _check_lanes(beside: Agent, alone: Agent, obs: Leaves, space: gymnasium.Space[Any]) -> None:
    """Check that a lane acts the same beside other lanes as alone, if the agent can act for some of its lanes."""
    if "lanes" not in inspect.signature(beside.sample).parameters:
        return
    for train in (False, True):
        for agent in (beside, alone):
            switch(agent, train=train)
        for step, (found, expected) in enumerate(_act_for_lanes(beside, alone, obs, space)):
            if not alike(found, expected):
                mode = "train" if train else "eval"
                raise AssertionError(
                    f"at step {step} of {mode} mode, sample(obs, lanes) gave lane {SOME_LANES[-1]} other actions or "
                    f"extras beside the lanes {SOME_LANES[:-1].tolist()} than alone: keep the memory of each lane by "
                    "its number, and draw its random numbers from a sequence of its own (LaneMemory and LaneRandom of "
                    "crossborder do so)"
                )


def _act_for_lanes(
    beside: Agent, alone: Agent, obs: Leaves, space: gymnasium.Space[Any]
) -> Iterator[tuple[Items, Items]]:
    """The answers of the two agents for the lane in which both act; other lanes begin episodes and act in between."""
    with explaining("sample() takes lanes"):
        several, single = (acting_for_lanes(agent) for agent in (beside, alone))
    lane = SOME_LANES[-1:]
    for step in range(5):
        lanes = np.roll(SOME_LANES, step)
        begins = (lanes == 0) & (step == 2) | (step == 0)  # Lane 0 begins again while the other ones go on.
        seen = pick_leaves(obs, (3 * step + lanes) % n_rows(obs))
        with explaining(f"begin(begins, lanes) or sample(obs, lanes) failed for the lanes {lanes.tolist()}"):
            several.begin(begins, lanes)
            actions = several.sample(seen, lanes)
        _check_space(actions, len(lanes), space)
        mine = lanes == lane
        answer = {**to_columns("action", actions), **beside.extras()}
        found = {name: column[mine] for name, column in answer.items()}
        single.begin(begins[mine], lane)
        expected = {**to_columns("action", single.sample(pick_leaves(seen, mine), lane)), **alone.extras()}
        yield found, {name: column.copy() for name, column in expected.items()}
        if step % 2:  # The other lanes act once more.
            several.sample(pick_leaves(seen, ~mine), lanes[~mine])


def is_state(name: str) -> bool:
    """Whether an extra column holds a recurrent state."""
    return name == "state" or name.startswith("state/")


def check_actions(agent: Agent, obs: Leaves, space: gymnasium.Space[Any], *, train: bool) -> None:
    """Check that actions fit their space."""
    switch(agent, train=train)
    for n in 1, n_rows(obs):
        given = copy_leaves(pick_leaves(obs, slice(n)))
        actions = begin(agent, given)
        assert equal_leaves(given, pick_leaves(obs, slice(n))), (
            "sample() changed the observations it was given: copy them first"
        )
        _check_space(actions, n, space)


def check_masks(agent: Agent, obs: Leaves, spec: EnvSpec) -> None:
    """Check that no action is taken that the mask in an observation does not allow, if there are masks."""
    masks = find_masks(spec)
    if masks is None:
        return
    for train in (True, False):
        switch(agent, train=train)
        taken = begin(agent, obs)
        assert masks.are_allowed(obs, taken).all(), (
            f"sample() took an action that {MASK} does not allow, in {'train' if train else 'eval'} mode: see "
            "crossborder.AllowedActions"
        )


def _check_begin(agents: Sequence[Agent], obs: Leaves) -> None:
    """Check that a lane that begins an episode forgets earlier observations, and that no other lane does.

    The three agents have the same seed. If two of them act differently after the same observations, actions are random;
    another check reports that.
    """
    # 1. Two agents have seen the same before the episode begins, and one has seen something else.
    lanes = np.arange(n_rows(obs))
    turned = pick_leaves(obs, lanes[::-1])
    for agent, earlier in zip(agents, (obs, obs, turned), strict=True):
        switch(agent, train=False)
        begin(agent, earlier)
        for _ in range(3):
            agent.sample(earlier)
        agent.begin(np.ones_like(lanes, np.bool_))
    one, same, other = (_answer(agent, obs) for agent in agents)
    assert not alike(one, same) or alike(one, other), (
        "sample() gave other actions if earlier observations differed, although begin() said that an episode begins: "
        f"an agent with a memory overrides begin(begins); {FORGET}"
    )
    # 2. Every other lane begins an episode. It must act as ``one`` did, and the lanes between as if none had begun.
    begins = lanes % 2 == 0
    begin(agents[0], turned)
    goes_on = _answer(agents[0], obs)
    begin(agents[1], turned)
    agents[1].begin(begins)
    mixed = _answer(agents[1], obs)
    if not alike(one, same):
        return
    assert alike(pick_leaves(one, begins), pick_leaves(mixed, begins)), (
        f"begin() for some lanes kept the memory of one of them: {FORGET}"
    )
    assert alike(pick_leaves(goes_on, ~begins), pick_leaves(mixed, ~begins)), (
        f"begin() for some lanes cleared the memory of another, whose episode goes on: {FORGET}"
    )


def _check_modes(agent: Agent, obs: Leaves) -> None:
    """Check that without exploration, actions depend only on the episode's observations; ends in train mode."""
    actions = begin(agent, obs)
    assert alike(actions, begin(agent, obs)), "sample() is not deterministic after eval(): act greedily there"
    switch(agent, train=True)
    begin(agent, obs)
    switch(agent, train=False)
    assert alike(actions, begin(agent, obs)), "train() and eval() do not switch back: other actions after both"
    n = n_rows(obs)
    singly = [pick_leaves(begin(agent, pick_leaves(obs, slice(i, i + 1))), 0) for i in range(n)]
    assert alike(actions, stack_lanes(singly)), (
        f"sample() of {n} observations gave other actions than one by one: no row may depend on the others"
    )
    switch(agent, train=True)


def _check_extras(agent: Agent, obs: Leaves) -> None:
    """Check that the extra columns are those that the agent declares."""
    columns = {column.name: column for column in agent.extra_columns()}
    for n in (n_rows(obs), 1):
        begin(agent, pick_leaves(obs, slice(n)))
        extras = agent.extras()
        assert extras.keys() == columns.keys(), (
            f"extras() gave the columns {sorted(extras)}, extra_columns() declares {sorted(columns)}"
        )
        for name, found in extras.items():
            column = columns[name]
            expected = (np.dtype(column.dtype), (n, *column.shape))
            assert isinstance(found, np.ndarray), f"extras() gave '{name}' as {type(found).__name__}: give an array"
            assert (found.dtype, found.shape) == expected, (
                f"extras() of {n} observations gave '{name}' as {found.dtype} {list(found.shape)}, expected "
                f"{expected[0]} {list(expected[1])}"
            )
            finite = found.dtype.kind != "f" or np.isfinite(found).all()
            assert finite, f"extras() gave '{name}' values that are not finite: the learner refuses them"


def _check_evaluation_between(agent: Agent, obs: Leaves) -> None:
    """Check that an evaluation between two steps changes no recurrent state; ends in train mode."""
    switch(agent, train=True)
    if not any(is_state(column.name) for column in agent.extra_columns()):
        return
    state, states = agent.training_state(), []
    start = TrainingState(
        {name: value.detach().clone() for name, value in state.tensors.items()}, deepcopy(state.values)
    )
    for evaluation in (False, True):
        with explaining("load_training_state() failed on what training_state() gave"):
            agent.load_training_state(start)  # A state may depend on the last action, which is random: draw it again.
        states.append(_states_after(agent, obs, evaluation=evaluation))
    assert equal_leaves(*states), (
        "extras() gave another recurrent state after an evaluation between two steps: keep a memory for train() and "
        "one for eval(), as crossborder.LaneMemory does"
    )


def _states_after(agent: Agent, obs: Leaves, *, evaluation: bool) -> Items:
    """The recurrent states of train mode at the second of two steps, with an evaluation between them if asked for."""
    switch(agent, train=True)
    begin(agent, obs)
    if evaluation:
        switch(agent, train=False)
        begin(agent, pick_leaves(obs, slice(1)))
        switch(agent, train=True)
    agent.sample(obs)
    return {name: column for name, column in agent.extras().items() if is_state(name)}


def _check_space(actions: Any, n: int, space: gymnasium.Space[Any]) -> None:
    leaves = leaves_of(space)
    if "" in leaves:
        _check_leaf(actions, n, space, "sample()")
        return
    advice = f"expected an array for each of {sorted(leaves)} by path, as the action space has them"
    assert isinstance(actions, dict), f"sample() returned {type(actions).__name__}, {advice}"
    assert actions.keys() == leaves.keys(), f"sample() returned {sorted(actions)}, {advice}"
    for path, leaf in leaves.items():
        _check_leaf(actions[path], n, leaf, f"sample() at '{path}'")


def _check_leaf(actions: Any, n: int, space: gymnasium.Space[Any], where: str) -> None:
    shape = (n, *(space.shape or ()))
    assert isinstance(actions, np.ndarray), (
        f"{where} of {n} observations returned {type(actions).__name__} of shape {list(np.shape(actions))}: return a "
        f"numpy array of shape {list(shape)}, one action a row"
    )
    assert actions.dtype == space.dtype, (
        f"{where} returned {actions.dtype} actions, the action space wants {space.dtype}: use .astype(space.dtype)"
    )
    assert actions.shape == shape, (
        f"{where} of {n} observations returned {list(actions.shape)}, expected {list(shape)}: one action a row"
    )
    for action in actions:
        assert space.contains(action), f"{where} returned {action}, which is not in the action space {space}"


def alike(one: Leaves, other: Leaves) -> bool:
    """Whether actions are equal, for floats up to rounding: a batch may be summed in another order."""
    return _compare(one, other, lambda a, b: np.allclose(a, b, rtol=1e-4, atol=1e-5))


def equal_leaves(one: Leaves, other: Leaves) -> bool:
    return _compare(one, other, np.array_equal)


def _compare(one: Leaves, other: Leaves, equal: Callable[[Array, Array], bool]) -> bool:
    pairs = by_path(one), by_path(other)
    return pairs[0].keys() == pairs[1].keys() and all(
        leaf.shape == pairs[1][path].shape and equal(leaf, pairs[1][path]) for path, leaf in pairs[0].items()
    )
