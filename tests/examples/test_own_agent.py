"""The fast agent among the examples begins as DQN does; ``tests/test_conformance.py`` checks that it fits."""

from __future__ import annotations

import gymnasium

from common.lanes.building import spec_of
from examples.own_agent import MunchausenDQN
from tests.common.agents.parts import copies, same


def test_its_target_network_begins_as_a_copy_of_the_network() -> None:
    agent = MunchausenDQN(spec_of(gymnasium.make("CartPole-v1")), seed=0, epsilon=0.0, device="cpu")
    assert same(copies(agent.qnet), copies(agent.qnet_tgt))
