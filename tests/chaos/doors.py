"""Mutilated messages against the doors of an acting service: each is answered or refused by name, and harms nobody.

Messages of gRPC, JSON and MessagePack go to the code behind the doors, one by one, so that the memory of each is known.
The bytes of HTTP and of WebSocket's frames go to the socket of a whole service.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
import socket
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat
from typing import Any, Final

import msgpack
import numpy as np
from google.protobuf.message import DecodeError

from common.config.actor_config import ActorConfig
from common.parts import build_parts
from common.plugins.part_config import EnvConfig, PluginConfig
from common.wire.acting_payloads import Description
from common.wire.address import split_address
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError, SessionLostError
from crossborder.serving.acting_service import request_of
from crossborder.serving.connection import Connection
from crossborder.serving.figures import Figures
from crossborder.serving.saved_policies import opening
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving_config import ServingConfig
from crossborder.serving.session import Session
from crossborder.serving.sessions import Sessions
from crossborder.serving.websocket_messages import SessionMessages, most_bytes, read_first
from learner.ingest.refusals import OverLimitError, status_of
from learner.storage.checkpoint import Checkpoints
from tests.chaos.mutation import ABSURD, ODD, mutilated
from tests.chaos.report import scratch, tell
from tests.crossborder.serving.services import Caller, Service

LANES: Final = 3
CHUNK: Final = 500
"""So often, a client whose messages are whole acts too."""
AT_ONCE: Final = 8
"""Connections."""
MAX_SESSIONS: Final = 4
HANGS_SECONDS: Final = 60.0
WAITS_SECONDS: Final = 0.02
"""A client waits so long for answers, and then hangs up."""
SPACES: Final = {
    "observation": {
        "type": "Dict",
        "spaces": {
            "arm": {"type": "Box", "low": -1, "high": 1, "shape": [3]},
            "camera": {"type": "Box", "low": 0, "high": 255, "shape": [2, 2, 3], "dtype": "uint8"},
        },
    },
    "action": {"type": "Discrete", "n": 3},
}
REFUSALS: Final = (BadMessageError, SessionLostError, OverLimitError)
"""All with which sessions may answer; anything else that is raised ends the exercise."""
Values = dict[str, Any]
Read = Callable[[bytes, Description | None], Any]


def whole(rng: random.Random, session: Session) -> Values:
    """A message that a client of ours might send now, with bytes for the observations."""
    kind = rng.random()
    if kind < 0.1:
        return {"report": {"env_seconds": 0.5, "env_rebuilds": 1, "env_error": "it fell over"}}
    if kind < 0.12:
        return {"close": {}}
    lanes = sorted(rng.sample(range(LANES), rng.randint(1, LANES)))
    begins = session._begins[lanes].tolist()
    observation = {
        "arm": np.random.default_rng(rng.randrange(99)).uniform(-1, 1, (len(lanes), 3)).astype(np.float32).tobytes(),
        "camera": rng.randbytes(12 * len(lanes)),
    }
    step = {
        "seq": session.last_seq + (rng.random() < 0.9),
        "lanes": lanes,
        "observation": observation,
        "reward": [0.0 if begin else 1.0 for begin in begins],
        "terminated": [not begin and rng.random() < 0.1 for begin in begins],
        "truncated": [not begin and rng.random() < 0.1 for begin in begins],
    }
    if rng.random() < 0.2 and not any(begins):
        step |= {"executed": np.zeros(len(lanes), np.int64).tobytes(), "intervened": [True] * len(lanes)}
    return {"step": step}


def as_protobuf(values: Values, rng: random.Random) -> bytes:
    ((kind, fields),) = values.items()
    if kind == "step":
        fields = {**fields, "observation": b"".join(fields["observation"].values())}
    request = pb.ActRequest(**{kind: fields})
    if rng.random() < 0.5:
        message = getattr(request, kind)
        _contradict(rng, message)
    return request.SerializeToString()


def _contradict(rng: random.Random, message: Any) -> None:
    """Say something absurd in one field, in place."""
    if not message.DESCRIPTOR.fields:
        return
    field = rng.choice(message.DESCRIPTOR.fields)
    odd: dict[int, Callable[[], Any]] = {
        field.TYPE_UINT32: lambda: rng.choice(ABSURD) % 2**32,
        field.TYPE_UINT64: lambda: rng.choice(ABSURD),
        field.TYPE_FLOAT: lambda: rng.choice(ODD),
        field.TYPE_DOUBLE: lambda: rng.choice(ODD),
        field.TYPE_BOOL: lambda: rng.random() < 0.5,
        field.TYPE_BYTES: lambda: mutilated(rng, getattr(message, field.name)) if rng.random() < 0.8 else b"",
        field.TYPE_STRING: lambda: "ö" * rng.choice([0, 32, 10_000]),
    }
    if isinstance(getattr(message, field.name), int | float | bool | bytes | str):
        setattr(message, field.name, odd[field.type]())
        return
    values = getattr(message, field.name)
    if values and rng.random() < 0.7:
        values[rng.randrange(len(values))] = odd[field.type]()
    else:
        values.extend([odd[field.type]()] * rng.choice([1, 2, 5000]))


def as_json(values: Values, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        values = _odd_somewhere(rng, values)
    text = json.dumps(values, default=lambda data: base64.b64encode(data).decode())
    return text.replace('"DEEP"', "[" * rng.choice([99, 900, 20_000])).encode()


def as_messagepack(values: Values, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        values = _odd_somewhere(rng, values)
    packed: bytes = msgpack.packb(values, default=str)
    return packed.replace(b"\xa4DEEP", b"\x91" * rng.choice([99, 900, 20_000]) + b"\x01")


def _odd_somewhere(rng: random.Random, values: Any) -> Any:
    """The values with something odd in the place of one of them, or in one of their names."""
    if not isinstance(values, dict | list) or not values or rng.random() < 0.2:
        return rng.choice(_ODD_VALUES)
    if isinstance(values, list):
        at = rng.randrange(len(values))
        return [*values[:at], _odd_somewhere(rng, values[at]), *values[at + 1 :]][: rng.choice([len(values), at])]
    name = rng.choice([*values])
    if rng.random() < 0.2:
        return {rng.choice(["", "seq", "ö" * 5000, name + "s"]): value for value in values.values()}
    return {**values, name: _odd_somewhere(rng, values[name])}


_ODD_VALUES: Final[list[Any]] = [
    *(None, True, -1, 2**63, 0.5, 1e308, float("nan"), float("inf"), "", "ö" * 10_000, "AAAA", "DEEP", {}, [], [[]]),
    *([[[0.0] * 3] * 3, [[0] * 9] * 2, [[]] * 20_000, [0] * 20_000, {"arm": [[0, 0, 0]]}, {"a": {"b": {"c": 1}}}]),
]


def read_json(data: bytes, description: Description | None) -> Any:
    return read_messagepack(data.decode(errors="replace"), description)


def read_messagepack(data: str | bytes, description: Description | None) -> Any:
    if description is None:
        return read_first(data)[1]
    return SessionMessages(description, as_text=True).read(data)


def read_protobuf(data: bytes, _: Description | None) -> Any:
    return request_of(pb.ActRequest.FromString(data))


KINDS: Final[dict[str, tuple[Callable[[Values, random.Random], bytes], Read]]] = {
    "gRPC": (as_protobuf, read_protobuf),
    "JSON": (as_json, read_json),
    "MessagePack": (as_messagepack, read_messagepack),
}


class Behind:
    """The sessions behind the doors, with a client whose messages are mutilated and one whose messages are not."""

    def __init__(self, policy: ServedPolicy, config: ServingConfig) -> None:
        self._policy, self.sessions = policy, Sessions([policy], config, Figures())
        self.honest = self.sessions.open(1, "")[1]
        self._secret, self.session = self.sessions.open(LANES, "")

    async def take(self, data: bytes, read: Read) -> str:
        """Deal with a message on a connection of its own, as a door does; what became of it."""
        if self.session not in self.sessions.all():  # The last message has closed it.
            for other in set(self.sessions.all()) - {self.honest}:
                self.sessions.close(other)
            self._secret, self.session = self.sessions.open(LANES, "")
        before = self.session.last_seq
        connection = Connection(self.sessions, "", "fuzz")
        try:
            connection.begin(pb.ResumeSession(secret=self._secret))
            messages = SessionMessages(connection.description, as_text=True)

            async def answer_by(response: pb.ActResponse) -> None:
                messages.write(response)

            await connection.talk(_only(data), lambda data: read(data, connection.description), answer_by)
        except DecodeError:
            return "no message"
        except REFUSALS as error:
            assert self.session.last_seq == before, "a refused step changes nothing"
            assert self.session.rests
            return status_of(error)[1]
        finally:
            connection.end()
        return "taken"

    async def begin(self, data: bytes, read: Read) -> str:
        """Deal with the first message of a connection."""
        connection = Connection(self.sessions, "", "fuzz")
        try:
            connection.begin(read(data, None))
        except DecodeError:
            return "no message"
        except REFUSALS as error:
            return status_of(error)[1]
        finally:
            connection.end()
        return "taken"

    async def act_honestly(self) -> None:
        step = pb.LaneSteps(seq=self.honest.last_seq + 1, observation=bytes(3 * 4 + 12))
        answer: asyncio.Future[pb.ActResponse] = asyncio.get_running_loop().create_future()
        self.honest.take(step, answer.set_result)
        assert len((await answer).action.action) == np.int64().itemsize


async def _only(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _fuzz_messages(kind: str, messages: int, rng: random.Random, behind: Behind) -> dict[str, Any]:
    make, read = KINDS[kind]
    outcomes, most, longest = Counter[str](), 0, most_bytes(behind.session.policy.description, LANES)
    for number in range(messages):
        if rng.random() < 0.1:
            first = {"open": {"lanes": rng.choice(ABSURD[:4])}} if rng.random() < 0.5 else {"resume": {"secret": "a"}}
            deal, values = behind.begin, first
        else:
            deal, values = behind.take, whole(rng, behind.session)
        data = make(values, rng)
        if rng.random() < 0.4:
            data = mutilated(rng, data)
        if len(data) > longest:
            outcomes["too long"] += 1
            continue
        tracemalloc.reset_peak()
        held, _ = tracemalloc.get_traced_memory()
        async with asyncio.timeout(HANGS_SECONDS):
            outcomes[await deal(data, read)] += 1
        most = max(most, tracemalloc.get_traced_memory()[1] - held)
        if number % CHUNK == 0:
            await behind.act_honestly()
        if number % (100 * CHUNK) == 0:
            tell(f"{kind}: message {number} of {messages}")
    return {"outcomes": dict(outcomes.most_common()), "most_allocated_bytes": most}


class _Failures(logging.Handler):
    """Keeps what is logged with a traceback: an error that nobody has expected."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        # websockets ends a connection so whose client hangs up during a handshake that is refused.
        if record.exc_info and record.getMessage() != "unexpected internal error":
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


