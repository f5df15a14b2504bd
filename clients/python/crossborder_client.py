"""A client of crossborder's acting service, for Python 3.8 or later and without any package: copy this file.

    with Session("ws://127.0.0.1:50061") as session:
        for score in session.episodes(env):  # An environment of gym or gymnasium, or shaped like one.
            print(score)

Without an environment, ask for each action. An episode of T steps has T + 1 calls:
    action = session.act(observation)                    # the first observation of an episode
    action = session.act(observation, reward)            # each further one, and the reward of the step before it
    session.act(observation, reward, terminated=True)    # the last one; what it returns has no meaning
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import inspect
import json
import logging
import os
import random
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

_TOLD = ("reward", "terminated", "truncated", "restarted", "executed")  # Of the step before an observation.
_RETRIED = ("session_lost", "stopping", "over_limit")  # After the first two, in another session.
_HINT = "; is this the address of --websocket, wss:// if the service has a certificate?"


class RefusedError(Exception):
    """Refused, and ``name`` says why. After ``bad_message``, call ``act`` as it should be; after ``run_over``, end."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class Session:
    """A session of an acting service. If its connection breaks, it connects again, and its episodes go on. If the
    service itself was started anew, another session begins, in which the rest of an episode is an episode, and
    ``losses`` is one more. ``description`` has the leaves of observations and actions, ``seed + i`` is for the
    environment of lane i, and ``version`` is the model that chose last, by its opt steps. A session is for one thread.

    Args:
        address: what ``policy-server --websocket`` listens on: ``ws://HOST:PORT``, or with TLS ``wss://HOST:PORT``.
        token: by which the service knows this client.
        lanes: how many characters, robots or copies of an environment act; they are counted from 0.
        tls: for a certificate of your own authority: ``ssl.create_default_context(cafile="ca.pem")``.
        timeout: seconds after which a connection without an answer counts as broken.
        patience: seconds after which a service that is out of reach is given up, or (``over_limit``) has no room.
        policy: the name of one, if the service has several; empty: the first.
    """

    def __init__(self, address: str, token: str = "", lanes: int = 1, tls: ssl.SSLContext | None = None,
        timeout: float = 60.0, patience: float = 120.0, policy: str = "") -> None:  # fmt: skip
        url = urlsplit(address)
        if url.scheme not in ("ws", "wss") or not url.hostname:
            raise ValueError(f"address: expected ws://HOST:PORT or wss://HOST:PORT, found {address!r}")
        if token and url.scheme == "ws" and url.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError(f"address: expected wss://, since a token needs TLS, found {address!r}")
        self.address, self.token, self.lanes, self.policy, self._tls = address, token, lanes, policy, tls
        self._url, self._timeout, self._patience, self._secret = url, min(timeout, patience), patience, ""
        self.seed = self.version = self.losses = self._seq = 0
        self.description: dict[str, Any] = {}
        self._wire: _WebSocket | None = None
        self._last: dict[int, Any] = {}  # The last action of each lane.
        self._playing: set[int] = set()  # Lanes within an episode.
        self._broken: set[int] = set()  # Those of them whose session was lost.
        self._persist(lambda _: None)

    def act(self, observation: Any, reward: float = 0.0, terminated: bool = False, truncated: bool = False,
        lane: int = 0, restarted: bool = False, executed: Any = None) -> Any:  # fmt: skip
        """The action of one lane: a number, or lists of numbers; of several leaves a dict by path.

        Args:
            observation: a number, lists, a numpy array or bytes; of several leaves a dict by path, as ``arm/joints``.
            reward: of the step before.
            terminated: the step before has ended the episode by its own rules.
            truncated: the episode was cut off from outside, as by a limit of time.
            restarted: the episode before broke off without an end; this is the first observation of the next one.
            executed: the action of the step before, if a person or a safety layer has chosen it.
        """
        return self.act_lanes([observation], [reward], [terminated], [truncated], [lane], [restarted], [executed])[0]

    def act_lanes(self, observations: Sequence[Any], rewards: Sequence[float] = (), terminated: Sequence[bool] = (),
        truncated: Sequence[bool] = (), lanes: Sequence[int] = (), restarted: Sequence[bool] = (), executed: Any = (),
    ) -> list[Any]:  # fmt: skip
        """The actions of several lanes at once, by default of all. What is given has a value for each of them."""
        chosen = list(lanes if len(lanes) else range(self.lanes))
        given = (chosen, observations, rewards, terminated, truncated, restarted, executed)
        columns = [each if len(each) else [None] * len(chosen) for each in given]
        if any(len(column) != len(chosen) for column in columns):
            raise ValueError(f"expected {len(chosen)} values, one for each lane, found {[*map(len, columns)]}")
        if wrong := [each for column in columns[3:6] for each in column if each not in (None, False, True)]:
            raise ValueError(f"expected True or False for terminated, truncated and restarted, found {wrong[0]!r:.80}")
        steps = [dict(zip(("lane", "observation", *_TOLD), row)) for row in zip(*columns)]
        self._persist(lambda wire: self._ask(wire, steps))
        return [self._last[lane] for lane in chosen]

    def episodes(self, env: Any, lane: int = 0) -> Iterator[float]:
        """Play in an environment of gym or gymnasium, of any age, and yield the return of each episode. It ends when
        the run has ended for which the service acts."""
        try:
            action = self.act(_reset(env, self.seed + lane), lane=lane, restarted=lane in self._playing)
            while True:
                total = 0.0
                while lane in self._playing:
                    observation, reward, *ends, info = env.step(self._as_arrays(action))
                    is_cut = bool(ends[0] and info.get("TimeLimit.truncated"))  # Of gym before 0.26: it has one flag.
                    terminated, truncated = ends if len(ends) == 2 else (ends[0] and not is_cut, is_cut)
                    total += float(reward)
                    action = self.act(observation, reward, terminated, truncated, lane)
                yield total
                action = self.act(_reset(env), lane=lane)
        except RefusedError as error:
            if error.name != "run_over":
                raise

    def close(self) -> None:
        """End the session. The service frees its lanes."""
        wire, self._wire = self._wire, None
        if wire is not None:
            with contextlib.closing(wire), contextlib.suppress(OSError, RefusedError):  # The service ends it.
                wire.ask({"close": {}}, "closed")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _persist(self, work: Callable[[_WebSocket], None]) -> None:
        """Do work with a connection. If it breaks, connect again and do the work again."""
        delay, end = 0.1, time.monotonic() + self._patience
        while True:
            wire = self._wire
            try:
                return work(wire := wire or self._connect())
            except BaseException as error:
                if self._wire is not None:  # A message may be cut short: the next one needs another connection.
                    self._wire.close()
                    self._wire = None
                name = error.name if isinstance(error, RefusedError) else type(error).__name__
                if name in _RETRIED[:2] or not isinstance(error, Exception):  # Ctrl-C: the service may have the step.
                    self.losses += bool(self._secret)
                    self._secret, self._seq, self._broken = "", 0, set(self._playing)
                if name not in _RETRIED and (not isinstance(error, OSError) or name == "SSLCertVerificationError"):
                    raise
                if wire is not None and name in ("timeout", "TimeoutError"):  # Of a socket, before 3.10; of all.
                    end = time.monotonic() + self._patience  # Not out of reach: a learner may hold its actors back.
                elif time.monotonic() > end:
                    if name == "over_limit":
                        raise  # It is not out of reach: it has no room.
                    hint = _HINT if isinstance(error, OSError) else ""
                    raise ConnectionError(f"{self.address}: {error} (for {self._patience:g} s){hint}") from error
                logging.getLogger(__name__).warning("%s: %s; connecting again", self.address, error)
            time.sleep(random.random() * delay)
            delay = min(2 * delay, 5.0)

    def _connect(self) -> _WebSocket:
        """Open a connection, and with it a session, or the one that this client had."""
        wire = self._wire = _WebSocket(self._url, self._tls, self._timeout)
        wire.shake_hands()
        self.description = wire.ask({"token": self.token, "describe": {"policy": self.policy}}, "description")
        first = {"open": {"lanes": self.lanes, "policy": self.policy}}
        opened = wire.ask({"resume": {"secret": self._secret}} if self._secret else first, "opened")
        self._secret, self.seed = opened["secret"], opened["seed"]
        return wire

    def _ask(self, wire: _WebSocket, steps: list[dict[str, Any]]) -> None:
        """Ask for actions. Of a lost episode the end is not told: it needs no action."""
        ended = {step["lane"] for step in steps if step["terminated"] or step["truncated"]}
        if asked := [step for step in steps if step["lane"] not in self._broken & ended]:
            answer = wire.ask({"step": {"seq": self._seq + 1, **self._fields(asked)}}, "action")
            self._seq, self.version, actions = answer["seq"], answer["version"], answer["action"]
            by_lane = zip(*actions.values()) if isinstance(actions, dict) else actions
            for step, action in zip(asked, by_lane):
                self._last[step["lane"]] = dict(zip(actions, action)) if isinstance(actions, dict) else action
        self._broken -= {step["lane"] for step in steps}
        self._playing = self._playing.union(step["lane"] for step in steps) - ended

    def _fields(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        """The fields of a message. Nothing is told of the step before it, if that was in a lost session."""
        steps = [{**step, **dict.fromkeys(_TOLD)} if step["lane"] in self._broken else step for step in steps]
        fields: dict[str, Any] = {name: [bool(step[name]) for step in steps] for name in _TOLD[1:4]}
        fields.update(lanes=[step["lane"] for step in steps], reward=[float(step["reward"] or 0.0) for step in steps])
        fields["observation"] = self._pack("observation", [step["observation"] for step in steps])
        if given := [step["executed"] for step in steps if step["executed"] is not None]:
            acted = [self._last.get(s["lane"], given[0]) if s["executed"] is None else s["executed"] for s in steps]
            fields["executed"] = self._pack("action", acted)  # The policy's own action where nobody else acted.
            fields["intervened"] = [step["executed"] is not None for step in steps]
        return fields

    def _pack(self, kind: str, values: list[Any], path: str = "") -> Any:
        """The values of k lanes: bytes, in base64, if they are bytes or arrays of the leaf's kind; else lists."""
        if any(isinstance(value, dict) for value in values):
            return {path: self._pack(kind, [value[path] for value in values], path) for path in values[0]}
        leaf = next((each for each in self.description[kind] if each["path"] == path), None)
        dtypes = {getattr(getattr(value, "dtype", None), "str", None) for value in values}
        if leaf and dtypes == {leaf["dtype"]} and all(list(value.shape) == leaf["shape"] for value in values):
            values = [value.tobytes() for value in values]
        if all(isinstance(value, (bytes, bytearray)) and len(value) == len(values[0]) for value in values):
            return base64.b64encode(b"".join(values)).decode()
        return [list(value) if isinstance(value, (bytes, bytearray)) else value for value in values]

    def _as_arrays(self, action: Any, path: str = "") -> Any:
        """An action as environments want it: arrays, if they have numpy."""
        if isinstance(action, dict):
            return {key: self._as_arrays(value, key) for key, value in action.items()}
        dtype = next(leaf["dtype"] for leaf in self.description["action"] if leaf["path"] == path)
        numpy = sys.modules.get("numpy")
        return numpy.array(action, dtype) if numpy and isinstance(action, list) else action


def _reset(env: Any, seed: int | None = None) -> Any:
    words = {}
    if seed is not None and callable(getattr(env, "seed", None)):  # gym before 0.26.
        env.seed(seed)
    elif seed is not None and any(each in str(inspect.signature(env.reset)) for each in ("seed", "**")):
        words["seed"] = seed
    found = env.reset(**words)
    return found[0] if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict) else found


