"""``check_env`` plays a vector environment as an actor does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from common.testing import check_env
from tests.common.testing.parts import Walk, fails_saying


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_good_vector_environment_passes(mode: AutoresetMode) -> None:
    check_env(SyncVectorEnv([Walk, Walk], autoreset_mode=mode))


class Undeclared(SyncVectorEnv):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.metadata = {}


class Hiding(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        infos.pop("final_obs", None)
        return obs, reward, terminated, truncated, infos


class Endless(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        return (*super().step(actions)[:2], np.zeros(2, bool), np.zeros(2, bool), {})


@pytest.mark.parametrize(
    ("make", "mode", "message"),
    [
        (Undeclared, "SameStep", "metadata has no 'autoreset_mode'"),
        (Hiding, "SameStep", "infos['final_obs'] is expected"),
        (Endless, "NextStep", "no lane began another episode in 300 steps: play more steps="),
    ],
)
def test_a_vector_environment_that_breaks_its_word_is_refused(make: Any, mode: str, message: str) -> None:
    with fails_saying(message):
        check_env(make([Walk, Walk], autoreset_mode=mode))