def _fuzz_socket(connections: int, rng: random.Random) -> dict[str, Any]:
    """So many connections whose bytes are mutilated, from the request of HTTP on; what came back."""
    outcomes, failures = Counter[str](), _Failures()
    for name in ("", "crossborder.serving.websocket_door.connections"):
        logging.getLogger(name).addHandler(failures)
    with Service(websocket="127.0.0.1:0", resume_seconds=0) as service, Caller(service.places.address) as caller:
        assert service.places.websocket is not None
        address = split_address(service.places.websocket)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for begin in range(0, connections, CHUNK):
                honest = caller.open()  # Another stream each time: its deadline is shorter than the exercise.
                streams = [_stream(rng) for _ in range(min(CHUNK, connections - begin))]
                outcomes.update(pool.map(_exchange, repeat(address), streams))
                assert honest.actions(1) == [1]
                honest.cut()
                if begin % (100 * CHUNK) == 0:
                    tell(f"HTTP: connection {begin} of {connections}")
        assert service.error is None
    for name in ("", "crossborder.serving.websocket_door.connections"):
        logging.getLogger(name).removeHandler(failures)
    assert not failures.seen, failures.seen[:3]
    return {"outcomes": dict(outcomes.most_common())}


def _stream(rng: random.Random) -> bytes:
    """All that a client sends by WebSocket in a short session, mutilated before or after the request of HTTP ends."""
    lines = ["GET / HTTP/1.1", "Host: x", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
    head = "\r\n".join([*lines, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "\r\n"]).encode()
    step = {"step": {"seq": 1, "observation": [[0.5, -0.5]]}}
    values: list[Values] = [{"open": {"lanes": 1}}, step, {"close": {}}]
    messages = [json.dumps(each).encode() for each in values]
    frames = b"".join(bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data for data in messages[: rng.randint(0, 3)])
    return mutilated(rng, head) + frames if rng.random() < 0.5 else head + mutilated(rng, frames)


def _exchange(address: tuple[str, int], data: bytes) -> str:
    """Send these bytes, and hang up if the other end waits for more; how it has answered."""
    answer = b""
    with socket.create_connection(address, WAITS_SECONDS) as connection, suppress(ConnectionError):
        connection.sendall(data)
        try:
            while found := connection.recv(1 << 16):
                answer += found
        except TimeoutError:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(HANGS_SECONDS)
            while found := connection.recv(1 << 16):
                answer += found
    status = answer.split(b"\r\n")[0][9:12].decode(errors="replace")
    if status != "101":
        return status if status.isdecimal() else "hung up"
    return next((word for word in ("action", "error", "opened") if f'{{"{word}"'.encode() in answer), "101")


def fuzz_doors(messages: int, seed: int) -> dict[str, Any]:
    """So many mutilated messages of each kind, and as many connections; what became of them.

    Raises:
        AssertionError: a refused message has changed something, or a message hangs or is answered wrongly.
        Exception: whatever a door should not have raised.
    """
    found, rngs = dict[str, Any](), {kind: random.Random(f"{seed} {kind}") for kind in (*KINDS, "HTTP")}
    config = ActorConfig(
        env=EnvConfig(target="gymnasium:make", params={"id": "CartPole-v1"}, spaces=SPACES),
        agent=PluginConfig(target="common.agents.dqn:DQN", params={"units": [8]}),
    )
    with scratch() as directory:
        place = Checkpoints(directory, config, "run").save("best", build_parts(config, seed=1).agent, opt_steps=1)
        settings = ServingConfig(max_sessions=MAX_SESSIONS, record=directory / "episodes")
        for kind in KINDS:
            with opening({"": place}, [], settings) as (policy,):
                found[kind] = asyncio.run(_with_batches(policy, settings, kind, messages, rngs[kind]))
    found["HTTP"] = _fuzz_socket(messages, rngs["HTTP"])
    return {"messages": messages, "seed": seed, **found}


async def _with_batches(
    policy: ServedPolicy, settings: ServingConfig, kind: str, messages: int, rng: random.Random
) -> dict[str, Any]:
    answering = asyncio.create_task(policy.batches.run())
    behind = Behind(policy, settings)
    for _ in range(CHUNK):  # The first actions and the first whole episode take memory that all others share.
        await behind.take(as_protobuf(whole(rng, behind.session), rng), read_protobuf)
    tracemalloc.start()
    try:
        return await _fuzz_messages(kind, messages, rng, behind)
    finally:
        tracemalloc.stop()
        answering.cancel()
