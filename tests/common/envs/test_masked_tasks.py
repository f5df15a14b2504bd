from __future__ import annotations

import numpy as np
import pytest

from common.envs.masked_tasks import TakeAway
from common.errors import ConfigError
from crossborder.testing import check_env


def test_the_task_passes_the_check() -> None:
    check_env(TakeAway())


def test_what_the_mask_does_not_allow_is_refused() -> None:
    env = TakeAway(stones=2)
    obs, _ = env.reset()
    assert obs["action_mask"].tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match="3 stones cannot be taken: 2 are left"):
        env.step(np.int64(2))


def test_who_takes_the_last_stone_wins_and_then_nothing_is_allowed() -> None:
    env = TakeAway(stones=2)
    env.reset()
    obs, *outcome, _ = env.step(np.int64(1))
    assert (outcome, obs["action_mask"].tolist()) == ([1.0, True, False], [0, 0, 0])
    env.reset()
    obs, *outcome, _ = env.step(np.int64(0))
    assert (outcome, obs["observation"].tolist()) == ([-1.0, True, False], [1, 0, 0])


@pytest.mark.parametrize("given", [{"stones": 0}, {"most": 0}])
def test_numbers_below_one_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="stones and most of at least 1"):
        TakeAway(**given)
