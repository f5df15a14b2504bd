"""Sessions over WebSocket, with real sockets: JSON and MessagePack, tokens, origins, and what gRPC promises too."""

from __future__ import annotations

import base64
import json
import logging
import math
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import gymnasium
import msgpack
import numpy as np
import pytest
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from common.config.server_config import ServerConfig
from common.data import Array, Leaves
from common.interfaces import EnvSpec
from common.spaces import convert
from common.wire.address import split_address
from crossborder.serving import websocket_door, websocket_messages
from crossborder.serving.strangers import LEAST_STRANGERS
from crossborder.serving.websocket_door import MOST_OPENING
from crossborder.serving.websocket_messages import MOST_BYTES, MOST_NUMBER_BYTES
from tests.conftest import PATIENCE
from tests.crossborder.serving.services import Caller, Counting, Service, Wide, with_certificate
from tests.crossborder.serving.test_serving_metrics import scrape

Values = dict[str, Any]
TalkTo = Callable[..., "Talk"]
SECRET = "a" * 20


class Talk:
    """A client of the door; ``packed`` speaks MessagePack instead of JSON."""

    def __init__(self, service: Service, *, packed: bool = False, **options: Any) -> None:
        scheme = "wss" if "ssl" in options else "ws"
        self._connected = connect(f"{scheme}://{service.places.websocket}", **options)
        self.socket: ClientConnection = self._connected.__enter__()
        self._packed = packed

    def end(self) -> None:
        self._connected.__exit__(None, None, None)

    def send(self, **values: Any) -> None:
        self.socket.send(msgpack.packb(values) if self._packed else json.dumps(values))

    def ask(self, **values: Any) -> Values:
        self.send(**values)
        return self.read()

    def read(self) -> Values:
        message = self.socket.recv(PATIENCE)
        found: Values = json.loads(message) if isinstance(message, str) else msgpack.unpackb(message)
        return found

    def step(self, seq: int, **fields: Any) -> Any:
        """The actions that answer a step."""
        answer = self.ask(step={"seq": seq, "observation": [[0.0, 0.0]], **fields})
        assert answer["action"]["seq"] == seq
        assert answer["action"]["seconds"] > 0
        return answer["action"]["action"]

    def refused(self, **values: Any) -> tuple[str, str, int]:
        """The name and the message of the error that answers, and the code with which the connection is closed."""
        error = self.ask(**values)["error"]
        with pytest.raises(ConnectionClosed) as closed:
            self.socket.recv(PATIENCE)
        assert closed.value.rcvd is not None
        return error["name"], error["message"], closed.value.rcvd.code


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(websocket="127.0.0.1:0", origins=["https://game.example"]) as made:
        yield made


@pytest.fixture
def talk_to() -> Iterator[TalkTo]:
    """Connects clients, which are gone at the end of the test."""
    talks = list[Talk]()

    def connected(service: Service, **options: Any) -> Talk:
        talks.append(Talk(service, **options))
        return talks[-1]

    yield connected
    for talk in talks:
        talk.end()


@pytest.mark.parametrize("packed", [False, True])
def test_an_episode_by_websocket(talk_to: TalkTo, service: Service, packed: bool) -> None:
    talk = talk_to(service, packed=packed)
    described = talk.ask(describe={})["description"]
    assert described["observation"] == [{"path": "", "dtype": "<f4", "shape": [2], "low": [-1.0], "high": [1.0]}]
    assert (described["protocol_version"], described["explores"], described["version"]) == (1, False, 7)
    opened = talk.ask(open={"lanes": 2})["opened"]
    assert (opened["lanes"], opened["seed"], opened["last_seq"]) == (2, 0, 0)
    assert talk.step(1, observation=[[0.1, 0.2], [0.3, 0.4]]) == [1, 1]
    talk.send(report={"env_seconds": 0.5, "env_rebuilds": 1, "env_error": "it fell"})  # It has no answer.
    assert talk.step(2, lanes=[1], reward=[0.5], terminated=[False]) == [2]
    talk.step(3, lanes=[1], reward=[1.0], terminated=[True])
    assert talk.step(4, lanes=[1]) == [1]
    assert talk.step(4, lanes=[1]) == [1]
    talk.send(close={})
    with pytest.raises(ConnectionClosed):
        talk.read()
    assert service.player.seen[0].tolist() == np.array([[0.1, 0.2], [0.3, 0.4]], np.float32).tolist()


