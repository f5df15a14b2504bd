"""What goes wrong ends with one clear message, an exit code of its own, and no traceback."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
import yaml

from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import ERROR_KEY, PROTOCOL_VERSION
from learner.commands import learner_server, sync_train
from tests.conftest import Command, endpoints

Start = Callable[..., Command]
WriteConfig = Callable[..., Path]


def assert_fails(command: Command, code: int, message: str) -> None:
    assert command.wait() == code, command.output()
    assert re.search(message, command.output()), command.output()
    assert "Traceback" not in command.output()


def assert_fails_here(capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str) -> None:
    """Call ``learner-server`` in the process of the tests."""
    assert learner_server.main(words) == code
    written = "".join(capsys.readouterr())
    assert re.search(message, written), written
    assert "Traceback" not in written


DQN = {"target": "common.agents.dqn:DQN", "params": {"batch_size": 4}}


def make_nothing(**_: Any) -> dict[str, Any]:
    """A factory of a part, as a user might write one, which makes something else."""
    return {}


NOTHING = f"{__name__}:make_nothing"
WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "an unknown key": ({"replay": {"capacty": 5}}, 2, r"replay\.capacty: unknown key \(did you mean 'capacity'\?\)"),
    "a wrong type": ({"seed": "many"}, 2, r"seed: .*found 'many'"),
    "a missing module": ({"agent": {"target": "no_such:Agent"}}, 3, r"cannot import module 'no_such'"),
    "a missing attribute": ({"agent": {"target": "tests.parts:ChekingAgent"}}, 3, r"did you mean 'CheckingAgent'"),
    "an unknown parameter": ({"agent": {"params": {"batchsize": 3}}}, 2, r"did you mean 'batch_size'"),
    "no agent at all": ({"agent": {"target": "tests.parts:CountingEnv"}}, 3, r"must take device, epsilon, seed, spec"),
    "an unknown environment": (
        {"env": {"target": "gymnasium:make", "params": {"id": "CartPoll-v1"}}},
        3,
        r"CartPoll",
    ),
    "an unencrypted public address": ({"server": {"listen": "0.0.0.0:0"}}, 2, r"--insecure"),
    "a port that is none": (
        {"server": {"listen": "localhost"}},
        2,
        r"server\.listen: expected HOST:PORT .*'localhost'",
    ),
    "a key that is gone": (
        {"server": {"limits": {"max_calls": 2}}},
        2,
        r"server\.limits: unknown key \(known: .*max_address_actors",
    ),
    "evaluations by a learner that does not build the environment": (
        {"env": {"spaces": "tests.parts:counting_schema"}, "trainer": {"eval_interval": 10}},
        2,
        r"env\.spaces: the learner does not build the environment, so it cannot evaluate",
    ),
    "a warm-up that never ends": ({"trainer": {"warmup_period": 2_000_000}}, 2, r"training would never start"),
    "cores that this host lacks": (
        {"trainer": {"cores": "9999"}},
        2,
        r"trainer\.cores: expected some of the cores that this process may use \([\d,-]+\), found 9999",
    ),
    "a column to clip that is none": (
        {"server": {"unusual_values": {"rewards": 10.0}}},
        2,
        r"server\.unusual_values: expected a column of floats, found 'rewards' \(did you mean 'reward'\?\)",
    ),
    "a column that cannot be clipped so": (
        {"server": {"unusual_values": {"reward": 1e39}}},
        2,
        r"server\.unusual_values\.reward: expected at most 3\.40282e\+38, found 1e\+39",
    ),
    "a column with bounds that is none": (
        {"server": {"unusual_values": {"actions": "count"}}},
        2,
        r"server\.unusual_values: expected a column with bounds, found 'actions' \(did you mean 'action'\?\)",
    ),
    "an agent for other actions": (
        {
            "env": {"target": "gymnasium:make", "params": {"id": "Pendulum-v1"}},
            "agent": {"target": "common.agents.dqn:DQN"},
        },
        2,
        r"DQN: expected a Discrete or MultiDiscrete action space",
    ),
    # More than any process can address: no host would begin to give it.
    "an agent that needs more memory than there is": (
        {"agent": {"target": "common.agents.iqn:IQN", "params": {"units": [1 << 50]}}},
        3,
        r"common\.agents\.iqn:IQN: expected params for which there is memory here: .*tried to allocate \d+ bytes",
    ),
    "a network whose size has too many digits": (
        {"agent": {**DQN, "params": {"units": [1 << 62]}}},
        3,
        r"common\.agents\.dqn:DQN: expected params for which there is memory here: ",
    ),
    "a run directory that cannot be made": (
        {"agent": DQN, "run_dir": "/proc/runs/1"},
        4,
        r"/proc/runs/1: cannot be written: No such file or directory",
    ),
    "a source that does not exist": (
        {"agent": DQN, "replay": {"sources": {"demonstrations": {"dataset": "runs/nowhere", "share": 0.25}}}},
        14,
        r"dataset: expected minari:ID, .*found 'runs/nowhere'",
    ),
    "an evaluator that scores nothing": (
        {"agent": DQN, "evaluator": {"target": "argparse:Namespace"}},
        3,
        r"evaluator\.target: expected a crossborder\.Evaluator, found Namespace without evaluate\n",
    ),
    "a factory that makes no evaluator": (
        {"agent": DQN, "evaluator": {"target": NOTHING}, "trainer": {"eval_interval": 10}},
        3,
        r"evaluator\.target: expected a crossborder\.Evaluator, found dict without evaluate\n",
    ),
    "a recorder that writes nothing": (
        {"agent": DQN, "recorders": [{"target": "builtins:dict"}]},
        3,
        r"recorders\.0\.target: expected a crossborder\.Recorder, found dict without write, flush, close\n",
    ),
    "a callback that is none": (
        {"agent": DQN, "callbacks": [{"target": "builtins:int"}]},
        3,
        r"callbacks\.0\.target: expected a crossborder\.Callback, found int\n",
    ),
    "a view that is none": (
        {"agent": DQN, "replay": {"view": {"target": "builtins:dict"}}},
        3,
        r"replay\.view\.target: expected a crossborder\.View, found dict\n",
    ),
    "more steps in a transition than the replay has": (
        {"agent": DQN, "replay": {"view": {"params": {"n": 1 << 62}}}},
        2,
        rf"replay\.capacity: expected at least {1 << 62} rows, for a draw of replay\.view, found \d+\n",
    ),
    "a batch that no memory holds": (
        {
            "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}},
            "agent": {**DQN, "params": {"batch_size": 1 << 50}},
        },
        2,
        rf"agent\.params: expected batches for which there is memory here, \d+ GiB, found one of {1 << 50} draws",
    ),
    "a part without a name": ({"agent": {"target": ""}}, 3, r"agent\.target: '': expected module:attr, such as"),
    "a mirror that no installed package reaches": (
        {"agent": DQN, "storage": {"mirror": "nowhere://bucket/run"}},
        3,
        r"storage\.mirror: nowhere://bucket/run: .*; pip install 'crossborder\[mirror\]'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_configuration_is_told_in_one_line_with_its_exit_code(
    write_config: WriteConfig, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, code, message = WRONG[what]
    assert_fails_here(capsys, ["--config", str(write_config(**changes)), "--check"], code, message)


def test_a_wrong_configuration_ends_the_process_so(start: Start, write_config: WriteConfig) -> None:
    changes, code, message = WRONG["a missing module"]
    assert_fails(start("learner-server", "--config", str(write_config(**changes)), "--check"), code, message)


def test_a_missing_configuration_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert_fails_here(capsys, ["--config", str(tmp_path / "no.yaml")], 2, "no.yaml: cannot be read")


def test_a_good_configuration_passes_the_check_and_starts_nothing(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    check = start("learner-server", "--config", str(write_config(agent=DQN)), "--check")
    assert check.wait() == 0
    assert "counting: good. Rows: obs <f4 [3]" in check.output()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("main", "words", "code"),
    [(learner_server.main, [], 0), (learner_server.main, ["--local-actors", "1"], 3), (sync_train.main, [], 3)],
)
def test_the_check_builds_the_environment_where_this_command_acts(
    write_config: WriteConfig, main: Callable[[list[str]], int], words: list[str], code: int
) -> None:
    space = {"type": "Box", "low": 0, "high": 1, "shape": [3]}
    spaces = {"observation": space, "action": {"type": "Discrete", "n": 2}}
    elsewhere = {"target": "no_such_game:Game", "params": {}, "spaces": spaces}
    config = write_config(env=elsewhere, agent=DQN, trainer={"max_opts": 5, "eval_interval": 0})
    assert main(["--config", str(config), "--check", *words]) == code


def test_the_resolved_configuration_is_shown_with_its_overrides(
    capsys: pytest.CaptureFixture[str], write_config: WriteConfig
) -> None:
    words = ["--config", str(write_config()), "--set", "seed=9", "--set", "push.window=3", "--show-config"]
    assert learner_server.main(words) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert (values["seed"], values["push"]["window"], values["push"]["n_buffer"]) == (9, 3, 10)


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], write_config: WriteConfig) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["--config", str(write_config()), "--listen", address]
        assert_fails_here(capsys, words, 5, f"{address}: cannot")


def test_a_run_directory_that_holds_a_run(
    capsys: pytest.CaptureFixture[str], write_config: WriteConfig, tmp_path: Path
) -> None:
    (tmp_path / "run" / "best").mkdir(parents=True)
    assert_fails_here(capsys, ["--config", str(write_config())], 4, "expected a new run directory, found a run")


def test_a_budget_that_runs_out_before_the_target(start: Start, write_config: WriteConfig) -> None:
    config = write_config(trainer={"max_opts": 20, "eval_interval": 10, "target_score": 1e9}, evaluator={"episodes": 1})
    server = start("learner-server", "--config", str(config), "--local-actors", "1")
    assert_fails(server, 10, r"all opt steps were taken, but the target score 1e\+09 was not reached: best evaluation")


def test_steps_that_never_come(start: Start, write_config: WriteConfig, tmp_path: Path) -> None:
    config = write_config(trainer={"max_opts": 20, "starvation_seconds": 1.0})
    assert_fails(start("learner-server", "--config", str(config)), 13, "no step has arrived")
    assert (tmp_path / "run" / "final" / "meta.json").exists()


def test_an_exception_in_a_users_agent_shows_its_traceback_and_what_was_learnt_is_saved(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    config = write_config(agent={"target": "tests.parts:FailingAgent"})
    server = start("learner-server", "--config", str(config), "--local-actors", "1")
    assert server.wait() == 1
    assert "ZeroDivisionError: the user's own mistake" in server.output()
    assert json.loads((tmp_path / "run" / "final" / "meta.json").read_text())["opt_steps"] == 3


def test_actors_whose_items_are_refused_end_the_run_with_the_reason(start: Start, write_config: WriteConfig) -> None:
    server = start(
        "learner-server",
        "--config",
        str(write_config(env={"target": "tests.parts:NanEnv"})),
        "--local-actors",
        "1",
    )
    assert_fails(server, 9, r"actor 0: column 'reward': expected finite values, found nan in row 4")


def test_actors_whose_items_are_clipped_go_on_and_the_items_are_what_they_are_clipped_to(
    start: Start, write_config: WriteConfig
) -> None:
    config = write_config(
        env={"target": "tests.parts:InfiniteEnv"}, server={"unusual_values": {"reward": 5.0}}, trainer={"max_opts": 50}
    )
    server = start("learner-server", "--config", str(config), "--local-actors", "1")
    assert server.wait() == 0, server.output()  # The agent has checked each row that it drew.


def test_a_learner_that_cannot_be_reached(start: Start) -> None:
    worker = start("actor-worker", "--learner", "127.0.0.1:1", "--patience", "1")
    assert_fails(worker, 6, r"127\.0\.0\.1:1: no learner for 1 s: UNAVAILABLE")


def test_an_actor_whose_parts_make_other_items_than_the_learners(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    for host, size in (("learner", 3), ("actor", 4)):
        (tmp_path / host).mkdir()
        (tmp_path / host / "versioned.py").write_text(
            "import gymnasium\nfrom tests.parts import CountingEnv\n\n"
            f"class Env(CountingEnv):\n    observation_space = gymnasium.spaces.Box(0, 1, ({size},), 'float32')\n"
        )
    config = write_config(env={"target": "versioned:Env"})
    start("learner-server", "--config", str(config), python_path=tmp_path / "learner")
    address = endpoints(tmp_path / "run")["learner"]
    worker = start("actor-worker", "--learner", address, python_path=tmp_path / "actor")
    assert_fails(worker, 8, r"column 0: the learner expects obs <f4 \[3\], this actor has obs <f4 \[4\]")


class OlderLearner(grpc.GenericRpcHandler):
    """A learner that speaks another version of the protocol."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        assert handler_call_details.method == "/crossborder.v1.LearnerService/Join"
        return grpc.unary_unary_rpc_method_handler(self.join, request_deserializer=pb.JoinRequest.FromString)

    def join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> NoReturn:
        context.set_trailing_metadata(((ERROR_KEY, "protocol_mismatch"),))
        details = f"protocol version: the learner speaks 0, the actor {request.protocol_version}"
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, details)


def test_a_learner_of_another_protocol_version(start: Start) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((OlderLearner(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        worker = start("actor-worker", "--learner", f"127.0.0.1:{port}")
        assert_fails(worker, 7, f"the learner speaks 0, the actor {PROTOCOL_VERSION}")
    finally:
        server.stop(0).wait(5)


@pytest.mark.parametrize(("error", "named"), [("exit", r"SystemExit\(3\)"), ("interrupt", r"KeyboardInterrupt\(\)")])
def test_an_environment_that_ends_the_process_does_not_do_so_in_silence(
    error: str, named: str, start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    env = {"target": "tests.parts:ExitingEnv", "params": {"marker": str(tmp_path / "it"), "at": 3, "error": error}}
    agent = {"target": "tests.parts:CheckingAgent", "params": {"in_turns": True}}
    command = start("sync-train", "--config", str(write_config(env=env, agent=agent)))
    assert command.wait() == 1, command.output()
    assert re.search(f"one of your parts raised {named}", command.output()), command.output()
    assert "in fail" in command.output(), "the traceback names the place"
