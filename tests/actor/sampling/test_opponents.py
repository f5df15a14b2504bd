from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import numpy as np

from actor.sampling.opponents import Opponents
from common.config.actor_config import ActorConfig
from common.data import Model, ModelVersion
from common.envs.pettingzoo import make
from common.lanes.lanes import Busy
from common.parts import Parts, build_parts
from common.settings import validate
from tests.duels import ENV, Duel

ONE, TWO, THREE = (ModelVersion(1, opt_steps) for opt_steps in (1, 2, 3))


def load(version: ModelVersion) -> Model:
    return Model(version, {"steps": np.array([version.opt_steps], np.float32)})


def built() -> tuple[ActorConfig, Parts]:
    config = validate(ActorConfig, {"env": ENV, "agent": {"target": "tests.duels:Versioned"}})
    return config, build_parts(config, seed=0)


def test_models_are_drawn_in_proportion_to_their_weights() -> None:
    weights = {ONE: 1.0, TWO: 3.0, THREE: 0.0}
    opponents = Opponents(*built(), 0, lambda: weights, load)
    rng = np.random.default_rng(0)
    counts = Counter(opponents.draw(rng).opt_steps for _ in range(400))
    assert counts[3] == 0
    assert 70 < counts[1] < 130
    weights.update({ONE: 0.0, TWO: 0.0})
    assert {opponents.draw(rng).opt_steps for _ in range(50)} == {1, 2, 3}, "without weights, each is as likely"


def test_a_game_keeps_its_model_when_it_leaves_the_pool() -> None:
    weights = {ONE: 1.0}
    opponents = Opponents(*built(), 0, lambda: weights, load)
    rng = np.random.default_rng(0)
    first = opponents.draw(rng)
    assert opponents.draw(rng) is first, "games against one model share its agent"
    weights.clear()
    weights[TWO] = 1.0
    second = opponents.draw(rng)
    obs, begins, lanes = np.zeros((2, 2), np.float32), np.array([True, True]), np.array([0, 4])
    for policy, expected in ((first, 1), (second, 2)):
        np.testing.assert_array_equal(policy.sample(obs, begins, lanes), [expected, expected])


def test_the_lanes_of_an_actor_give_it_to_their_environment() -> None:
    config, _ = built()
    parts = build_parts(config, seed=0, n_envs=1)
    assert parts.lanes is not None
    parts.lanes.pool = Opponents(config, parts, 0, lambda: {TWO: 1.0}, load)
    assert parts.lanes.pool is not None
    parts.lanes.reset(0)
    parts.lanes.observe()
    outcome = parts.lanes.step(np.full(3, 9))
    assert isinstance(outcome.obs, np.ndarray)
    assert outcome.obs[:, 1].tolist() == [2, 2, 2]
    parts.close()
    assert make(**ENV["params"]).pool is None


def test_an_environment_that_is_built_again_goes_on_with_the_same_opponents() -> None:
    config, _ = built()
    parts = build_parts(config, seed=0, n_envs=1)
    assert parts.lanes is not None

    class Keeper:
        busy = Busy()

        def replace(self, env: Any, error: Exception | SystemExit) -> Any:
            return make(**ENV["params"])

    parts.lanes.keep(Keeper())
    parts.lanes.pool = opponents = Opponents(config, parts, 0, lambda: {TWO: 1.0}, load)
    parts.lanes.reset(0)
    parts.lanes.observe()
    with patch.object(Duel, "step", side_effect=RuntimeError):
        parts.lanes.step(np.full(3, 9))
    assert parts.lanes.pool is opponents
    parts.lanes.observe()
    assert parts.lanes.step(np.full(3, 9)).taken is None
    parts.close()
