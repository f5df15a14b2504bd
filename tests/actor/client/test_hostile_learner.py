"""What a hostile learner can do to a real ``actor-worker`` over a real socket: nothing but end it with a message."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.config.run_config import load_config
from common.lanes.building import build_env, spec_of
from common.parts import row_schema
from common.wire.codec import schema_to_pb
from common.wire.pb import crossborder_pb2 as pb
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.conftest import ROOT, Command, wait_for

Start = Callable[..., Command]
ANOTHER_HOST = "0.0.0.0"


def cartpole() -> dict[str, Any]:
    config = load_config(ROOT / "configs" / "cartpole.yaml").actor_part()
    values: dict[str, Any] = json.loads(config.model_dump_json())
    return values


def naming(**sections: Any) -> pb.JoinResponse:
    """An answer to ``Join`` by a learner of CartPole that has sections of the configuration replaced."""
    env = build_env(load_config(ROOT / "configs" / "cartpole.yaml").env)
    return pb.JoinResponse(
        run_id="run",
        schema=schema_to_pb(row_schema(spec_of(env))),
        config_json=json.dumps({**cartpole(), **sections}),
        newest=pb.ModelVersion(incarnation=1),
        limits=pb.Limits(max_rows=100, max_message_bytes=1 << 20),
    )


@pytest.fixture
def pwned(tmp_path: Path) -> Path:
    """A file that attacks make; and a module ``evilmod`` in the current directory that makes it when imported."""
    made = tmp_path / "pwned"
    (tmp_path / "evilmod.py").write_text(f"open({str(made)!r}, 'w')")
    return made


def attacks(pwned: Path) -> dict[str, dict[str, Any]]:
    """What strangers tried, as sections of the configuration."""
    command = f"touch {pwned}"
    child = {"name": "x", "module": "antigravity", "boot": {}, "env": {"BROWSER": f"sh -c '{command} #' %s"}}
    return {
        "a child process of ours": {"env": {"target": "common.process.child:Child", "params": child}},
        "os.system": {"env": {"target": "os:system", "params": {"command": command}}},
        "gymnasium's id": {"env": {"target": "gymnasium:make", "params": {"id": "evilmod:Foo-v0"}}},
        "the agent": {"agent": {"target": "subprocess:getoutput", "params": {"cmd": command}}},
        "the processor": {"step_processor": {"target": "subprocess:getoutput", "params": {"cmd": command}}},
        "the network": {
            "agent": {"target": "common.agents.dqn:DQN", "params": {"network": {"target": "evilmod:Net"}}},
        },
    }


@pytest.mark.parametrize("attack", ["os.system", "gymnasium's id", "the agent", "the processor", "the network"])
def test_code_that_is_not_allowed_is_neither_imported_nor_called(
    attack: str, serve: Serve, start: Start, pwned: Path, tmp_path: Path
) -> None:
    port = serve(ScriptedLearner(naming(**attacks(pwned)[attack]), []))
    worker = start("actor-worker", "--learner", f"{ANOTHER_HOST}:{port}", "--insecure", cwd=tmp_path)
    assert worker.wait() == 3, worker.output()
    assert "actor-worker: the learner names code that" in worker.output()
    assert "Traceback" not in worker.output()
    assert not pwned.exists()


@pytest.mark.parametrize("attack", ["a child process of ours", "gymnasium's id"])
def test_allowing_gymnasium_and_our_packages_allows_no_other_code(
    attack: str, serve: Serve, start: Start, pwned: Path, tmp_path: Path
) -> None:
    port = serve(ScriptedLearner(naming(**attacks(pwned)[attack]), []))
    options = ("--allow", "gymnasium", "common", "actor", "learner")
    worker = start("actor-worker", "--learner", f"127.0.0.1:{port}", *options, cwd=tmp_path)
    assert worker.wait() == 3, worker.output()
    assert not pwned.exists()


@pytest.mark.parametrize(
    ("config_json", "code"), [("{", 2), ("[" * 200_000, 2), (json.dumps({**cartpole(), "envs_per_actor": 10**9}), 2)]
)
def test_a_configuration_that_is_not_valid_ends_the_actor_with_a_message(
    config_json: str, code: int, serve: Serve, start: Start
) -> None:
    joined = naming()
    joined.config_json = config_json
    worker = start("actor-worker", "--learner", f"127.0.0.1:{serve(ScriptedLearner(joined, []))}")
    assert worker.wait() == code, worker.output()
    assert "actor-worker: the learner's configuration" in worker.output()
    assert "Traceback" not in worker.output()


class Flooding(ScriptedLearner):
    """Sends an endless model."""

    def __init__(self, chunk: pb.GetModelResponse) -> None:
        super().__init__(naming(), [])
        self._chunk = chunk

    def GetModel(  # noqa: N802
        self, request: pb.GetModelRequest, context: Any
    ) -> Iterator[pb.GetModelResponse]:
        self.had.append(request.have)
        return itertools.repeat(self._chunk)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (pb.GetModelResponse(total_bytes=1 << 40, data=b"x" * 1000), "model: expected up to"),
        (pb.GetModelResponse(total_bytes=1 << 20), "expected data in the chunk at offset 0"),
    ],
)
def test_an_endless_model_is_broken_off_at_once_and_asked_for_again(
    chunk: pb.GetModelResponse, message: str, serve: Serve, start: Start
) -> None:
    learner = Flooding(chunk)
    worker = start("actor-worker", "--learner", f"127.0.0.1:{serve(learner)}")
    wait_for(lambda: worker.output().count(message) >= 2 and len(learner.had) >= 2, "it is asked again")
