"""How the client in Python plays in environments of gym and gymnasium, of any age."""

from __future__ import annotations

import re
import ssl
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from crossborder_client import Session, _WebSocket

from common.data import Array, Leaves
from common.interfaces import EnvSpec
from tests.crossborder.serving.services import SPEC, Counting, Service, with_certificate


class Modern:
    """Its episodes have three steps, and end by themselves and by a limit of time in turn."""

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.n = self.episodes = 0

    def reset(self, *, seed: int | None = None) -> Any:
        self.seeds.append(seed)
        self.n = 0
        self.episodes += 1
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.n += 1
        done = self.n == 3
        return self.look(), np.float32(0.5), done and self.episodes % 2 == 1, done and self.episodes % 2 == 0, {}

    def look(self) -> Any:
        return np.array([self.n, self.episodes], np.float32)


class Old(Modern):
    """The interface of gym before 0.26."""

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> Any:  # type: ignore[override]
        self.n = 0
        self.episodes += 1
        return self.look()

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return (
            observation,
            reward,
            terminated or truncated,
            {**info, "TimeLimit.truncated": True} if truncated else info,
        )


class Seen(Counting):
    """Keeps the ends that the service was told; actions are arrays."""

    def __init__(self) -> None:
        super().__init__(EnvSpec(SPEC.observation_space, gymnasium.spaces.Box(0, 1000, (2,), np.float32)))
        self.begins: list[bool] = []

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:
        self.begins.extend(begins.tolist())
        return np.stack([super().sample(obs, begins, lanes)] * 2, axis=1).astype(np.float32)  # type: ignore[list-item]


def test_environments_of_each_age_play_whole_episodes() -> None:
    with Service(websocket="127.0.0.1:0", seed=7) as service, Session(f"ws://{service.places.websocket}") as session:
        for env, seeds in ((Modern(), [7, None, None]), (Old(), [7])):
            assert [*islice(session.episodes(env), 3)] == [1.5] * 3
            assert env.seeds == seeds
            assert env.actions == [1, 2, 3] * 3, "the count begins anew with each episode"
    (first, *_) = service.player.seen
    assert first.dtype == np.float32


def test_actions_that_are_more_than_a_number_are_arrays_of_the_space() -> None:
    player = Seen()
    with Service(player, websocket="127.0.0.1:0") as service, Session(f"ws://{service.places.websocket}") as session:
        env = Modern()
        next(iter(session.episodes(env)))
    assert [(action.dtype, action.tolist()) for action in env.actions] == [(np.float32, [n, n]) for n in (1, 2, 3)]


def test_the_episodes_end_when_the_run_has_ended() -> None:
    with Service(websocket="127.0.0.1:0") as service, Session(f"ws://{service.places.websocket}") as session:
        episodes = session.episodes(Modern())
        assert next(episodes) == 1.5
        service.is_run_over = True
        service.stop()
        assert [*episodes] == []


def test_an_episode_that_was_left_is_restarted_by_the_next_one() -> None:
    player = Seen()
    with Service(player, websocket="127.0.0.1:0") as service, Session(f"ws://{service.places.websocket}") as session:
        session.act([0, 0])
        session.act([1, 0])
        next(iter(session.episodes(Modern())))
    assert player.begins == [True, False, True, False, False], "the last observation gets no action"


def test_a_session_whose_service_has_ended_closes_without_an_error() -> None:
    with Service(websocket="127.0.0.1:0") as service, Session(f"ws://{service.places.websocket}") as session:
        session.act([0, 0])
        service.stop()


def test_a_call_that_ctrl_c_ends_is_not_answered_in_the_place_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service may have taken its step. The next step must not have the number of that one, or nobody hears it."""
    player, read = Counting(), _WebSocket._read

    def read_and_interrupt(wire: _WebSocket, end: float) -> Any:
        read(wire, end)
        raise KeyboardInterrupt

    with Service(player, websocket="127.0.0.1:0") as service, Session(f"ws://{service.places.websocket}") as session:
        assert session.act([0, 0]) == 1
        monkeypatch.setattr(_WebSocket, "_read", read_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.act([0, 0.1], 1.0)
        monkeypatch.undo()
        assert session.act([0.5, 0.5], restarted=True) == 1
        assert session.act([0.5, 0.6], 1.0) == 2
    assert [seen.tolist() for seen in player.seen[-2:]] == np.array([[[0.5, 0.5]], [[0.5, 0.6]]], np.float32).tolist()
    assert session.losses == 1


@pytest.mark.parametrize("with_tls", [False, True])
def test_the_wrong_kind_of_address_is_told_what_to_look_at(tmp_path: Path, *, with_tls: bool) -> None:
    secured = with_certificate(tmp_path)
    with Service(websocket="127.0.0.1:0", **(secured if with_tls else {})) as service:
        address = f"{'ws' if with_tls else 'wss'}://{service.places.websocket}"
        trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        hint = r"is this the address of --websocket, wss:// if the service has a certificate\?"
        with pytest.raises(ConnectionError, match=f"{re.escape(address)}: .*; {hint}"):
            Session(address, tls=trust, patience=0.2)
