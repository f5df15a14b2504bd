"""The example of robots: its arm, its demonstrations, its person, and that all of it fits together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.config.run_config import load_config
from common.episode_files import read_episode
from common.errors import ConfigError
from common.lanes.building import build_env
from crossborder.people.teleoperation import Teleoperate
from examples.robot.arm import HIGH, LOW, PressButton, joints_at, tip_at
from examples.robot.demonstrations import demonstrate, write_demonstrations
from examples.robot.expert import press
from examples.robot.fleet import CONFIG, HOST, free_port
from examples.robot.relay import relay
from examples.robot.report import row_of
from learner.loop.in_turns import train_in_turns

PERSON = {"device": {"target": "examples.robot.person:HelpfulPerson"}}
STILL = np.zeros(3, np.float32)


def has_gl() -> bool:
    arm = PressButton(pixels=8)
    try:
        arm.reset(seed=0)
    except Exception as error:  # noqa: BLE001 - each GL library fails in its own way.
        pytest.skip(f"MuJoCo cannot draw here: {error!r}")
    finally:
        arm.close()
    return True


@pytest.fixture
def arm() -> Iterator[PressButton]:
    assert has_gl()
    made = PressButton()
    yield made
    made.close()


def test_the_joints_bring_the_fingertip_to_every_corner_of_its_box() -> None:
    for corner in (LOW, HIGH, np.array([LOW[0], HIGH[1], LOW[2]])):
        np.testing.assert_allclose(tip_at(joints_at(corner)), corner, atol=1e-9)


def test_parameters_that_no_robot_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"PressButton: expected .* stiffness above 0 .* found .*-1"):
        PressButton(stiffness=-1)


def test_the_script_presses_the_button_and_only_that_pays(arm: PressButton) -> None:
    arm.reset(seed=3)
    rng, rewards, terminated = np.random.default_rng(0), [], False
    while not terminated:
        _, reward, terminated, truncated, info = arm.step(press(arm, 0.0, rng))
        rewards.append(reward)
        assert not truncated
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
    assert info["is_success"]


def test_only_the_pictures_show_where_the_button_is(arm: PressButton) -> None:
    arm.reset(seed=0)
    before = arm._observe()
    arm.model.body("button").pos[1] += 0.05
    arm.step(STILL)
    after = arm._observe()
    np.testing.assert_allclose(after["state"], before["state"], atol=2e-3)
    assert (after["fixed"] != before["fixed"]).any()
    assert (after["wrist"] != before["wrist"]).any()
    assert arm.observation_space.contains(after)


def test_a_robot_with_other_parameters_sees_and_measures_something_else(arm: PressButton) -> None:
    other = PressButton(light=0.5, joint_offset=0.1)
    mine, _ = arm.reset(seed=0)
    theirs, _ = other.reset(seed=0)
    assert theirs["fixed"].mean() < mine["fixed"].mean()
    np.testing.assert_allclose(theirs["state"], mine["state"], atol=1e-6)  # It believes to be where it should be …
    assert np.linalg.norm(other.tip - arm.tip) > 0.02  # … and is not.
    other.close()


def test_a_demonstration_is_an_episode_that_succeeds(arm: PressButton, tmp_path: Path) -> None:
    steps = write_demonstrations(tmp_path / "made", episodes=2, noise=0.5)
    files = sorted((tmp_path / "made").iterdir())
    episodes = [read_episode(file) for file in files]
    assert sum(len(episode["reward"]) for episode in episodes) == steps
    assert all(episode["reward"][-1] == 1 and episode["terminated"][-1] for episode in episodes)
    again = demonstrate(arm, 1, noise=0.5)
    np.testing.assert_array_equal(again["obs/wrist"], episodes[1]["obs/wrist"])


def test_the_person_helps_only_a_policy_that_makes_no_progress(arm: PressButton) -> None:
    helped = Teleoperate(arm, **PERSON)
    helped.reset(seed=0)
    infos = [helped.step(STILL)[-1] for _ in range(40)]
    acted = ["intervene_action" in info for info in infos]
    assert not any(acted[:10])
    assert any(acted)
    assert any(info["is_success"] for info in infos)
    helped.reset(seed=1)
    assert not any("intervene_action" in helped.step(press(arm, 0.0, np.random.default_rng(0)))[-1] for _ in range(8))


def test_the_relay_passes_bytes_on_both_ways() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(5)).upper())
        await writer.drain()
        writer.close()

    async def talk() -> bytes:
        target, listen = free_port(), free_port()
        async with await asyncio.start_server(echo, HOST, target):
            passing = asyncio.create_task(relay(listen, target))
            reader, writer = await connected(listen)
            writer.write(b"hello")
            answer = await asyncio.wait_for(reader.read(), timeout=60)
            writer.close()
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
            return answer

    async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(100):
            try:
                return await asyncio.open_connection(HOST, port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
        raise AssertionError("the relay does not listen")

    assert asyncio.run(talk()) == b"HELLO"


def test_the_configuration_trains(tmp_path: Path) -> None:
    assert has_gl()
    write_demonstrations(tmp_path / "demonstrations", episodes=1, noise=0.3)
    small = {
        "run_dir": tmp_path / "run",
        "replay.sources.demonstrations.dataset": tmp_path / "demonstrations",
        "env.rate_hz": "null",
        "agent.params.batch_size": 8,
        "replay.samples_per_insert": 8,
        "trainer": "{max_opts: 3, warmup_period: 12, eval_interval: 0, record_interval: 1}",
    }
    config = load_config(CONFIG, [f"{key}={value}" for key, value in small.items()])
    config.check()
    assert train_in_turns(config).opt_steps == 3


def test_each_robot_of_the_configuration_can_be_built() -> None:
    config = load_config(CONFIG)
    for robot in (0, 1):
        env = build_env(config.part_of(robot).env)
        assert env.action_space.shape == (3,)
        env.close()


def test_the_table_says_how_many_seconds_success_took_and_that_it_never_came() -> None:
    came = {"seconds_to_success": 40.4, "success_at_the_end": 1.0, "steps": 2000, "opt_steps": 1800}
    late = {**came, "seconds_to_success": 57.6, "success_at_the_end": 0.9}
    never = {**came, "seconds_to_success": None}
    assert row_of("all", [late, came, never]).split(" | ")[1:3] == ["58 (40 to never)", "1.00 (0.90 to 1.00)"]
    assert row_of("neither", [never]).split(" | ")[1] == "never"