def test_a_session_goes_on_through_the_other_door(talk_to: TalkTo, service: Service) -> None:
    talk = talk_to(service)
    secret = talk.ask(open={"lanes": 1})["opened"]["secret"]
    assert talk.step(1) == [1]
    talk.socket.close()
    with Caller(service.places.address) as caller:
        stream = caller.resume(secret)
        assert (stream.opened.last_seq, stream.actions(2)) == (1, [2])
        back = talk_to(service)
        assert back.ask(resume={"secret": secret})["opened"]["last_seq"] == 2
        assert back.step(3) == [3]


WANTED = "observation: expected float32 [k, 2], with a row for each of k lanes, "
BAD: dict[str, tuple[Values, str]] = {
    "another field": (
        {"seq": 1, "observation": [[0, 0]], "rewards": [1]},
        "step: object contains unknown field `rewards` (did you mean 'reward'?)",
    ),
    "text for a number": ({"seq": "one", "observation": [[0, 0]]}, "step.seq: expected `int`, got `str`"),
    "a number for a list": (
        {"seq": 1, "observation": [[0, 0]], "reward": 1},
        "step.reward: expected `array`, got `int`",
    ),
    "text for a flag": (
        {"seq": 1, "observation": [[0, 0]], "terminated": ["no"]},
        "step.terminated[0]: expected `bool`, got `str`",
    ),
    "a negative lane": ({"seq": 1, "observation": [[0, 0]], "lanes": [-1]}, "step.lanes[0]: expected `int` >= 0"),
    "a reward beyond float32": (
        {"seq": 1, "observation": [[0, 0]], "reward": [-1e300]},
        "reward: expected numbers from -1e+12 to 1e+12, found -1e+300",
    ),
    "no observation": ({"seq": 1}, "step: object missing required field `observation`"),
    "nothing for an observation": ({"seq": 1, "observation": None}, WANTED + "found None"),
    "another shape": ({"seq": 1, "observation": [[0, 0, 0]]}, WANTED + "found the shape [1, 3]"),
    "rows of different lengths": ({"seq": 1, "observation": [[0, 0], [0]]}, WANTED + "found [[0, 0], [0]]"),
    "text that is no base64": ({"seq": 1, "observation": "AAA"}, "observation: expected bytes as base64, found 'AAA'"),
    "bytes of half a lane": ({"seq": 1, "observation": "AAAAAA=="}, "expected 8 bytes for 1 rows, found 4"),
    "text in an observation": ({"seq": 1, "observation": [["0", "0"]]}, WANTED + "found [['0', '0']]"),
    "NaN": (
        {"seq": 1, "observation": [[0, float("nan")]]},
        "observation: expected finite numbers, found NaN: JSON has no NaN and no infinity",
    ),
    "infinity": (
        {"seq": 1, "observation": [[0, 0]], "reward": [-math.inf]},
        "reward: expected finite numbers, found -Infinity: JSON has no NaN and no infinity",
    ),
    "null for a reward": (
        {"seq": 1, "observation": [[0, 0]], "reward": [None]},
        "step.reward[0]: expected `float`, got `null`; JavaScript writes null in JSON for NaN and for infinity",
    ),
    "null in an observation": (
        {"seq": 1, "observation": [[0, None]]},
        "observation: column 'observation': expected finite values, found nan in row 0",
    ),
    "beyond float32": ({"seq": 1, "observation": [[0, 1e300]]}, "expected finite values, found inf"),
    "a fraction for an action": (
        {"seq": 1, "observation": [[0, 0]], "executed": [0.5]},
        "executed: expected int64 [k],",
    ),
    "a number for actions": ({"seq": 1, "observation": [[0, 0]], "executed": 0}, "executed: expected int64 [k],"),
    "leaves of another space": ({"seq": 1, "observation": {"eye": [0]}}, WANTED + "found {'eye': [0]}"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_step_that_breaks_a_rule_is_refused_with_the_reason(talk_to: TalkTo, service: Service, bad: str) -> None:
    fields, reason = BAD[bad]
    talk = talk_to(service)
    talk.ask(open={"lanes": 1})
    name, message, code = talk.refused(step=fields)
    assert (name, code) == ("bad_message", 1008)
    assert reason in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_messagepack_can_say_what_is_no_number_and_it_is_refused(
    talk_to: TalkTo, service: Service, value: float
) -> None:
    for fields in ({"observation": [[0, value]]}, {"observation": [[0, 0]], "reward": [value]}):
        talk = talk_to(service, packed=True)
        talk.ask(open={"lanes": 1})
        name, message, _ = talk.refused(step={"seq": 1, **fields})
        assert name == "bad_message"
        assert f"found {value}" in message


@pytest.mark.parametrize("written", ["NaN", "nan", "inf", "-inf", "-nan", "Infinity"])
def test_json_has_no_nan_however_a_client_writes_it_and_the_refusal_names_the_part(
    talk_to: TalkTo, service: Service, written: str
) -> None:
    talk = talk_to(service)
    talk.ask(open={"lanes": 1})
    talk.socket.send(f'{{"step": {{"seq": 1, "lanes": [0], "observation":[[0.5,{written}]]}}}}')
    (error,) = talk.read().values()
    told = f"observation: expected finite numbers, found {written}: JSON has no NaN and no infinity"
    assert error == {"name": "bad_message", "message": told}


def test_a_text_that_says_nan_is_not_taken_for_a_number(talk_to: TalkTo, service: Service) -> None:
    talk = talk_to(service)
    talk.socket.send('{"describe": {"policy": "x: nan, -inf"},}')
    assert "JSON is malformed" in talk.read()["error"]["message"]


DEEP = b"\x81\xa4open\x81\xa5lanes" + b"\x91" * 1000 + b"\x01"
"""As many lists within each other as MessagePack allows."""


NO_MESSAGES = ["{", "[]", "1", "{}", '{"token": "\\ud800"}', '{"open": 3}', '{"open": {}, "resume": {}}', "[" * 5000]


@pytest.mark.parametrize("message", [*NO_MESSAGES, b"\xc1", DEEP])
def test_what_is_no_message_is_refused(talk_to: TalkTo, service: Service, message: str | bytes) -> None:
    talk = talk_to(service)
    talk.socket.send(message)
    answer = talk.socket.recv(PATIENCE)
    told = json.loads(answer) if isinstance(answer, str) else msgpack.unpackb(answer)
    assert isinstance(answer, type(message)), "in the form of the client"
    assert told["error"]["name"] == "bad_message"


@pytest.mark.parametrize(("packed", "text"), [(False, "0"), (True, "0"), (True, b"0")])
def test_a_long_text_among_short_ones_takes_no_memory(
    talk_to: TalkTo, service: Service, packed: bool, text: str | bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array of text has room for the longest one in each of its places: 60 kB became 800 MB."""
    arrays = list[int]()

    def note(value: Any, dtype: Any) -> Any:
        arrays.append(np.asarray(value).nbytes)
        return convert(value, dtype)

    monkeypatch.setattr(websocket_messages, "convert", note)
    talk = talk_to(service, packed=packed)
    talk.ask(open={"lanes": 1})
    name, message, _ = talk.refused(step={"seq": 1, "observation": [[0, text * 1000], *[[0, text]] * 100]})
    assert (name, arrays) == ("bad_message", [])
    assert message.startswith(WANTED + f"found [[0, {(text * 12)!r:.9}")


def too_long(talk: Talk, message: str) -> bool:
    """Whether a message ends the connection because of its length."""
    talk.socket.send(message)
    with pytest.raises(ConnectionClosed) as closed:
        talk.socket.recv(PATIENCE)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code == 1009


def test_messages_are_bounded_before_they_are_read(talk_to: TalkTo, service: Service) -> None:
    """To parse millions of brackets takes seconds, in which no other client is served."""
    assert too_long(talk_to(service), "[" * (MOST_OPENING + 1))
    talk = talk_to(service)
    talk.ask(describe={})
    assert too_long(talk, "[" * (MOST_OPENING + 1))
    talk = talk_to(service)
    talk.ask(open={"lanes": 2})
    numbers = 2 * (2 + 1)
    spaces = " " * (MOST_BYTES + numbers * MOST_NUMBER_BYTES - 100)
    assert talk.step(1, observation=[[0.1, 0.2]] * 2) == [1, 1]
    talk.socket.send(json.dumps({"step": {"seq": 2, "observation": [[0.0, 0.0]] * 2}}) + spaces)
    assert talk.read()["action"]["action"] == [2, 2]
    assert too_long(talk, "[" * (MOST_BYTES + numbers * MOST_NUMBER_BYTES + 1))


@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_connections_that_say_nothing_keep_no_client_out(
    talk_to: TalkTo, says: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """They count from the moment at which they are accepted, and not only after the handshakes of TLS and HTTP."""
    with Service(websocket="127.0.0.1:0", metrics="127.0.0.1:0", max_sessions=2) as service:
        assert service.places.websocket is not None
        talk_to(service).socket.close()  # A place of a connection that has ended is free.
        silent = [socket.create_connection(split_address(service.places.websocket)) for _ in range(LEAST_STRANGERS)]
        for each in silent:
            each.sendall(says)
            each.settimeout(PATIENCE)
        talk = talk_to(service)
        assert "opened" in talk.ask(open={"lanes": 1})
        assert silent[0].recv(1) == b"", "the oldest one has ended"
        for each in silent[1:]:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
        assert talk.step(1) == [1]
        assert scrape(service)['over_limit_total{limit="strangers"}'] == 1
        assert f"from 127.0.0.1 is ended before it has said who calls, since {LEAST_STRANGERS} others" in caplog.text
        for each in silent:
            each.close()


def test_as_many_clients_as_there_may_be_sessions_come_back_at_once_from_one_address(
    talk_to: TalkTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the service, when all games of a host behind one address connect again."""
    monkeypatch.setattr(ServerConfig, "handshake_seconds", PATIENCE)  # The handshakes come one after another.
    n = LEAST_STRANGERS + 22
    with Service(websocket="127.0.0.1:0", metrics="127.0.0.1:0", max_sessions=n) as service, ExitStack() as stack:
        assert service.places.websocket is not None
        place = split_address(service.places.websocket)
        connected = [stack.enter_context(socket.create_connection(place)) for _ in range(n)]
        assert all("opened" in talk_to(service, sock=each).ask(open={"lanes": 1}) for each in connected)
        told = scrape(service)
    assert (told["sessions"], told['over_limit_total{limit="strangers"}']) == (n, 0)


@pytest.mark.parametrize("packed", [False, True])
def test_a_client_that_reads_no_answers_is_waited_for_before_they_fill_the_memory(packed: bool) -> None:
    n, player = 100, Wide()
    with Service(player, websocket="127.0.0.1:0") as service:
        greedy, honest = Talk(service, packed=packed, max_queue=1), Talk(service)
        greedy.ask(open={"lanes": n})
        honest.ask(open={"lanes": 1})
        seqs = count(1)

        def send(seq: int) -> None:
            greedy.send(step={"seq": seq, "observation": [[0.0]] * n})

        sent = player.count_taken(n, send, lambda: honest.step(next(seqs), observation=[[0.0]]))
        assert sent < n / 2
        assert [greedy.read()["action"]["seq"] for _ in range(sent)] == [*range(1, sent + 1)], "it still gets them all"
        for talk in (greedy, honest):
            talk.end()


def test_a_connection_that_never_finishes_the_handshake_of_tls_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncio.constants.SSL_HANDSHAKE_TIMEOUT", 10 * PATIENCE)
    monkeypatch.setattr("common.config.server_config.HANDSHAKE_SECONDS", 0.5)
    with Service(websocket="127.0.0.1:0", **with_certificate(tmp_path)) as service:
        assert service.places.websocket is not None
        with socket.create_connection(split_address(service.places.websocket), PATIENCE) as silent:
            assert silent.recv(1) == b""


def test_what_is_told_about_a_refusal_is_short(
    talk_to: TalkTo, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    talk = talk_to(service)
    talk.ask(open={"lanes": 1})
    name, message, _ = talk.refused(step={"seq": 1, "observation": [[0, 0]], "a" * 60_000: 1})
    assert name == "bad_message"
    assert len(message) < 5000
    assert max(len(record.getMessage()) for record in caplog.records) < 5000


def test_web_pages_connect_only_from_origins_that_are_named(talk_to: TalkTo, service: Service) -> None:
    assert "opened" in talk_to(service, origin=Origin("https://game.example")).ask(open={"lanes": 1})
    with pytest.raises(InvalidStatus) as refused:
        talk_to(service, origin=Origin("https://elsewhere.example"))
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "headers", ["", "Upgrade: websocket\r\nConnection: Upgrade\r\nOrigin: https://evil.example\r\n"]
)
def test_a_client_that_sends_more_than_a_request_that_is_refused_leaves_no_traceback(
    talk_to: TalkTo, service: Service, headers: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(split_address(str(service.places.websocket)), PATIENCE) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode() + b"\xff" * 10)
        while client.recv(1024):  # Until the service has ended the connection.
            pass
    talk_to(service).ask(describe={})  # The service has logged by now what it had to say about the first client.
    logging.getLogger("crossborder.serving.websocket_door.connections").error("a fault", exc_info=AssertionError())
    assert [record.message for record in caplog.records] == ["a fault"]


def test_a_message_beyond_the_limit_ends_the_connection(talk_to: TalkTo) -> None:
    with Service(websocket="127.0.0.1:0", max_message_bytes=1024) as service:
        talk = talk_to(service)
        talk.ask(open={"lanes": 1})
        assert too_long(talk, " " * 2000)


def test_clients_of_a_service_that_ends_are_told(talk_to: TalkTo, service: Service) -> None:
    talk = talk_to(service)
    talk.ask(open={"lanes": 1})
    service.stop()
    assert talk.read()["error"]["name"] == "stopping"
    with pytest.raises(ConnectionClosed) as closed:
        talk.read()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


@pytest.mark.usefixtures("_busy_host")
def test_clients_of_a_service_that_ends_are_told_on_a_busy_host_too(talk_to: TalkTo, service: Service) -> None:
    talk = talk_to(service)
    talk.ask(open={"lanes": 1})
    service.stop()
    assert talk.read()["error"]["name"] == "stopping"


class Silent(Counting):
    """A player with long answers, of which few fit into the buffers of a client that reads none."""

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:
        super().sample(obs, begins, lanes)
        return np.full((len(lanes), 1000), 1 / 3)


LONG = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Box(-1, 1, (1000,), np.float64))


@contextmanager
def never_reading(service: Service, seconds: float) -> Iterator[None]:
    """A client that reads nothing, after it has asked for answers until nobody took its messages for so long."""
    with socket.create_connection(split_address(str(service.places.websocket)), PATIENCE) as client:
        upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        client.sendall(f"GET / HTTP/1.1\r\nHost: x\r\n{upgrade}Sec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode())
        client.recv(1024)
        client.settimeout(seconds)
        step = {"step": {"seq": 1, "observation": [[0.0, 0.0]]}}  # A repeated step is answered each time.
        with suppress(TimeoutError):
            for message in map(json.dumps, chain([{"open": {"lanes": 1}}], repeat(step))):
                client.sendall(bytes([0x81, 0x80 | len(message)]) + bytes(4) + message.encode())
        yield


def test_a_client_that_reads_nothing_does_not_keep_the_service_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever waits until the client reads must end too: answers, the pings of the service, and its farewell."""
    monkeypatch.setattr(websocket_door, "serve", partial(serve, ping_interval=0.1))
    with Service(Silent(LONG), websocket="127.0.0.1:0") as service, never_reading(service, 1.0):
        service.stop()
        assert not service.is_running


def test_a_client_that_reads_nothing_for_silence_seconds_loses_its_connection() -> None:
    with Service(Silent(LONG), websocket="127.0.0.1:0", silence_seconds=1) as service:
        client = never_reading(service, PATIENCE)
        with pytest.raises(ConnectionResetError), client:
            pytest.fail("its connection has not ended")


def test_a_token_comes_in_the_first_message_over_tls_and_ends_its_connections_when_it_is_revoked(
    talk_to: TalkTo,
    tmp_path: Path,
) -> None:
    settings = with_certificate(tmp_path, f"web-client {SECRET}")
    trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with Service(websocket="127.0.0.1:0", **settings) as service:
        for token in ({}, {"token": "b" * 20}, {"token": 7}, {"token": "ö" * 20}):
            name, _, code = talk_to(service, ssl=trust).refused(open={"lanes": 1}, **token)
            assert (name, code) == ("unauthenticated", 1008)
        talk = talk_to(service, ssl=trust)
        assert "opened" in talk.ask(open={"lanes": 1}, token=SECRET)
        tls_socket = talk.socket.socket
        assert isinstance(tls_socket, ssl.SSLSocket)
        assert tls_socket.session is not None
        assert not tls_socket.session.has_ticket  # Tickets upset clients with two threads.
        settings["token_file"].write_text(f"another-client {'c' * 20}\n")
        assert talk.read()["error"]["name"] == "unauthenticated"


def test_refusals_are_audited_counted_and_logged_as_those_by_grpc(
    talk_to: TalkTo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, audit = with_certificate(tmp_path, f"web-client {SECRET}"), tmp_path / "audit.jsonl"
    trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with Service(websocket="127.0.0.1:0", metrics="127.0.0.1:0", audit_file=audit, **settings) as service:
        for _ in range(3):
            talk_to(service, ssl=trust).refused(open={"lanes": 1}, token="b" * 20)
        talk_to(service, ssl=trust).refused(resume={"secret": "nobody has this"}, token=SECRET)
        talk = talk_to(service, ssl=trust)
        talk.ask(open={"lanes": 1}, token=SECRET)
        settings["token_file"].write_text(f"another-client {'c' * 20}\n")
        assert talk.read()["error"]["name"] == "unauthenticated"
        counted = scrape(service)
    noted = [line for line in map(json.loads, audit.read_text().splitlines()) if line["event"] == "refused"]
    assert [(line["outcome"], line.get("name"), line["peer"]) for line in noted] == [
        ("unauthenticated", None, "127.0.0.1"),  # Equal ones are counted.
        ("session_lost", "web-client", "127.0.0.1"),
        ("unauthenticated", "web-client", "127.0.0.1"),
    ]
    assert noted[-1]["reason"] == "the token was revoked"
    assert counted["unauthenticated_total"] == 3
    of_strangers = [record for record in caplog.records if "more before it" in record.getMessage()]
    assert len(of_strangers) == 1, "one line in ten seconds, however many come"
    assert "session_lost, from client 'web-client' at 127.0.0.1: there is no session" in caplog.text


PICTURES = EnvSpec(
    gymnasium.spaces.Dict(
        {
            "camera": gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "speed": gymnasium.spaces.Box(-1, 1, (), np.float32),
        }
    ),
    gymnasium.spaces.Discrete(1000),
)


def test_pictures_are_bytes_or_lists(talk_to: TalkTo) -> None:
    with Service(Counting(PICTURES), websocket="127.0.0.1:0") as service:
        pictures = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
        text = base64.b64encode(pictures.tobytes()).decode()
        for packed, camera in (
            (True, pictures.tobytes()),
            (True, pictures.tolist()),
            (False, text),
            (False, pictures.tolist()),
        ):
            talk = talk_to(service, packed=packed)
            talk.ask(open={"lanes": 2})
            assert talk.step(1, observation={"camera": camera, "speed": [0.5, -0.5]}) == [1, 1]
            seen = service.player.seen[-1]
            assert seen["camera"].tolist() == pictures.tolist()
            assert seen["speed"].tolist() == [0.5, -0.5]


def test_the_bytes_of_one_leaf_are_never_taken_for_those_of_another(talk_to: TalkTo) -> None:
    with Service(Counting(PICTURES), websocket="127.0.0.1:0") as service:
        talk = talk_to(service, packed=True)
        talk.ask(open={"lanes": 2})
        mixed = {"camera": bytes(20), "speed": [0.5, -0.5, 0.0]}  # Together as many bytes as those of two lanes.
        name, message, _ = talk.refused(step={"seq": 1, "observation": mixed})
    assert name == "bad_message"
    assert "expected the same number of lanes in each leaf, found camera: 1.66667, speed: 3" in message


def test_a_client_chooses_one_of_several_policies_with_other_spaces(talk_to: TalkTo) -> None:
    with Service(named={"blind": Counting(), "seeing": Counting(PICTURES)}, websocket="127.0.0.1:0") as service:
        talk = talk_to(service)
        described = talk.ask(describe={"policy": "seeing"})["description"]
        assert described["policies"] == ["blind", "seeing"]
        assert [leaf["path"] for leaf in described["observation"]] == ["camera", "speed"]
        assert talk.ask(open={"lanes": 1, "policy": "seeing"})["opened"]["policy"] == "seeing"
        assert talk.step(1, observation={"camera": [[[[0] * 3] * 2] * 2], "speed": [0.5]}) == [1]
        assert talk_to(service).ask(open={"lanes": 1})["opened"]["policy"] == "blind"
        name, message, _ = talk_to(service).refused(describe={"policy": "deaf"})
        assert name == "bad_message"
        assert "blind, seeing" in message
