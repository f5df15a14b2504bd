"""The earlier models of a run that an actor has, to play against them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from actor.client.assembly import ModelFile
from actor.client.shared_models import Fetch, SharedModels
from common.config.pool_config import MAX_POOL
from common.data import Model, ModelVersion


class PoolModels:
    """The models of the pool: those that the learner has announced, and those of them that have come.

    Three threads use it, without a lock. The pusher's thread replaces the whole mapping of announced models; the
    fetcher's thread adds models; the acting thread alone removes them. So a model that ``weights`` has named is there
    for ``load``. While the learner is away, the actor keeps the models that it has.

    Args:
        share: the place that the processes of this host share for a model; None: there is none.
    """

    def __init__(self, share: Callable[[ModelVersion], SharedModels | None]) -> None:
        self._share = share
        self._announced: Mapping[ModelVersion, float] = {}
        self._models: dict[ModelVersion, Model] = {}
        self._gone: set[ModelVersion] = set()  # Announced, but no longer there when this actor asked.

    def announce(self, weights: Mapping[ModelVersion, float]) -> None:
        """Say which models the pool has now, and how likely each is drawn; of more than ``MAX_POOL``, the newest count.

        A weight that is no number from 0 counts as 0: a learner that is not trusted must not end the actor.
        """
        newest = sorted(weights)[-MAX_POOL:]
        self._announced = {v: weights[v] if 0 <= weights[v] < math.inf else 0.0 for v in newest}
        self._gone = set()

    def missing(self) -> ModelVersion | None:
        """A model that the actor lacks, the newest first."""
        lacked = [version for version in self._announced if version not in self._models and version not in self._gone]
        return max(lacked, default=None)

    def fetch(self, version: ModelVersion, max_bytes: int, fetch: Fetch) -> None:
        """Get a model from another process of this host, or by ``fetch``."""
        shared = self._share(version)
        file: ModelFile | None = fetch() if shared is None else shared.get(version, max_bytes, fetch)
        if file is None or file.model.version != version:
            self._gone.add(version)
        else:
            self._models[version] = file.model

    @property
    def has_any(self) -> bool:
        """Whether a model has come."""
        return bool(self._models)

    def weights(self) -> dict[ModelVersion, float]:
        """How likely each model is drawn that the actor has. Models that left the pool go once a later one has come."""
        found = {version: weight for version, weight in self._announced.items() if version in self._models}
        if not found:
            return dict.fromkeys([*self._models], 1.0)
        for version in [version for version in [*self._models] if version not in self._announced]:
            del self._models[version]
            if (shared := self._share(version)) is not None:
                shared.remove()
        return found

    def load(self, version: ModelVersion) -> Model:
        """A model that ``weights`` has named."""
        return self._models[version]
