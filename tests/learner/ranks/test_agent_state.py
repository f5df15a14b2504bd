from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from common.agents.dqn import DQN
from common.errors import CheckpointError
from common.interfaces import TrainingState
from learner.ranks.agent_state import RandomState
from tests.learner.ranks.pair import SPEC

Pair = Sequence[dict[str, Any]]


def test_all_ranks_have_the_agent_of_rank_0_except_its_random_generators(pair: Pair) -> None:
    assert pair[0]["shared_agent"] == {"same": True, "opt_steps": 7, "kept_noise": True}
    assert pair[1]["shared_agent"] == {"same": False, "opt_steps": 7, "kept_noise": True}


def test_the_random_state_of_another_agent_is_refused() -> None:
    agent = DQN(SPEC, seed=0, units=[8], batch_size=4)
    with pytest.raises(CheckpointError, match="DQN: the saved state of its random generators does not fit this agent"):
        RandomState(agent).load_training_state(TrainingState({}, {}))
