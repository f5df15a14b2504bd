"""``check_learning`` passes agents that learn, and says of others how far they came."""

from __future__ import annotations

from functools import partial

import pytest

from common.agents.dqn import DQN
from common.agents.ppo import PPO
from common.agents.r2d2 import R2D2
from common.data import Record
from common.errors import ConfigError
from common.interfaces import ReplayBuffer
from crossborder.testing import check_learning
from examples.own_parts import Corridor, TabularQ
from learner.views.sequences import Sequences
from tests.crossborder.testing.parts import fails_saying


class Forgetful(TabularQ):
    """Draws, and learns nothing."""

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        buffer.batch(32)
        return {"td_error": 0.5}


def test_an_agent_that_learns_reaches_the_target() -> None:
    first, *_, last = check_learning(TabularQ, Corridor(), 0.9)
    assert first < 0.0
    assert last >= 0.9


def test_networks_learn_from_transitions_and_networks_with_a_memory_from_sequences() -> None:
    for make, view in ((DQN, None), (partial(R2D2, lr=0.001), partial(Sequences, length=10))):
        assert check_learning(make, Corridor(4), 0.9, opts=500, epsilon=0.5, view=view)[-1] >= 0.9


def test_an_agent_that_does_not_learn_is_told_its_scores() -> None:
    with fails_saying("expected a mean return of 0.9 within 100 opt steps, found -1, -1, -1"):
        check_learning(Forgetful, Corridor(), 0.9, opts=100)


def test_an_agent_that_learns_from_each_step_once_needs_a_run() -> None:
    with fails_saying("PPO learns from each step once, so it needs the queue of a run: test it by sync-train"):
        check_learning(PPO, Corridor(), 0.9)


def test_a_number_of_episodes_that_no_score_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="episodes: expected a number greater than 0, found 0"):
        check_learning(TabularQ, Corridor(), 0.9, episodes=0)
