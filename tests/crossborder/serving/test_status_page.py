"""The page and the health of an acting service, over real sockets."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterable
from html import unescape
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from crossborder.serving import status_page
from crossborder.serving.figures import Figures
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving_config import ServingConfig
from crossborder.serving.sessions import Sessions
from crossborder.serving.status_page import HUNG_SECONDS, StatusPage
from tests.clocks import Clock
from tests.conftest import PATIENCE, wait_for
from tests.crossborder.serving.services import SOURCE, Caller, Counting, Service, with_certificate
from tests.crossborder.serving.test_serving import GOOD, OTHER, call
from tests.users import as_nobody, needs_root


def get(port: int | None, path: str = "/", **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    """The status, the text and the headers of an answer."""
    assert port is not None
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    asked.request("GET", path, headers=headers)
    answer = asked.getresponse()
    text = answer.read().decode()
    asked.close()
    return answer.status, text, answer.headers


def rows(text: str, table: int) -> list[list[str]]:
    """The cells of a table of a page, without its heading."""
    found = re.findall(r"<table>(.*?)</table>", text, re.DOTALL)[table]
    lines = re.findall(r"<tr>(.*?)</tr>", found)[1:]
    return [[unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", line)] for line in lines]


def test_the_page_tells_who_is_connected_and_how_the_policies_do() -> None:
    named = {"easy": Counting(), "hard": Counting()}
    with (
        Service(named=named, metrics="127.0.0.1:0", websocket="127.0.0.1:0") as service,
        Caller(service.places.address) as caller,
        connect(f"ws://{service.places.websocket}") as socket,
    ):
        stream = caller.open(3, policy="hard")
        stream.actions(1, 3)
        stream.actions(2, 3, reward=[1, 2, 3], truncated=[False, True, False])
        socket.send('{"open": {"lanes": 1}}')
        socket.recv(PATIENCE)
        status, text, headers = get(service.places.metrics_port)
        policies, sessions = rows(text, 0), rows(text, 1)
        stream.cut()
        wait_for(lambda: "none for" in get(service.places.metrics_port)[1], "the broken connection is told")
    assert status == HTTPStatus.OK
    assert [row[:4] for row in policies] == [["easy", SOURCE, "7", "1"], ["hard", SOURCE, "7", "3"]]
    assert [row[-2:] for row in policies] == [["0", ""], ["1", "2"]]
    assert [row[:5] for row in sessions] == [["", "hard", "gRPC", "3", "2"], ["", "easy", "WebSocket", "1", "0"]]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", row[5]) for row in sessions)
    assert headers["Content-Type"] == "text/html; charset=utf-8"


def test_the_page_runs_no_text_of_others_and_asks_for_nothing_from_elsewhere() -> None:
    with Service(metrics="127.0.0.1:0") as service:
        _, text, headers = get(service.places.metrics_port)
    assert "<b>" not in text
    assert "runs/&lt;b&gt;&amp;me&lt;/b&gt;" in text
    assert not re.search(r"src=|href=|url\(|<script", text)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store"
    assert f'http-equiv="refresh" content="{status_page.REFRESH_SECONDS}"' in text


def test_clients_stand_on_the_page_under_the_names_of_their_tokens(tmp_path: Path) -> None:
    with (
        Service(metrics="127.0.0.1:0", **with_certificate(tmp_path, GOOD, OTHER)) as service,
        call(service, tmp_path, OTHER) as caller,
    ):
        caller.open()
        _, text, _ = get(service.places.metrics_port)
    assert [row[0] for row in rows(text, 1)] == ["godot-host"]
    assert GOOD.split()[1] not in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "[", "localhost.evil.example", ""])
def test_a_page_of_the_web_that_leads_here_gets_nothing(host: str) -> None:
    with Service(metrics="127.0.0.1:0") as service:
        port = service.places.metrics_port
        status, text, _ = get(port, Host=host)
        assert (status, "opt steps" in text) == (HTTPStatus.FORBIDDEN, False)
        for own in ("localhost", f"127.0.0.1:{port}", "[::1]:7"):
            assert get(port, Host=own)[0] == HTTPStatus.OK


@needs_root
def test_another_user_of_the_host_gets_nothing() -> None:
    with Service(metrics="127.0.0.1:0") as service:
        asked = http.client.HTTPConnection("127.0.0.1", service.places.metrics_port, timeout=PATIENCE)
        with as_nobody():
            asked.connect()
        asked.request("GET", "/")
        answer = asked.getresponse()
        text = answer.read().decode()
    assert answer.status == HTTPStatus.FORBIDDEN
    assert "for the service's own user, on its own host: ssh -L" in text


def make_page(clock: Clock) -> tuple[StatusPage, Sessions]:
    config = ServingConfig()
    sessions = Sessions([ServedPolicy(Counting(), config)], config, Figures())
    return StatusPage(sessions, clock), sessions


def ask(answer: Any, **environ: object) -> tuple[int, str]:
    told = list[str]()
    body: Iterable[bytes] = answer(environ, lambda status, _: told.append(status))
    return int(told[0].split()[0]), b"".join(body).decode()


def test_another_host_gets_nothing() -> None:
    page, _ = make_page(Clock())
    asked = {"REMOTE_PORT": 50123, "SERVER_PORT": "9466", "HTTP_HOST": "127.0.0.1:9466"}
    assert ask(page.show, REMOTE_ADDR="10.0.0.5", **asked)[0] == HTTPStatus.FORBIDDEN
    assert ask(page.show, REMOTE_ADDR="::ffff:127.0.0.1", **asked)[0] == HTTPStatus.OK


def test_health_is_that_of_the_event_loop() -> None:
    clock = Clock()
    page, sessions = make_page(clock)
    assert ask(page.tell_health) == (HTTPStatus.SERVICE_UNAVAILABLE, "not serving\n")
    page.tick()
    assert ask(page.tell_health) == (HTTPStatus.OK, "serving\n")
    clock.now += HUNG_SECONDS
    assert ask(page.tell_health)[0] == HTTPStatus.SERVICE_UNAVAILABLE
    page.tick()
    sessions.stop()
    assert ask(page.tell_health)[0] == HTTPStatus.SERVICE_UNAVAILABLE


def test_health_is_told_on_both_ports_and_metrics_stay_where_they_were() -> None:
    with Service(metrics="127.0.0.1:0", websocket="127.0.0.1:0") as service:
        assert service.places.websocket is not None
        port = int(service.places.websocket.rpartition(":")[2])
        for told in (get(service.places.metrics_port, "/healthz"), get(port, "/healthz")):
            assert told[:2] == (HTTPStatus.OK, "serving\n")
        assert "crossborder_serving_sessions 0.0" in get(service.places.metrics_port, "/metrics")[1]


def test_rates_and_times_are_those_of_the_last_seconds() -> None:
    clock = Clock()
    page, sessions = make_page(clock)
    figures = sessions.policy("").figures
    for _ in range(30):
        page.tick()
        clock.now += 1
        figures.actions += 50
        figures.answer_seconds.observe(0.003)
    asked = {"REMOTE_PORT": 1, "SERVER_PORT": "9466", "HTTP_HOST": "localhost", "REMOTE_ADDR": "127.0.0.1"}
    ((*_, rate, median, late, _, _),) = rows(ask(page.show, **asked)[1], 0)
    assert (rate, median, late) == ("50", "3", "4"), "between 2 and 4 ms, as the buckets have it"
