"""A client that plays ``CountingEnv`` until it is killed: ``counting_client ADDRESS FIRST_TAG LANES``.

It breaks its own connection now and then, leaves sessions without a word, and goes on through whatever else breaks.
Each environment has its own tag, from FIRST_TAG on. If an action is not the one for its observation, it fails.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import grpc
import numpy as np

from common.interfaces import EnvSpec
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import ERROR_KEY
from tests.crossborder.serving.services import Caller, Stream
from tests.parts import CountingEnv

SPEC = EnvSpec(CountingEnv.observation_space, CountingEnv.action_space)
CUT, LEAVE = 0.01, 0.003
"""How often a message is followed by a broken connection, or by none at all."""
AWAY_SECONDS = 0.05
PACE_SECONDS = 0.001
"""Of a step, so that the clients leave the cores to the processes that a test waits for."""
LASTING = {"session_lost": "the session is gone", "stopping": "the service ends"}


class SessionLostError(Exception):
    """The session cannot be resumed."""


class Client:
    def __init__(self, caller: Caller, tags: Iterator[int], n: int) -> None:
        self._caller, self._tags, self._n = caller, tags, n
        self._random = random.Random(next(tags))

    def run(self) -> None:
        while True:
            try:
                self._play()
            except SessionLostError:
                time.sleep(AWAY_SECONDS)

    def _play(self) -> None:
        """Play one session until it is lost or left."""
        self._stream = self._connect(open=pb.OpenSession(lanes=self._n))
        secret, envs = self._stream.opened.secret, [CountingEnv() for _ in range(self._n)]
        obs = [env.reset(seed=next(self._tags))[0] for env in envs]
        actions: list[int | None] = [*self._ask(secret, 1, range(self._n), obs)]
        for seq in count(2):
            if self._random.random() < LEAVE:
                self._stream.cut()
                return
            lanes = sorted(self._random.sample(range(self._n), self._random.randint(1, self._n)))
            results = {lane: self._advance(envs[lane], actions[lane]) for lane in lanes}
            for lane, (seen, *_) in results.items():
                obs[lane] = seen
            fields = {
                name: [result[i] for result in results.values()]
                for i, name in ((1, "reward"), (2, "terminated"), (3, "truncated"))
            }
            given = self._ask(secret, seq, lanes, [obs[lane] for lane in lanes], **fields)
            for lane, action in zip(lanes, given, strict=True):
                ended = results[lane][2] or results[lane][3]
                actions[lane] = None if ended else action

    def _advance(self, env: CountingEnv, action: int | None) -> tuple[Any, float, bool, bool]:
        """Step, or begin the next episode if the last one has ended."""
        if action is None:
            return env.reset()[0], 0.0, False, False
        time.sleep(PACE_SECONDS)
        seen, reward, terminated, truncated, _ = env.step(action)
        return seen, reward, terminated, truncated

    def _ask(self, secret: str, seq: int, lanes: Any, obs: list[Any], **fields: Any) -> list[int]:
        """Send a step, again if the connection breaks, until its answer is there."""
        message = self._stream.make_step(seq, np.stack(obs), lanes=list(lanes), **fields)
        while True:
            try:
                self._stream.send(step=message)
                self._cut_sometimes()  # Often before the message is on its way.
                answer = self._stream.read()
                if self._random.random() < CUT:
                    self._stream.cut()
                    continue  # As if the answer had not come.
            except (grpc.RpcError, StopIteration) as error:
                _require_session(error)
                self._stream = self._connect(resume=pb.ResumeSession(secret=secret))
                assert self._stream.opened.last_seq in {seq - 1, seq}, "the service has lost a step"
                continue
            assert answer.seq == seq
            return [int(action) for action in np.frombuffer(answer.action, np.int64)]

    def _cut_sometimes(self) -> None:
        if self._random.random() < CUT:
            self._stream.cut()

    def _connect(self, **first: Any) -> Stream:
        while True:
            try:
                return Stream(self._caller, **first)
            except (grpc.RpcError, StopIteration) as error:
                _require_session(error)
                time.sleep(AWAY_SECONDS)


def _require_session(error: Exception) -> None:
    """Let errors pass after which a client may resume.

    Raises:
        SessionLostError: it may not.
        RpcError: this client has done something wrong.
    """
    if isinstance(error, StopIteration):
        return
    assert isinstance(error, grpc.RpcError)
    names = {str(entry.value) for entry in error.trailing_metadata() or () if entry.key == ERROR_KEY}
    if names & LASTING.keys():
        raise SessionLostError
    if "run_over" in names:
        sys.exit(0)
    if names or error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
        raise error


def main() -> None:
    address, first_tag, lanes = sys.argv[1:]
    # Without a pause, since the service may be back at once.
    options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50)]
    with Caller(address, SPEC, grpc.insecure_channel(address, options)) as caller:
        Client(caller, count(int(first_tag)), int(lanes)).run()


if __name__ == "__main__":
    main()
