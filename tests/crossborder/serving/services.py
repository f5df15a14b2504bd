"""Acting services for tests, over real sockets, and a client that writes each message by hand."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import gymnasium
import numpy as np

from common.data import Array, Leaves
from common.interfaces import EnvSpec
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.pb import acting_pb2_grpc as pb_grpc
from common.wire.rpc import ERROR_KEY
from crossborder.certificates.authority import make_files
from crossborder.serving.client_steps import ClientSteps
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving import Places, serve
from crossborder.serving.serving_config import ServingConfig
from tests.conftest import PATIENCE

SOURCE = "runs/<b>&me</b>"
SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(1000))


class Counting:
    """A player whose action is the number of observations that a lane has had in its episode."""

    opt_steps = 7

    def __init__(self, spec: EnvSpec = SPEC) -> None:
        self.spec = spec
        self.batches: list[list[int]] = []
        """The lanes of each batch."""
        self.seen: list[Any] = []
        self._counts = Counter[int]()

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:
        assert len(set(lanes.tolist())) == len(lanes) > 0
        self.batches.append(lanes.tolist())
        self.seen.append(obs)
        for lane, begin in zip(lanes.tolist(), begins.tolist(), strict=True):
            self._counts[lane] = 1 if begin else self._counts[lane] + 1
        return np.array([self._counts[lane] for lane in lanes.tolist()])


class Wide:
    """A player whose actions are large, 4 kB for each lane, so that few answers fit into a connection."""

    opt_steps = 7
    spec = EnvSpec(gymnasium.spaces.Box(-1, 1, (1,), np.float32), gymnasium.spaces.Box(-1, 1, (1000,), np.float32))

    def __init__(self) -> None:
        self._n_first = 0
        """Batches of the first lane."""

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:
        self._n_first += 0 in lanes
        return np.zeros((len(lanes), 1000), np.float32)

    def count_taken(self, most: int, send: Callable[[int], None], step: Callable[[], object]) -> int:
        """Send steps of a session that reads no answers; return how many it took for the service to wait, or ``most``.

        Args:
            most: steps.
            send: a step with this seq, of the first session.
            step: of another session, which shows that the service had time for that of the first.
        """
        for seq in range(1, most + 1):
            send(seq)
            for _ in range(100):
                step()
                if self._n_first == seq:
                    break
            else:
                return seq
        return most


def steps_of(lanes: Array, **given: Any) -> ClientSteps:
    """Steps of these lanes in which nothing has happened beside what is given."""
    k, no = len(lanes), np.zeros(len(lanes), bool)
    usual = {"begins": no, "obs": np.zeros((k, 2), np.float32), "reward": np.zeros(k), "executed": None}
    usual |= {"lanes": lanes, "terminated": no, "truncated": no, "intervened": no, "ends": no}
    return ClientSteps(**{**usual, **given})


def with_certificate(directory: Path, *tokens: str) -> dict[str, Any]:
    """Settings of a service with a new certificate in this directory and, if they are given, ``clients.tokens``."""
    make_files(directory, ["gpu-host"], 1, renew=False)
    settings: dict[str, Any] = {"tls": {"certificate": directory / "server.pem", "key": directory / "server.key"}}
    if tokens:
        settings["token_file"] = directory / "clients.tokens"
        settings["token_file"].write_text("".join(f"{token}\n" for token in tokens))
    return settings


class Service:
    """An acting service in a thread of its own, with an event loop of its own."""

    def __init__(
        self,
        player: Any = None,
        named: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.config = ServingConfig(**{"listen": "127.0.0.1:0", **settings})
        players = named or {"": player or Counting()}
        self.player = next(iter(players.values()))
        self.policies = [ServedPolicy(one, self.config, name=name, source=SOURCE) for name, one in players.items()]
        self.places: Places
        self.error: BaseException | None = None
        self.is_run_over = False
        self._listens, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="service")

    def _run(self) -> None:
        try:
            ends, is_over = self._stopped.is_set, lambda: self.is_run_over
            asyncio.run(serve(self.policies, self.config, ends, self._note, is_over))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self._listens.set()

    def _note(self, places: Places) -> None:
        self.places = places
        self._listens.set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listens.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self

    def end(self) -> None:
        """Ask the service to end, without waiting for it."""
        self._stopped.set()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self.end()
        self._thread.join(PATIENCE)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()


class Caller:
    """A program that talks to a service by gRPC.

    Args:
        service: any object with ``places`` and ``player``, or None with ``address`` and ``spec``.
        channel: another channel than a plain one.
    """

    def __init__(self, address: str, spec: EnvSpec = SPEC, channel: grpc.Channel | None = None) -> None:
        self.channel = channel or grpc.insecure_channel(address)
        self.stub = pb_grpc.ActingServiceStub(self.channel)
        self.description = Description(spec)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.channel.close()

    def open(self, lanes: int = 1, policy: str = "") -> Stream:
        return Stream(self, open=pb.OpenSession(lanes=lanes, policy=policy))

    def resume(self, secret: str) -> Stream:
        return Stream(self, resume=pb.ResumeSession(secret=secret))


class Stream:
    """One stream of ``Act``."""

    def __init__(self, caller: Caller, **first: Any) -> None:
        self.description = caller.description
        self._requests = queue.SimpleQueue[pb.ActRequest | None]()
        self.call = caller.stub.Act(iter(self._requests.get, None), timeout=PATIENCE)
        self.send(**first)
        self.opened = next(self.call).opened

    def send(self, **request: Any) -> None:
        self._requests.put(pb.ActRequest(**request))

    def step(self, seq: int, observation: Any = None, k: int = 1, **fields: Any) -> pb.LaneActions:
        """Send a step and wait for its answer."""
        self.send(step=self.make_step(seq, observation, k, **fields))
        return self.read()

    def make_step(self, seq: int, observation: Any = None, k: int = 1, **fields: Any) -> pb.LaneSteps:
        found = np.zeros((k, 2), np.float32) if observation is None else observation
        k = len(fields["lanes"]) if "lanes" in fields else k
        payload = found if isinstance(found, bytes) else self.description.write_observation(found, k)
        return pb.LaneSteps(seq=seq, observation=payload, **fields)

    def read(self) -> pb.LaneActions:
        return next(self.call).action

    def actions(self, seq: int, k: int = 1, **fields: Any) -> list[int]:
        """Send a step and wait for its actions, of a Discrete space."""
        answer = self.step(seq, np.zeros((k, 2), np.float32), k, **fields)
        assert answer.seq == seq
        return numbers(answer)

    def cut(self) -> None:
        """Break the stream."""
        self.call.cancel()

    def finish(self) -> None:
        """Send nothing more."""
        self._requests.put(None)


def numbers(answer: pb.LaneActions) -> list[int]:
    """The actions of an answer, of a Discrete space."""
    found: list[int] = np.frombuffer(answer.action, np.int64).tolist()
    return found


def refusal(error: grpc.RpcError) -> tuple[str, str, str]:
    """The status, the name and the message of a refused call."""
    names: Sequence[Any] = error.trailing_metadata() or ()
    name = next((str(entry.value) for entry in names if entry.key == ERROR_KEY), "")
    return error.code().name, name, error.details() or ""
