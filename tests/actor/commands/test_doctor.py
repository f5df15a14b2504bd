"""``actor-worker --check`` against real learners: what it finds, and that the learner does not notice."""

from __future__ import annotations

import io
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from cryptography import x509

from actor.commands.doctor import CHECKS, examine
from common.errors import (
    AuthenticationError,
    CheckpointError,
    ConfigError,
    CrossborderError,
    LearnerUnreachableError,
    PluginError,
    RefusedError,
)
from common.wire.trust import Trust
from crossborder.certificates import authority
from learner.loop.server import LearnerServer
from learner.shared.actor_table import ActorState
from tests.conftest import ROOT, Command, MakeConfig, counting_config, wait_for
from tests.parts import CheckingAgent, CountingEnv
from tests.security.conftest import Secured


class NoDevice(CountingEnv):
    """An environment whose device is missing on this host."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        if device:
            raise OSError(f"no {device}")


class SaysHello(socketserver.BaseRequestHandler):
    """Another program, which greets before the client speaks, and then waits for it to go."""

    def handle(self) -> None:
        self.request.sendall(b"220 mail.example.org\r\n")
        while self.request.recv(1024):
            pass


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerServer]:
    """One for all tests of this file: the checks leave nothing behind, as one of them shows."""
    with LearnerServer(counting_config(tmp_path_factory.mktemp("host") / "run", server={"grace_seconds": 0.1})) as made:
        yield made


NO_DEVICE = {"target": f"{__name__}:NoDevice", "spaces": "tests.parts:CountingEnv"}


def lines_and_error(
    address: str, trust: Trust | None = None, ahead: float = 0.0, **options: Any
) -> tuple[list[str], Exception | None]:
    """What is written, and what is raised at the end."""
    out, error = io.StringIO(), None
    try:
        examine(address, trust or Trust(), out, lambda: time.time() - ahead, **options)
    except CrossborderError as raised:
        error = raised
    return out.getvalue().splitlines(), error


def test_a_healthy_learner_passes_every_check_and_notices_no_actor(host: LearnerServer) -> None:
    lines, error = lines_and_error(host.ingest.address)
    assert error is None
    assert [re.split("  +", line)[:2] for line in lines] == [["pass", check.name] for check in CHECKS]
    assert "tests.parts:CountingEnv and tests.parts:CheckingAgent make obs <f4 [3]" in lines[7]
    assert lines[-1].endswith(" ms and fits the agent here")
    assert (host.actor_table["state"] == ActorState.UNUSED).all()
    assert (host.control.joins, host.buffer.inserted) == (0, 0)


def test_the_certificate_passes_if_an_actor_would_accept_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "_host", x509.DNSName)  # As some authorities do, with addresses among the DNS names.
    secured = Secured(tmp_path)
    with secured.server:
        lines, error = lines_and_error(secured.address, secured.trust())
        assert error is None, lines
        assert lines[2].startswith(
            "pass  TLS         an actor accepts the certificate, though other programs may refuse"
        )
        secured.serve(secured.sign("elsewhere"))
        wait_for(lambda: lines_and_error(secured.address, secured.trust())[1], "the other certificate")
        lines, error = lines_and_error(secured.address, secured.trust())
    assert lines[2].startswith("FAIL  TLS ")
    assert isinstance(error, AuthenticationError)


def test_parts_that_differ_on_this_host_fail_alone_and_end_the_command_with_their_error(host: LearnerServer) -> None:
    lines, error = lines_and_error(host.ingest.address, Trust(allow=("elsewhere",)))
    assert [line[:4] for line in lines if line[0] != " "] == ["pass"] * 7 + ["FAIL"] + ["pass"] * 4
    assert lines[7].startswith(
        "FAIL  schema      the learner names code that is not allowed: env.target: 'tests.parts:"
    )
    assert lines[8].lstrip().startswith("to do: install the code that the learner names here too")
    assert isinstance(error, PluginError)


def test_a_model_that_does_not_fit_the_agent_of_this_host_fails_its_check(
    host: LearnerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckingAgent, "model_info", lambda _: {"layer": torch.zeros(3, 7)})  # Of another action space.
    lines, error = lines_and_error(host.ingest.address)
    assert isinstance(error, CheckpointError)
    assert lines[-2].startswith("FAIL  model       the learner's model does not fit the agent of this actor: ")
    assert "another action space here" in lines[-2]


def test_a_learner_that_is_silent_is_told_from_one_that_refuses_and_torch_is_not_imported_for_it() -> None:
    code = """
