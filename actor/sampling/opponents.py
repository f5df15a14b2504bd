"""The opponents of an actor: earlier models of its run, of which one plays each game to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from common.config.actor_config import ActorConfig
from common.data import Model, ModelVersion
from common.lanes.policy import Policy
from common.parts import Parts
from common.plugins.part_config import AgentArguments


class Opponents:
    """Draws an opponent for each game.

    Each model has its own agent, which explores as the actor with the least exploration did. A game keeps the agent
    that it has drawn, also if its model leaves the pool meanwhile, so no opponent changes within a game.

    Args:
        weights: how likely each model of the pool is drawn, in proportion to the others; at least one.
        load: gives one of these models.
    """

    def __init__(
        self,
        config: ActorConfig,
        parts: Parts,
        seed: int,
        weights: Callable[[], Mapping[ModelVersion, float]],
        load: Callable[[ModelVersion], Model],
    ) -> None:
        self._config, self._parts, self._seed = config, parts, seed
        self._weights, self._load = weights, load
        self._policies: dict[ModelVersion, Policy] = {}

    def draw(self, rng: np.random.Generator) -> Policy:
        """The model that plays the next game."""
        found = self._weights()
        versions = sorted(found)
        weights = np.array([found[version] for version in versions])
        shares = weights / weights.sum() if weights.any() else None
        version = versions[int(rng.choice(len(versions), p=shares))]
        self._policies = {known: policy for known, policy in self._policies.items() if known in found}
        if version not in self._policies:
            self._policies[version] = self._build(self._load(version))
        return self._policies[version]

    def _build(self, model: Model) -> Policy:
        parts, opt_steps = self._parts, model.version.opt_steps
        arguments = AgentArguments(spec=parts.spec, seed=self._seed + 1 + opt_steps, epsilon=0.0, device="cpu")
        agent = self._config.agent.build(**arguments)
        agent.sync_model(model)
        agent.train()
        return Policy(agent, parts.frames, parts.frame_stack, opt_steps)
