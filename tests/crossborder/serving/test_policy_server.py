"""The command with saved policies, as a real process."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import gymnasium
import numpy as np
import pytest
import yaml

from common.config.actor_config import ActorConfig
from common.episode_files import read_episode
from common.errors import ConfigError, LearnerUnreachableError
from common.interfaces import Agent
from common.lanes.building import read_spec
from common.parts import build_parts
from common.plugins.part_config import EnvConfig, PluginConfig
from common.wire.pb import acting_pb2 as pb
from crossborder.serving.policy_server import main
from learner.storage.checkpoint import Checkpoints, load_policy
from tests.conftest import PATIENCE, ROOT, Command, signal_each, wait_for, with_descendants
from tests.crossborder.serving.services import Caller, numbers

Start = Callable[..., Command]
CARTPOLE = EnvConfig(target="gymnasium:make", params={"id": "CartPole-v1"})
ACROBOT = EnvConfig(target="gymnasium:make", params={"id": "Acrobot-v1"})


def save(run: Path, env: EnvConfig = CARTPOLE, *, opt_steps: int = 12, **params: object) -> Agent:
    """Save the policy of an untrained DQN as ``best``, and return its agent."""
    config = ActorConfig(env=env, agent=PluginConfig(target="common.agents.dqn:DQN", params={"units": [8], **params}))
    agent = build_parts(config, seed=opt_steps).agent
    Checkpoints(run, config, "run").save("best", agent, opt_steps=opt_steps)
    agent.eval()
    return agent


def address_of(command: Command) -> str:
    """Where the service says that it listens."""
    wait_for(lambda: "acts for clients on" in command.output() or command.process.poll() is not None, "it listens")
    found = re.search(r"acts for clients on (\S+)", command.output())
    assert found, command.output()
    return found[1]


@pytest.mark.slow
def test_a_client_gets_the_greedy_actions_of_the_saved_policy_and_ctrl_c_ends_the_service(
    tmp_path: Path, start: Start
) -> None:
    agent = save(tmp_path / "run")
    command = start("policy-server", "--run", str(tmp_path / "run" / "best"), "--listen", "127.0.0.1:0")
    env = gymnasium.make("CartPole-v1")
    with Caller(address_of(command), read_spec(CARTPOLE)) as caller:
        assert caller.stub.Describe(pb.DescribeRequest()).version == 12
        stream = caller.open(2)
        for seq in range(1, 20):
            observations = np.stack([env.observation_space.sample() % 1 for _ in range(2)]).astype(np.float32)
            answer = stream.step(seq, observations, 2)
            assert numbers(answer) == agent.sample(observations).tolist()
            assert answer.version == 12
        command.signal(signal.SIGINT)
        assert command.wait() == 130


@pytest.mark.slow
def test_a_worker_gives_up_a_service_that_is_frozen_after_its_patience(tmp_path: Path, start: Start) -> None:
    save(tmp_path / "run")
    command = start("policy-server", "--run", str(tmp_path / "run" / "best"), "--listen", "127.0.0.1:0")
    address, file = address_of(command), tmp_path / "worker.yaml"
    file.write_text(yaml.safe_dump({"env": {"target": CARTPOLE.target, "params": CARTPOLE.params}}))
    worker = start("actor-worker", "--policy", address, "--config", str(file), "--patience", "3")
    wait_for(lambda: "joined the acting" in worker.output() or worker.process.poll() is not None, "it acts")
    frozen = with_descendants(command.process.pid)
    signal_each(frozen, signal.SIGSTOP)
    try:
        assert worker.wait() == LearnerUnreachableError.exit_code
    finally:
        signal_each(frozen, signal.SIGCONT)
    assert f"waiting for the acting service at {address}: the service answers nothing any more" in worker.output()
    assert "no acting service for 3 s" in worker.output()
    assert "is that process stopped or overloaded" in worker.output()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--listen", "0.0.0.0:0"], 2, "is reachable from other hosts; expected tls and token_file too"),
        (["--set", "max_lane=3"], 2, "max_lanes"),
        (["--device", "gpu"], 2, "device: expected a device such as cpu, cuda or cuda:1, found 'gpu'"),
        (["--learner", "127.0.0.1:1"], 2, "expected one of --run and --learner"),
        (
            ["--token-file", "x", "--insecure"],
            2,
            "--token-file, --insecure: expected none beside --run; options about cl",
        ),
        (["--config", "FILE", "--listen-key", "x"], 2, "tls.key: 'tls' is a value, not a section"),
        (["--checkpoint", "7"], 2, "names the checkpoint best, --checkpoint 7 another"),
        (["--run", "runs/other"], 2, "with different names, found "),
        (["--run", "a b=runs/other"], 2, "expected a name of up to 64 letters"),
    ],
)
def test_what_cannot_be_served_is_said(tmp_path: Path, start: Start, words: list[str], code: int, message: str) -> None:
    save(tmp_path / "run")
    (tmp_path / "FILE").write_text("tls: certs/\n")
    command = start("policy-server", "--run", str(tmp_path / "run" / "best"), *words, cwd=tmp_path)
    assert command.wait() == code
    assert message in command.output()


def test_a_checkpoint_beside_a_learner_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--learner", "127.0.0.1:1", "--best"]) == ConfigError.exit_code
    assert "--checkpoint: expected none beside --learner" in capsys.readouterr().err


@pytest.mark.slow
def test_a_policy_with_a_memory_goes_on_in_each_lane_after_a_broken_connection(tmp_path: Path, start: Start) -> None:
    config = ActorConfig(
        env=CARTPOLE,
        agent=PluginConfig(target="common.agents.r2d2:R2D2", params={"units": [8], "memory": {"width": 8}}),
    )
    Checkpoints(tmp_path / "run", config, "run").save("best", build_parts(config, seed=3).agent, opt_steps=1)
    command = start("policy-server", "--run", str(tmp_path / "run"), "--listen", "127.0.0.1:0")
    policy = load_policy(tmp_path / "run" / "best")
    observations = np.random.default_rng(0).normal(size=(40, 3, 4)).astype(np.float32)
    with Caller(address_of(command), read_spec(CARTPOLE)) as caller:
        stream = caller.open(3)
        for seq, seen in enumerate(observations, 1):
            if seq % 10 == 0:
                stream.cut()
                stream = caller.resume(stream.opened.secret)
            ends = seq % 15 == 14
            answer = numbers(stream.step(seq, seen, 3, truncated=[False, ends, False]))
            lanes = [0, 2] if ends else [0, 1, 2]
            if ends:
                policy.begin([1])
            assert [answer[lane] for lane in lanes] == policy([seen[lane] for lane in lanes], lanes)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", "best"])
def test_sessions_go_on_with_the_policy_that_a_run_puts_in_the_place_of_the_one_that_acts(
    tmp_path: Path, start: Start, place: str
) -> None:
    agents = {12: save(tmp_path / "run")}
    command = start("policy-server", "--run", str(tmp_path / "run" / place), "--listen", "127.0.0.1:0")
    observations = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    with Caller(address_of(command), read_spec(CARTPOLE)) as caller:
        stream = caller.open(16)

        def step(seq: int) -> int:
            answer = stream.step(seq, observations, 16)
            assert numbers(answer) == agents[answer.version].sample(observations).tolist()
            return answer.version

        assert step(1) == 12
        agents[24] = save(tmp_path / "run", opt_steps=24)
        seqs = count(2)
        wait_for(lambda: step(next(seqs)) == 24, "the newer policy acts in the same session")


@pytest.mark.slow
def test_each_session_chooses_one_of_several_policies_and_each_has_its_own_recording(
    tmp_path: Path, start: Start
) -> None:
    agents = {"cart": save(tmp_path / "cart"), "acrobot": save(tmp_path / "acrobot", ACROBOT)}
    runs = [f"--run={name}={tmp_path / name}" for name in agents]
    command = start("policy-server", *runs, "--listen", "127.0.0.1:0", "--record", str(tmp_path / "episodes"))
    address, rng = address_of(command), np.random.default_rng(0)
    for name, env in (("acrobot", ACROBOT), ("cart", CARTPOLE)):
        with Caller(address, spec := read_spec(env)) as caller:
            assert [*caller.stub.Describe(pb.DescribeRequest(policy=name)).policies] == ["cart", "acrobot"]
            stream = caller.open(2, policy=name)
            shape = (2, *spec.observation_space.shape)  # type: ignore[misc] # a Box has one
            observations = (rng.random(shape) * 0.1).astype(np.float32)
            assert numbers(stream.step(1, observations, 2)) == agents[name].sample(observations).tolist()
            stream.step(2, observations, 2, terminated=[True, False])
    command.signal(signal.SIGINT)
    assert command.wait() == 130, command.output()
    for name, width in (("cart", 4), ("acrobot", 6)):
        (file,) = (tmp_path / "episodes" / name).iterdir()
        assert read_episode(file)["obs"].shape == (2, width)


@pytest.mark.slow
def test_the_client_on_the_page_plays(tmp_path: Path, start: Start) -> None:
    save(tmp_path / "run")
    words = ["--listen", "127.0.0.1:0", "--websocket", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    command = start("policy-server", "--run", str(tmp_path / "run"), *words)
    address_of(command)
    wait_for(lambda: "metrics on port" in command.output(), "all doors are open")
    websocket, metrics = re.findall(r"WebSocket on (\S+)|metrics on port (\d+)", command.output())
    page = (ROOT / "docs" / "acting-service.md").read_text()
    (client,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(client.replace("127.0.0.1:50061", websocket[0]), {})  # noqa: S102 - our own page
    with urlopen(f"http://127.0.0.1:{metrics[1]}/metrics", timeout=PATIENCE) as answer:
        told = answer.read().decode()
    (episodes,) = re.findall(r"^crossborder_serving_episodes_total\S* (\S+)", told, re.MULTILINE)
    (returns,) = re.findall(r"^crossborder_serving_returns_total\S* (\S+)", told, re.MULTILINE)
    assert float(episodes) > 5
    assert 5 * float(episodes) < float(returns) < 1000, "an untrained policy keeps the pole up for some ten steps"


@pytest.mark.slow
def test_whole_episodes_are_recorded_with_the_actions_that_were_executed(tmp_path: Path, start: Start) -> None:
    save(tmp_path / "run")
    words = ["--listen", "127.0.0.1:0", "--record", str(tmp_path / "episodes")]
    command = start("policy-server", "--run", str(tmp_path / "run"), *words)
    observations = np.random.default_rng(0).normal(size=(6, 2, 4)).astype(np.float32)
    with Caller(address_of(command), read_spec(CARTPOLE)) as caller:
        stream = caller.open(2)
        chosen = numbers(stream.step(1, observations[0], 2))
        executed, by_person = np.array([1, 1 - chosen[1]]), [False, True]
        payload = {"executed": executed.tobytes(), "intervened": by_person}
        stream.step(2, observations[1], 2, reward=[0.5, 0.25], **payload)
        stream.step(3, observations[2], 2, reward=[1, 2], terminated=[False, True])
        stream.step(4, observations[3], 2, reward=[3, 0])
        command.signal_another_thread(signal.SIGTERM)
        assert command.wait() == 128 + signal.SIGTERM, command.output()
    (file,) = (tmp_path / "episodes").iterdir()
    episode = read_episode(file)
    np.testing.assert_array_equal(episode["obs"], observations[:3, 1])
    assert episode["action"][0] == executed[1]
    assert (episode["reward"].tolist(), episode["terminated"].tolist()) == ([0.25, 2], [False, True])
    assert episode["intervened"].tolist() == [True, False]
