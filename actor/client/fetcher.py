"""Fetches models while the actor samples: a thread fetches the newest model that was announced, and opponents."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import grpc

from actor.client.assembly import MAX_MODEL_BYTES, ModelFile, assemble, max_file_bytes, require_fitting, shapes_of
from actor.client.shared_models import Fetch, NeighbourModels, SharedModels
from common.config.pool_config import MAX_POOL
from common.data import NO_MODEL, Model, ModelVersion
from common.errors import AuthenticationError, CheckpointError, LearnerUnreachableError
from common.process.clocks import Backoff, Deadline
from common.wire.channel import GetModel
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import HandshakeError, describe, transfer_seconds, typed_error, version_to_pb

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
MOST_WEIGHT: Final = 1e100
"""The sum of all weights of a pool must be finite."""
LOOK_SECONDS = 0.5
"""A thread that waits for the first model looks this often whether the actor has to end: no signal would wake it."""


class PoolModels:
    """The models of the pool: those that the learner has announced, and those of them that have come.

    Three threads use it, without a lock. The pusher's thread replaces the whole mapping of announced models; the
    fetcher's thread adds models; the acting thread alone removes them. So a model that ``weights`` has named is there
    for ``load``. While the learner is away, the actor keeps the models that it has.

    Args:
        share: the place that the processes of this host share for a model; None: there is none.
    """

    def __init__(self, share: Callable[[ModelVersion], NeighbourModels | None]) -> None:
        self._share = share
        self._announced: Mapping[ModelVersion, float] = {}
        self._models: dict[ModelVersion, Model] = {}
        self._gone: set[ModelVersion] = set()  # Announced, but no longer there when this actor asked.

    def announce(self, weights: Mapping[ModelVersion, float]) -> None:
        """Say which models the pool has now, and how likely each is drawn; of more than ``MAX_POOL``, the newest count.

        A weight that is no number from 0 to ``MOST_WEIGHT`` counts as 0: a learner that is not trusted must not end the
        actor.
        """
        newest = sorted(weights)[-MAX_POOL:]
        self._announced = {v: weights[v] if 0 <= weights[v] <= MOST_WEIGHT else 0.0 for v in newest}
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


class ModelFetcher:
    """Fetches models over ``GetModel`` and holds the newest; ``newer_than`` never blocks.

    Its own thread fetches and replaces the model. The acting thread reads it, and the pusher's thread announces
    versions and may give another channel. Model, version and channel are each replaced as a whole, so they are read
    without a lock; threads that wait use the condition. If a channel is closed during a fetch, the fetch fails and is
    tried again on the new channel.

    Args:
        get_model: of the learner; the attribute may be set to that of another channel.
        stopped: ends the thread; set by this object when fetching has failed for good.
        max_bytes: a model whose file is larger is refused. 0: nothing is fetched before ``allow`` gives the size.
        candidates: fetch the models that the trainer wants to have scored.
        shared: models that another process of this host may have already; None: there are none.
        pool: takes the earlier models of the run that play as opponents; None: nobody plays against them.
    """

    def __init__(
        self,
        get_model: GetModel,
        stopped: threading.Event,
        max_bytes: int = MAX_MODEL_BYTES,
        *,
        candidates: bool = False,
        shared: SharedModels | None = None,
        pool: PoolModels | None = None,
    ) -> None:
        self._shared, self._pool = shared, pool
        self.get_model, self._stopped, self._max_bytes = get_model, stopped, max_bytes
        self._candidates = candidates
        lock = threading.Lock()
        self._changed, self._heard = threading.Condition(lock), threading.Condition(lock)
        self._announced, self._announced_at = NO_MODEL, -math.inf
        self._asked_at = -math.inf
        """When this actor asked the learner for its last model, or heard of that model if a neighbour asked for it."""
        self._is_fetching = False
        self._model: Model | None = None
        self._confirmed_at = -math.inf
        """When the learner last said that ``_model`` is its newest."""
        self._base: ModelFile | None = None
        """The last model's file, for deltas; None if it could not be assembled, so that the next model comes whole."""
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self.failure: AuthenticationError | CheckpointError | None = None
        """Why fetching has ended: the learner no longer trusts this actor, or its models do not fit the agent."""
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="models", daemon=True)
        self._thread.start()

    def allow(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fetch models from now on. They must have the tensors of this actor's agent (``Agent.model_info``)."""
        with self._changed:
            self._shapes = shapes_of(tensors)
            self._max_bytes = max_file_bytes(tensors)
            self._changed.notify_all()

    def announce(self, newest: ModelVersion) -> None:
        """Say that the learner has just named this version as its newest."""
        with self._changed:
            if newest > self._announced:
                self._announced, self._announced_at = newest, time.monotonic()
                self._changed.notify_all()
            if newest <= self._version():
                self._confirmed_at = time.monotonic()
            self._heard.notify_all()

    def announce_pool(self, weights: Mapping[ModelVersion, float]) -> None:
        """Say which earlier models play as opponents, and how likely each is drawn."""
        if self._pool is not None:
            self._pool.announce(weights)
            with self._changed:
                self._changed.notify_all()

    def newer_than(self, version: ModelVersion) -> Model | None:
        model = self._model
        return model if model is not None and model.version > version else None

    def confirmed_at(self, version: ModelVersion) -> float | None:
        """When the learner last said that this version is its newest, on the monotonic clock.

        None if this is not the newest version that was fetched.
        """
        with self._changed:
            return self._confirmed_at if self._version() == version else None

    def wait_for_word(self, seconds: float) -> None:
        """Wait until the learner names its newest model or a model comes, for at most ``seconds``."""
        with self._heard:
            self._heard.wait(seconds)

    def first(self, seconds: float) -> Model | None:
        """Wait for the first model, and the first opponent; None if the actor was stopped during the wait.

        A fetch that has begun is waited for, since a model may travel for longer over a slow link.

        Raises:
            LearnerUnreachableError: ``seconds`` have passed, and no model came and none is on its way.
        """
        deadline = Deadline(seconds)
        with self._changed:
            while not (self._is_ready() or self._stopped.is_set()):
                if deadline.passed() and not self._is_fetching:
                    break
                self._changed.wait(min(LOOK_SECONDS, deadline.remaining() or LOOK_SECONDS))
        if not (self._is_ready() or self._stopped.is_set()):
            raise LearnerUnreachableError(f"no model came within {seconds:g} s")
        return self._model

    def _is_ready(self) -> bool:
        return self._model is not None and (self._pool is None or self._pool.has_any)

    def wait_newer(self, version: ModelVersion, seconds: float) -> Model | None:
        """Wait for a model that is newer than ``version``; None if none comes in time or the actor is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._version() > version or self._stopped.is_set(), seconds)
        return self.newer_than(version)

    def wake(self) -> None:
        """Let the threads that wait look at ``stopped`` again."""
        with self._changed:
            self._changed.notify_all()
            self._heard.notify_all()

    def end(self, seconds: float) -> None:
        """End fetching, and wait for the thread, which may be in a long transfer.

        A thread that is still in a transfer ends after the transfer. It does not rely on ``stopped`` alone, because an
        actor that starts anew clears ``stopped`` in the meantime.
        """
        self._has_ended = True
        self.wake()
        self._thread.join(seconds)

    def _version(self) -> ModelVersion:
        return self._model.version if self._model is not None else NO_MODEL

    def _run(self) -> None:
        backoff = Backoff()
        while not self._is_over():
            with self._changed:
                if not self._changed.wait_for(self._has_work, 1.0):
                    continue
            if self._is_over():
                return
            delay, self._is_fetching = 0.0, True
            try:
                if self._announced > self._version():
                    self._adopt(self._fetch())
                self._fetch_opponent()
                backoff.reset()
            except CheckpointError as error:
                self._fail(error)
                return
            except (grpc.RpcError, ValueError, OSError, MemoryError) as error:
                if self._ends_trust(error):
                    return
                reason = describe(error) if isinstance(error, grpc.RpcError) else repr(error)
                log.warning("a model could not be fetched and is tried again: %s", reason)
                delay = backoff.next_delay()
            finally:
                self._is_fetching = False
            self._stopped.wait(delay)

    def _adopt(self, file: ModelFile | None) -> None:
        if file is not None and file.model.version > self._version():
            if self._shapes is not None:
                require_fitting(file.model, self._shapes)
            with self._changed:
                self._model, self._base, self._confirmed_at = file.model, file, self._asked_at
                self._changed.notify_all()
                self._heard.notify_all()

    def _is_over(self) -> bool:
        return self._has_ended or self._stopped.is_set()

    def _has_work(self) -> bool:
        has_news = self._announced > self._version() or (self._pool is not None and self._pool.missing() is not None)
        return (self._max_bytes > 0 and has_news) or self._is_over()

    def _fetch_opponent(self) -> None:
        """Fetch a model of the pool that this actor lacks."""
        version = None if self._pool is None else self._pool.missing()
        if self._pool is None or version is None:
            return
        request, max_bytes = pb.GetModelRequest(version=version_to_pb(version)), self._max_bytes

        def fetch() -> ModelFile | None:
            return assemble(self.get_model(request, timeout=transfer_seconds(max_bytes)), None, max_bytes)

        self._pool.fetch(version, max_bytes, fetch)
        with self._changed:
            self._changed.notify_all()

    def _fetch(self) -> ModelFile | None:
        """The newest model; None if the learner has none that is newer than the present one."""
        with self._changed:
            announced, self._asked_at = self._announced, self._announced_at
        if self._shared is None:
            return self._fetch_over_grpc()
        return self._shared.get(announced, self._max_bytes, self._fetch_over_grpc)

    def _fetch_over_grpc(self) -> ModelFile | None:
        self._asked_at = time.monotonic()
        base, request = self._base, pb.GetModelRequest(candidate=self._candidates)
        if base is not None:
            request.have.CopyFrom(version_to_pb(base.model.version))
            request.takes_delta = True
        try:
            return assemble(self.get_model(request, timeout=transfer_seconds(self._max_bytes)), base, self._max_bytes)
        except ValueError:
            self._base = None
            raise

    def _ends_trust(self, error: Exception) -> bool:
        """Whether an error says that the learner no longer trusts this actor; if so the actor stops.

        A failed handshake does not say so: the actor has joined, and its connection is made anew.
        """
        typed = typed_error(error) if isinstance(error, grpc.RpcError) else None
        if isinstance(typed, AuthenticationError) and not isinstance(typed, HandshakeError):
            self._fail(typed)
        return self.failure is not None

    def _fail(self, error: AuthenticationError | CheckpointError) -> None:
        """End fetching, and the actor with it; if fetching has ended already, the actor may have begun another life."""
        self.failure = error
        if not self._has_ended:
            self._stopped.set()
        self.wake()
