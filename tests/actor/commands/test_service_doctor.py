"""``actor-worker --policy … --check`` against real acting services."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from actor.commands.service_doctor import CHECKS, examine_service
from actor.remote_config import RemoteConfig
from common.errors import LearnerUnreachableError
from common.interfaces import EnvSpec
from common.wire.trust import ServiceTrust
from crossborder.serving.recording_player import RecordingPlayer
from tests.conftest import Command, free_port
from tests.crossborder.serving.services import Caller, Counting, Service
from tests.parts import CountingEnv

Start = Callable[..., Command]
SPEC = EnvSpec(CountingEnv.observation_space, CountingEnv.action_space)
COUNTING = {"target": "tests.parts:CountingEnv"}
CARTPOLE = {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}}
pytestmark = pytest.mark.slow


class HeldBack(Counting, RecordingPlayer):
    """Acts, and takes the steps of a service for a learner that takes no rows."""

    takes_executed = False

    def note(self, steps: object, outcome: object) -> None:
        """Take them."""

    async def hand_over(self) -> None:
        """Wait without end."""
        await asyncio.Event().wait()


def check(
    start: Start, directory: Path, address: str, env: object = COUNTING
) -> tuple[int, list[tuple[str, str]], str]:
    """The exit code of the check, result and name of each line, and all that was printed."""
    file = directory / "worker.yaml"
    file.write_text(yaml.safe_dump({"env": env, "envs_per_actor": 2}))
    command = start("actor-worker", "--policy", address, "--config", str(file), "--check")
    code = command.wait()
    found = re.findall(r"^(pass|FAIL)  (.+?)  ", command.output(), re.MULTILINE)
    return code, found, command.output()


def test_a_service_that_works_passes_every_check_and_keeps_no_session(start: Start, tmp_path: Path) -> None:
    with Service(Counting(SPEC), max_lanes=2) as service:
        code, found, output = check(start, tmp_path, service.places.address)
        assert (code, found) == (0, [("pass", one.name) for one in CHECKS]), output
        assert "the policy of opt step 7 is greedy, takes <f4 [3] and gives <i8 []" in output
        assert "tests.parts:CountingEnv has the spaces of the policy, in 2 lanes" in output
        assert service.player.batches == [[0, 1]]
        with Caller(service.places.address, SPEC) as caller:
            assert caller.open(2).opened.seed == 2, "the lanes of the check's session are free"


class Unreached(CountingEnv):
    """Cannot be built."""

    def __init__(self) -> None:
        raise ConnectionRefusedError("no simulator")


CASES: dict[str, tuple[object, dict[str, Any], int, str]] = {
    "environment": (CARTPOLE, {}, 8, "service expects <f4 [3]"),
    "environment of no simulator": (
        {"target": "tests.actor.commands.test_service_doctor:Unreached"},
        {},
        3,
        "test_service_doctor:Unreached: ConnectionRefusedError: no simulator",
    ),
    "environment of few lanes": (
        COUNTING,
        {"max_lanes": 1},
        2,
        "expected at most 1, max_lanes of the service, found 2",
    ),
    "action": (COUNTING, {"max_sessions": 1}, 6, "all 1 sessions (max_sessions) are taken"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named(start: Start, tmp_path: Path, case: str) -> None:
    env, settings, code, message = CASES[case]
    with Service(Counting(SPEC), **settings) as service, Caller(service.places.address, SPEC) as caller:
        caller.open(1)
        found_code, found, output = check(start, tmp_path, service.places.address, env)
    assert found_code == code, output
    assert [name for result, name in found if result == "FAIL"] == [case.partition(" of ")[0]]
    assert message in output
    assert "Traceback" not in output


def test_a_service_that_is_not_there_or_lacks_the_policy_is_named(start: Start, tmp_path: Path) -> None:
    code, found, _ = check(start, tmp_path, f"127.0.0.1:{free_port()}")
    assert (code, found[-1]) == (6, ("FAIL", "port"))
    with Service(Counting(SPEC)) as service:
        code, found, output = check(start, tmp_path, f"hard={service.places.address}")
    assert (code, found[-1]) == (9, ("FAIL", "service")), output
    assert "policy: expected one of these names" in output


def test_a_service_that_answers_no_step_since_its_learner_holds_it_back_is_named() -> None:
    out = io.StringIO()
    with Service(HeldBack(SPEC)) as service:
        config = RemoteConfig.model_validate({"policy": service.places.address, "env": COUNTING})
        with pytest.raises(LearnerUnreachableError, match="expected an action within 5 s, found none"):
            examine_service(config, ServiceTrust(), out)
    assert f"FAIL  {CHECKS[-1].name}" in out.getvalue()