import io, socket, sys
from actor.commands.doctor import examine
from common.errors import LearnerUnreachableError
from common.wire.trust import Trust
with socket.create_server(("127.0.0.1", 0)) as silent:
    try:
        examine(f"127.0.0.1:{silent.getsockname()[1]}", Trust(), sys.stdout)
    except LearnerUnreachableError as error:
        assert "nothing came back in time: is that process stopped" in str(error), error
        assert "torch" not in sys.modules
        sys.exit(error.exit_code)
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == LearnerUnreachableError.exit_code, found.stdout + found.stderr
    assert "FAIL  answer      no answer: " in found.stdout


def test_a_token_that_is_not_sent_since_nothing_is_encrypted_is_not_called_accepted(
    host: LearnerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CROSSBORDER_TOKEN", "0123456789abcdef")
    lines, _ = lines_and_error(host.ingest.address)
    assert lines[4] == "pass  token       none, and none is asked for"


@pytest.mark.parametrize(("ahead", "word"), [(60.0, "ahead"), (-60.0, "behind")])
def test_a_clock_that_is_wrong_fails_with_how_far_it_is_off(host: LearnerServer, ahead: float, word: str) -> None:
    lines, error = lines_and_error(host.ingest.address, ahead=ahead)
    assert isinstance(error, ConfigError)
    assert re.search(rf"FAIL  clock       expected the same time within 5 s, .* s {word}", "\n".join(lines))


def schema_check(address: str, trust: Trust | None = None, **options: Any) -> str:
    """What is written of the schema; a failure ends the command."""
    lines, error = lines_and_error(address, trust, **options)
    assert isinstance(error, PluginError) == lines[7].startswith("FAIL")
    return lines[7]


@pytest.mark.parametrize(
    ("env", "passes", "fails"),
    [
        ({"params": {"device": "arm"}}, None, {}),
        ({"eval_params": {"device": "arm"}}, {}, {"evaluates": True}),
        ({}, {"actor_id": 0}, {"actor_id": 1}),
    ],
)
def test_a_device_that_is_missing_is_named_for_the_actor_that_would_need_it(
    make_config: MakeConfig, env: dict[str, Any], passes: dict[str, Any] | None, fails: dict[str, Any]
) -> None:
    env, evaluator = {**NO_DEVICE, **env}, {"process": "actor"}
    config = make_config(env=env, overrides={1: {"env": {"device": "arm"}}}, evaluator=evaluator)
    with LearnerServer(config) as server:
        if passes is not None:
            assert schema_check(server.ingest.address, **passes).startswith("pass  schema")
        failed = schema_check(server.ingest.address, **fails)
    assert failed.startswith("FAIL  schema")
    assert re.search(r"the parts cannot be built here: env tests\.\S+ \{.*\}: OSError: no arm$", failed)


def test_a_wrapper_must_be_allowed_only_on_the_hosts_of_actors_that_have_it(make_config: MakeConfig) -> None:
    wrapper = {"target": "gymnasium.wrappers:OrderEnforcing", "actors": [1]}
    trust = Trust(allow=("tests.parts",))
    with LearnerServer(make_config(env={"wrappers": [wrapper]})) as server:
        assert schema_check(server.ingest.address, trust, actor_id=0).startswith("pass  schema")
        assert schema_check(server.ingest.address, trust, actor_id=1).startswith("FAIL  schema")


def test_an_id_that_no_actor_can_have_fails_the_room_check(host: LearnerServer) -> None:
    most = host.config.server.max_actors
    lines, error = lines_and_error(host.ingest.address, actor_id=most)
    assert isinstance(error, RefusedError)
    assert f"FAIL  room        --id: expected less than {most}, found {most}" in lines


def test_a_learner_that_asks_no_actor_to_score_fails_the_room_check_of_one_that_would(host: LearnerServer) -> None:
    lines, error = lines_and_error(host.ingest.address, evaluates=True)
    assert isinstance(error, RefusedError)
    assert "FAIL  room        --evaluate: expected a learner with evaluator.process: actor, found inline" in str(lines)


def test_a_learner_whose_places_are_all_taken_fails_the_room_check(make_config: MakeConfig) -> None:
    from tests.learner.ingest.by_hand import Client

    with LearnerServer(make_config(server={"max_actors": 1, "grace_seconds": 0.1})) as server:
        Client(server).join()
        lines, error = lines_and_error(server.ingest.address)
    assert isinstance(error, RefusedError)
    assert "FAIL  room        expected a place for one more actor, found all 1 taken" in lines


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Nobody listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def test_a_port_where_nobody_listens_fails_its_check_and_ends_the_others(silent_port: int) -> None:
    lines, error = lines_and_error(f"127.0.0.1:{silent_port}")
    assert isinstance(error, LearnerUnreachableError)
    assert lines[-2:] == [
        f"FAIL  port        port {silent_port} of 127.0.0.1: Connection refused",
        f"{'':18}to do: {CHECKS[1].advice}",
    ]


def test_a_program_that_speaks_no_grpc_is_told_from_a_learner_that_asks_for_a_token() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), SaysHello) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            lines, error = lines_and_error(f"127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
    assert isinstance(error, LearnerUnreachableError)
    assert lines[-2].startswith("FAIL  answer      no answer: UNAVAILABLE")
    assert "; something else than gRPC is spoken there; is this the port of" in lines[-2]
    assert "to do: --learner: the learner's own port" in lines[-1]


def test_a_name_without_an_address_fails_the_first_check_and_ends_the_others() -> None:
    lines, error = lines_and_error("no-such-host.invalid:50051", Trust(insecure=True))
    assert isinstance(error, LearnerUnreachableError)
    assert lines[0].startswith("FAIL  name        'no-such-host.invalid' has no address")
    assert len(lines) == 2


def test_a_learner_of_an_older_release_fails_the_protocol_check() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        lines, error = lines_and_error(f"127.0.0.1:{port}")
    finally:
        server.stop(0).wait(5)
    assert isinstance(error, CrossborderError)
    assert error.exit_code == 7
    assert lines[-2].startswith("FAIL  protocol    the learner does not know this question")


def test_the_command_ends_with_the_exit_code_of_the_first_failure(
    start: Callable[..., Command], host: LearnerServer
) -> None:
    worker = start("actor-worker", "--learner", host.ingest.address, "--check", "--allow", "elsewhere")
    assert worker.wait() == PluginError.exit_code
    assert "FAIL  schema" in worker.output()
    assert worker.output().endswith("actor-worker: exit code 3: docs/exit-codes.md#exit-code-3\n")


def test_every_address_is_checked_and_those_that_fail_are_named(
    start: Callable[..., Command], host: LearnerServer, silent_port: int
) -> None:
    silent, serving = f"127.0.0.1:{silent_port}", host.ingest.address
    worker = start("actor-worker", "--learner", f"{silent},{serving}", "--check")
    assert worker.wait() == LearnerUnreachableError.exit_code
    assert worker.output().startswith(f"{silent}\npass  name")
    assert f"\n{serving}\npass  name" in worker.output()
    assert f"1 of 2 addresses failed: {silent}\n" in worker.output()
