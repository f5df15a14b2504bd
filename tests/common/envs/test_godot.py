from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from common.envs import godot
from common.envs.godot import GodotEnv, make
from common.errors import AddressError, ConfigError, PluginError
from crossborder.testing import check_env
from tests.actor.acting import Acts, act, make_parts
from tests.conftest import ROOT, free_port

GAME = ROOT / "tests" / "games" / "godot_game.py"
Play = Callable[..., GodotEnv]
IN_GODOT = ("--path", str(GAME.with_name("godot")), "--script", "res://game.gd")


@pytest.fixture
def play(request: pytest.FixtureRequest) -> Play:
    """Starts a game, which ends with the test."""

    def _play(*words: str, **params: Any) -> GodotEnv:
        env = make(sys.executable, arguments=[str(GAME), *words], **params)
        request.addfinalizer(env.close)
        return env

    return _play


def process_of(env: GodotEnv) -> subprocess.Popen[bytes]:
    process = env._game._process
    assert process is not None
    return process


@pytest.mark.parametrize("words", [(), ("--alone",)], ids=str)
def test_a_game_passes_the_check(play: Play, words: tuple[str, ...]) -> None:
    check_env(play(*words))


def test_each_agent_is_a_lane_with_the_spaces_of_the_game(play: Play) -> None:
    env = play()
    assert env.num_envs == 2
    picture = Box(0, 255, (2, 2, 3), np.uint8)
    assert env.single_observation_space == Dict(obs=Box(-np.inf, np.inf, (2,)), eye_2d=picture)
    assert env.single_action_space == Dict(turn=Discrete(3), push=Box(-1, 1, (2,)))
    one = play("--alone")
    assert (one.single_observation_space, one.single_action_space) == (Box(-np.inf, np.inf, (2,)), Discrete(3))


def test_rows_of_each_lane_have_its_episodes(play: Play) -> None:
    turns = {"turn": np.array([1, 2]), "push": np.array([[0.5, -0.5], [0.0, 0.25]], np.float32)}
    parts = make_parts(play(), lambda spec: Acts(spec, lambda _: turns))
    sink, _ = act(parts, 11)
    for lane, (length, reward) in enumerate([(3, 1), (5, 2)]):
        rows = sink.lane(lane)
        steps = ~rows["final"]
        assert rows["obs/obs"][steps][:, 0].tolist() == [n % length for n in range(11)]
        assert (rows["obs/obs"][:, 1] == lane).all()
        assert (rows["obs/eye_2d"][steps] == rows["obs/obs"][steps][:, :1, None, None]).all()
        assert rows["terminated"][steps].tolist() == [n % length == length - 1 for n in range(11)]
        assert not rows["truncated"].any()
        assert (rows["reward"][steps] == reward).all()
        assert (rows["action/push"][steps] == turns["push"][lane]).all()


def test_infos_of_the_game_are_those_of_its_lanes(play: Play) -> None:
    env = play()
    env.reset()
    actions = {"turn": np.array([1, 2]), "push": np.array([[0.5, -0.5], [0.0, 0.25]], np.float32)}
    infos = [env.step(actions)[4] for _ in range(3)]
    assert infos[0]["push"].tolist() == [-0.5, 0.25]
    assert infos[2]["final_info"]["push"][0] == -0.5
    assert infos[2]["_push"].tolist() == [False, True]


def test_a_game_that_somebody_starts_is_waited_for() -> None:
    port = free_port()
    with subprocess.Popen([sys.executable, str(GAME), f"--port={port}", "--late"]):
        env = make(port=port)
        assert env.reset()[0]["obs"].tolist() == [[0, 0], [0, 1]]
        env.close()


def test_a_game_that_does_not_connect_is_given_up(play: Play) -> None:
    port = free_port()
    with pytest.raises(PluginError, match=rf"no game .* to port {port} within 0\.3 s: has its scene a Sync node"):
        make(port=port, seconds=0.3)
    with pytest.raises(PluginError, match=r"no game .* within 0\.3 s"):
        play("--silent", seconds=0.3)


def test_a_game_that_cannot_start_or_ends_at_once_is_an_error_that_names_it() -> None:
    with pytest.raises(PluginError, match=r"env\.params\.path: cannot start /no/game"):
        make("/no/game")
    with pytest.raises(PluginError, match="the game has ended with code 1 before it connected"):
        make(shutil.which("false"))


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"cannot wait for a game on port {port}: Address already in use"):
            make(port=port)


def test_agents_with_different_spaces_are_refused(play: Play) -> None:
    with pytest.raises(ConfigError, match="expected one action space, since all agents of the game share a policy"):
        play("--unlike")


def test_a_game_that_falls_silent_is_given_up(play: Play) -> None:
    with pytest.raises(TimeoutError, match="has not answered within 5 s"):
        play("--mute", seconds=5.0)  # In this time it must have been started too.


def test_an_answer_of_another_kind_is_an_error_that_shows_it(play: Play) -> None:
    env = play("--odd")
    env.reset()
    with pytest.raises(PluginError, match=r"expected the answer to action.*odd"):
        env.step(env.action_space.sample())


def test_another_program_on_the_port_is_no_game() -> None:
    port = free_port()
    begin = f"import socket; s = socket.create_connection(('127.0.0.1', {port}))"
    talk = f"{begin}; s.sendall(b'GET / HTTP/1.1'); s.makefile('rb').read()"
    refused = pytest.raises(PluginError, match="expected a message of Godot RL Agents, found one of 542393671 bytes")
    with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(1); {talk}"]), refused:
        make(port=port)


def test_another_program_that_hangs_up_is_an_error_of_its_connection() -> None:
    port = free_port()
    talk = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); s.recv(1)"
    refused = pytest.raises(ConnectionError, match="the game has closed its connection")
    with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(1); {talk}"]), refused:
        make(port=port)


def test_a_game_that_dies_is_an_error_of_its_connection(play: Play) -> None:
    env = play("--dies")
    env.reset()
    for _ in range(9):
        env.step(env.action_space.sample())
    with pytest.raises(ConnectionError, match="the game has closed its connection"):
        env.step(env.action_space.sample())


def test_a_game_that_does_not_end_is_killed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(godot, "END_SECONDS", 0.5)
    stubborn, polite = play("--stubborn"), play()
    for env in (stubborn, polite):
        env.close()
    assert process_of(stubborn).returncode < 0
    assert process_of(polite).returncode == 0


@pytest.mark.skipif(shutil.which("godot3-server") is None, reason="needs godot3-server")
def test_a_game_in_godot_itself_plays_episodes() -> None:
    env = make("godot3-server", arguments=IN_GODOT)
    try:
        check_env(env)
        obs, _ = env.reset()
        assert obs.shape == (4, 2)
    finally:
        env.close()
