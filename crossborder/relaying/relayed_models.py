"""A relay's own copies of the learner's newest model, its newest candidate, and models of its pool."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc

from actor.client.assembly import MAX_MODEL_BYTES, assemble
from common.data import NO_MODEL, ModelVersion
from common.wire.channel import path_of
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import transfer_seconds, version_from_pb, version_to_pb

log = logging.getLogger(__name__)
TOKEN_SECONDS: Final = 0.5
"""For this time, the relay trusts a token that the learner has accepted; then it asks the learner again."""
MAX_TOKENS: Final = 4096
MAX_MEMBERS: Final = 16
"""The most models of a pool that are kept."""
Kind: TypeAlias = bool | ModelVersion
"""Whether a model is a candidate instead of the newest model; or the version of a model of the pool."""
Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True)
class Copy:
    """A whole model as it came from the learner."""

    version: ModelVersion
    messages: tuple[bytes, ...]


class AcceptedTokens:
    """The tokens that the learner has accepted a moment ago, by their digests.

    ``require`` raises grpc.aio.AioRpcError if the learner does not accept the metadata, or does not answer.
    """

    def __init__(self, check: Callable[[Metadata], Awaitable[object]]) -> None:
        self._check = check
        self._accepted_at = OrderedDict[bytes, float]()

    def knows(self, metadata: Metadata) -> bool:
        """Whether the learner has accepted this metadata once, and has refused no call with it since."""
        return _digest(metadata) in self._accepted_at

    def forget(self, metadata: Metadata) -> None:
        """Note that the learner has refused a call with this metadata."""
        self._accepted_at.pop(_digest(metadata), None)

    async def require(self, metadata: Metadata) -> None:
        """Return if the learner accepts the token in ``metadata``, or accepted it less than ``TOKEN_SECONDS`` ago."""
        accepted_at = self._accepted_at.get(_digest(metadata))
        if accepted_at is None or time.monotonic() > accepted_at + TOKEN_SECONDS:
            asked_at = time.monotonic()
            await self._check(metadata)
            self.note(metadata, asked_at)

    def note(self, metadata: Metadata, asked_at: float) -> None:
        """Note that the learner has accepted this metadata when it was asked at this monotonic time."""
        digest = _digest(metadata)
        self._accepted_at[digest] = asked_at
        self._accepted_at.move_to_end(digest)
        if len(self._accepted_at) > MAX_TOKENS:
            self._accepted_at.popitem(last=False)


def _digest(metadata: Metadata) -> bytes:
    return hashlib.sha256(repr(sorted(metadata, key=repr)).encode()).digest()


class RelayedModels:
    """Copies of one run's newest models. All methods run on the event loop's thread.

    One call at a time fetches a model. Calls that come during the fetch wait for it and are answered from its copy, or
    together from that of the next fetch. Strangers never wait among them: ``Relay`` lets none of them come so far.
    """

    def __init__(self, channel: grpc.aio.Channel, tokens: AcceptedTokens) -> None:
        self._get: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path_of("GetModel"))
        self._tokens = tokens
        self._copies: OrderedDict[Kind, Copy] = OrderedDict()
        self._locks = {kind: asyncio.Lock() for kind in (False, True, None)}  # None: of all models of a pool.
        self._asked_at = dict[Kind, float]()
        """When the learner was last asked for its newest model, or its newest candidate, and has answered."""
        self._named = NO_MODEL
        """The newest version that the learner has named on any stream of the run."""
        self._run_id = ""

    def note_run(self, run_id: str) -> None:
        """Note the run that the learner has let an actor join; copies of another run are dropped."""
        if run_id != self._run_id:
            self._run_id, self._named = run_id, NO_MODEL
            self._copies.clear()
            self._asked_at.clear()

    def note_newest(self, version: ModelVersion) -> None:
        """Note a version that the learner has named as its newest."""
        self._named = max(self._named, version)

    async def answer(self, request: pb.GetModelRequest, metadata: Metadata) -> Sequence[bytes]:
        """The messages that answer a request.

        Raises:
            grpc.aio.AioRpcError: the learner does not accept the caller, or cannot be reached.
            ValueError: the model came damaged.
        """
        have = version_from_pb(request.have) if request.HasField("have") else NO_MODEL
        kind: Kind = version_from_pb(request.version) if request.HasField("version") else request.candidate
        copy, came = self._find(kind, have), time.monotonic()
        if copy is not None:
            await self._tokens.require(metadata)
            return copy.messages
        async with self._locks[kind if isinstance(kind, bool) else None]:
            is_known = self._find(kind, have) is not None or self._asked_at.get(kind, -math.inf) >= came
            copy = self._copies.get(kind) if is_known else await self._ask_learner(kind, metadata)
        if is_known:
            await self._tokens.require(metadata)
        if copy is None or copy.version == have:
            return [pb.GetModelResponse(version=version_to_pb(have), not_modified=True).SerializeToString()]
        return copy.messages

    def _find(self, kind: Kind, have: ModelVersion) -> Copy | None:
        """The copy, if it is newer than ``have`` and the learner has named no newer model."""
        copy = self._copies.get(kind)
        if not isinstance(kind, bool):
            return copy
        return copy if copy is not None and copy.version > have and copy.version >= self._named else None

    async def _ask_learner(self, kind: Kind, metadata: Metadata) -> Copy | None:
        """The learner's model of this kind, fetched if it is newer than the copy; None if the learner has none."""
        run_id, copy, asked_at = self._run_id, self._copies.get(kind), time.monotonic()
        asked = {"candidate": kind} if isinstance(kind, bool) else {"version": version_to_pb(kind)}
        request = pb.GetModelRequest(**asked)
        if copy is not None:
            request.have.CopyFrom(version_to_pb(copy.version))
        messages, n_bytes = list[bytes](), 0
        timeout = transfer_seconds(MAX_MODEL_BYTES)  # The deadline of the caller, who knows the size, ends it earlier.
        async for message in self._get(request.SerializeToString(), metadata=metadata, timeout=timeout):
            messages.append(message)
            n_bytes += len(message)
            if n_bytes > MAX_MODEL_BYTES:
                raise ValueError(f"model: expected up to {MAX_MODEL_BYTES} bytes, found more")
        self._tokens.note(metadata, asked_at)
        file = await asyncio.to_thread(assemble, messages)
        if file is not None:
            copy = Copy(file.model.version, tuple(messages))
        if run_id == self._run_id:  # Else another run began during the fetch: the model may be of the former run.
            if isinstance(kind, bool):
                self._asked_at[kind] = asked_at
            if copy is not None:
                self._keep(kind, copy)
        return copy

    def _keep(self, kind: Kind, copy: Copy) -> None:
        """Keep a copy; of many models of a pool, only those that came last."""
        self._copies[kind] = copy
        self._copies.move_to_end(kind)
        members = [kind for kind in self._copies if not isinstance(kind, bool)]
        for old in members[:-MAX_MEMBERS]:
            del self._copies[old]