def _to_json(value: Any, name: str = "") -> str:
    """The JSON of a value, which has neither NaN nor infinity. An error names the part that has one."""
    if isinstance(value, dict):
        return "{%s}" % ",".join(f"{json.dumps(key)}:{_to_json(part, key)}" for key, part in value.items())
    try:
        return json.dumps(value, allow_nan=False, default=lambda each: each.tolist())
    except ValueError as why:
        raise ValueError(f"{name}: expected finite numbers, found NaN or infinity in {value!r:.80}") from why


class _WebSocket:
    """A connection by WebSocket (RFC 6455) that carries JSON."""

    def __init__(self, url: SplitResult, tls: ssl.SSLContext | None, timeout: float) -> None:
        self._path, place = url.path or "/", (url.hostname or "", url.port)
        self._http = http.client.HTTPConnection(*place, timeout=timeout)
        if url.scheme == "wss":
            self._http = http.client.HTTPSConnection(*place, timeout=timeout, context=tls)
        self.close = self._http.close

    def shake_hands(self) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        digest = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()
        words = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        self._http.request("GET", self._path, headers={**words, "Sec-WebSocket-Key": key})
        try:
            reply = self._http.getresponse()
        except http.client.HTTPException as why:
            raise ConnectionError(f"expected WebSocket, found {why!r}") from why
        if reply.status != 101 or reply.headers["Sec-WebSocket-Accept"] != digest:
            raise ConnectionError(f"expected WebSocket, found HTTP {reply.status}")
        self._socket, self._received = self._http.sock, reply.fp  # From here on, the bytes are those of WebSocket.

    def ask(self, values: dict[str, Any], kind: str) -> Any:
        """Send a message and wait for the answer of a kind."""
        self._send(1, _to_json(values).encode())
        answer = self._read(time.monotonic() + self._http.timeout)
        if "error" in answer:
            raise RefusedError(answer["error"]["name"], answer["error"]["message"])
        return answer[kind]

    def _send(self, opcode: int, payload: bytes) -> None:
        n, mask = len(payload), os.urandom(4)
        masks = int.from_bytes((mask * (n // 4 + 1))[:n], "big")  # Long numbers: a loop over bytes would be slow.
        masked = (int.from_bytes(payload, "big") ^ masks).to_bytes(n, "big")
        size = n.to_bytes(1 if n < 126 else 2 if n < 1 << 16 else 8, "big")
        size = bytes([128 | {1: n, 2: 126, 8: 127}[len(size)]]) + (size if n > 125 else b"")
        self._socket.sendall(bytes([128 | opcode]) + size + mask + masked)

    def _read(self, end: float) -> dict[str, Any]:
        message = b""
        while time.monotonic() < end:  # A service that is late may still ping.
            first, n = self._take(2)
            n = int.from_bytes(self._take(2 if n == 126 else 8), "big") if n > 125 else n
            payload, opcode = self._take(n), first & 15
            if opcode == 8 and payload[:2] == b"\x03\xf1":  # 1009.
                raise RefusedError("message_too_big", "expected at most max_message_bytes in a message")
            if opcode == 8:
                raise ConnectionError(f"the service has ended it: {payload!r}")
            if opcode == 9:  # A ping wants its pong.
                self._send(10, payload)
            message += payload if opcode < 3 else b""
            if opcode < 3 and first & 128:
                return dict(json.loads(message.decode()))
        raise TimeoutError("no answer in time")

    def _take(self, n: int) -> bytes:
        if len(taken := self._received.read(n)) < n:
            raise ConnectionError("the connection has broken")
        return taken
