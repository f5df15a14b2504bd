"""An environment whose rewards a classifier of pictures gives (HIL-SERL, arXiv:2410.21845)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import gymnasium
import numpy as np
from pydantic import Field

from common import spaces
from common.data import Array
from common.errors import ConfigError
from common.lanes.lanes import SUCCESS
from common.leaves import by_path
from common.settings import HomePath, Settings, validate
from crossborder.rewards.classifier import load_classifier

PROBABILITY: Final = "success_probability"
"""The key of ``info`` that holds the probability of success after each step."""


class RewardClassifier(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives the reward 1 and ends the episode (terminated) if a classifier sees success at a step; otherwise 0.

    It replaces the environment's reward. ``info`` has ``success_probability`` and ``is_success`` at each step. The
    wrapper sees the pictures that the wrappers inside it make: the classifier must have learnt from the same kind.

    Args:
        env: a plain environment, no vector environment.
        params: see ``Config``.

    Raises:
        ConfigError: a parameter is wrong, or observations lack the pictures of the classifier.
        CheckpointError: the file cannot be read.
    """

    class Config(Settings):
        """The parameters of the wrapper."""

        path: HomePath = Field(
            description="The file that reward-train wrote, a path on each host that builds the environment."
        )
        threshold: Annotated[float, Field(gt=0, lt=1)] | None = Field(
            None, description="A probability above this is a success; null takes the threshold of the file."
        )
        steps: Annotated[int, Field(ge=1)] = Field(
            1, description="How many steps in a row must be a success for a reward; 2 or 3 ignore single wrong ones."
        )

    def __init__(self, env: gymnasium.Env[Any, Any], **params: Any) -> None:
        super().__init__(env)
        config = validate(self.Config, params, "RewardClassifier")
        self._classifier = load_classifier(config.path)
        facts = self._classifier.facts
        self._threshold, self._steps = config.threshold or facts.threshold, config.steps
        self._in_a_row = 0
        leaves = spaces.leaves_of(env.observation_space)
        for path, shape in facts.pictures.items():
            leaf = leaves.get(path)
            if leaf is None or leaf.shape != shape or leaf.dtype != np.uint8:
                name = f"a picture '{path}'" if path else "pictures"
                raise ConfigError(
                    f"RewardClassifier: {config.path}: expected {name} of uint8 {list(shape)} in observations, found "
                    f"{env.observation_space}"
                )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the count of steps in a row begins again."""
        self._in_a_row = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = self.env.step(action)
        probability = float(self._classifier.probabilities(self._pictures(obs))[0])
        self._in_a_row = self._in_a_row + 1 if probability > self._threshold else 0
        is_success = self._in_a_row >= self._steps
        info = {**info, PROBABILITY: probability, SUCCESS: is_success}
        return obs, float(is_success), terminated or is_success, truncated, info

    def _pictures(self, obs: Any) -> dict[str, Array]:
        """The pictures of one observation by path, each ``[1, *shape]``."""
        leaves = spaces.flatten(self.observation_space, obs)
        return {path: leaf[None] for path, leaf in by_path(leaves).items()}
