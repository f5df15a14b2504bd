from __future__ import annotations

from typing import Any

import pytest

from common.agents.dqn import DQN
from common.data import Array
from common.errors import PluginError
from common.interfaces import Agent, acting_for_lanes
from common.lanes.building import spec_of
from tests.parts import CheckingAgent, CountingEnv

SPEC = spec_of(CountingEnv())


class TakesLanes(CheckingAgent):
    def sample(self, obs: Array, lanes: Array | None = None) -> Array:
        return super().sample(obs)


class BeginsEverywhere(TakesLanes):
    def begin(self, lanes: Array) -> None: ...  # type: ignore[override] # as agents of release 0.3 have it


def make(kind: type[Agent], **given: Any) -> Agent:
    return kind(spec=SPEC, seed=0, epsilon=0.0, device="cpu", **given)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [DQN, TakesLanes])
def test_an_agent_that_takes_lanes_can_act_for_some_of_them(kind: type[Agent]) -> None:
    agent: object = make(kind)
    assert isinstance(agent, Agent)
    found: object = acting_for_lanes(agent)
    assert found is agent


@pytest.mark.parametrize(("kind", "method"), [(CheckingAgent, "sample"), (BeginsEverywhere, "begin")])
def test_an_agent_that_acts_for_all_lanes_at_once_is_told_so_when_it_should_act_for_some(
    kind: type[Agent], method: str
) -> None:
    message = rf"{kind.__name__}\.{method} acts for all lanes at once: expected a parameter 'lanes', \[k\] int64"
    with pytest.raises(PluginError, match=message):
        acting_for_lanes(make(kind))
