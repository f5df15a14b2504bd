"""What each client promises: the same cases for all languages, through ``policy-server`` as a real process."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.episode_files import read_episode
from common.plugins.part_config import PluginConfig
from crossborder.certificates.authority import make_files
from tests.clients.counting import PLAIN, STRUCTURED
from tests.clients.driven import LANGUAGES, CallError, Driven, Served, command_of, save_policy
from tests.clients.line import Line
from tests.conftest import PATIENCE, Command, free_port, kill, wait_for
from tests.crossborder.serving.services import Service

Start = Callable[..., Command]
Connect = Callable[..., Driven]
TOKEN = "a" * 20
HERE = [0.5, -0.5]
UNTYPED = ["python", "javascript", "godot"]
"""The languages in which an argument may have any type."""
pytestmark = pytest.mark.slow


@pytest.fixture(params=LANGUAGES)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Starts the client of a language, and opens its session."""
    command = command_of(request.param)
    if command is None:
        pytest.skip(f"the tools of {request.param} are missing")
    clients = list[Driven]()

    def _connect(address: str, **given: Any) -> Driven:
        clients.append(Driven(command, tmp_path / f"client-{len(clients)}.log", given.get("ca", "")))
        at = address if "://" in address else f"ws://{address}"
        clients[-1].call("open", **{"address": at, "timeout": 20, "patience": 20, **given})
        return clients[-1]

    yield _connect
    for client in clients:
        client.end()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_policy(tmp_path / "run", PLAIN)
    return tmp_path / "run"


@pytest.fixture
def served(start: Start, run: Path, tmp_path: Path) -> Served:
    return Served(start, run, "--record", str(tmp_path / "episodes"))


@pytest.fixture
def line(served: Served) -> Iterator[Line]:
    with Line.to(served.address) as made:
        yield made


def episodes(served: Served, tmp_path: Path) -> list[dict[str, list[Any]]]:
    """What the service has taken for whole episodes, by the order of their ends."""
    served.command.signal(signal.SIGTERM)
    served.command.wait()
    files = sorted((tmp_path / "episodes").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    return [{name: array.tolist() for name, array in read_episode(file).items()} for file in files]


def test_an_episode_arrives_with_its_rewards_and_its_last_observation(
    connect: Connect, served: Served, tmp_path: Path
) -> None:
    client = connect(served.address)
    assert client.call("act", observation=[0, 1]) == 1
    assert client.call("act", observation=[0, 2], reward=0.25) == 2
    assert client.call("act", observation=[0, 3], reward=-0.5) == 3
    client.call("act", observation=[0, 4], reward=1, terminated=True)
    assert client.call("act", observation=[0, 5]) == 1
    client.call("act", observation=[0, 6], reward=2, truncated=True)
    assert [client.get(name) for name in ("seed", "version", "losses")] == [0, 12, 0]
    client.call("close")
    first, second = episodes(served, tmp_path)
    assert first["obs"] == [[0, 1], [0, 2], [0, 3], [0, 4]]
    assert first["action"] == [1, 2, 3]
    assert first["reward"] == [0.25, -0.5, 1]
    assert (first["terminated"][-1], first["truncated"][-1]) == (True, False)
    assert (second["obs"], second["reward"]) == ([[0, 5], [0, 6]], [2])
    assert (second["terminated"], second["truncated"]) == ([False], [True])


def test_a_client_whose_run_has_ended_is_told_and_does_not_come_back(connect: Connect) -> None:
    with Service(websocket="127.0.0.1:0") as service:
        client = connect(str(service.places.websocket), patience=2 * PATIENCE)
        assert client.call("act", observation=HERE) == 1
        service.is_run_over = True
    with pytest.raises(CallError) as error:
        client.call("act", observation=HERE)
    assert error.value.name == "run_over"


def test_a_closed_session_frees_its_lanes(connect: Connect, start: Start, run: Path) -> None:
    served = Served(start, run, "--set", "max_lanes=2")
    client = connect(served.address, lanes=2)
    client.call("close")
    assert connect(served.address, lanes=2).get("seed") == 2


def test_lanes_act_together_and_apart(connect: Connect, served: Served, tmp_path: Path) -> None:
    client = connect(served.address, lanes=3)
    assert client.call("act_lanes", observations=[[0, 1], [1, 1], [2, 1]]) == [1, 1, 1]
    assert client.call("act", observation=[2, 2], reward=0.5, lane=2) == 2
    given = {"rewards": [1, 2], "terminated": [True, False], "lanes": [2, 0]}
    assert client.call("act_lanes", observations=[[2, 3], [0, 2]], **given)[1] == 2
    assert client.call("act_lanes", observations=[[0, 3], [1, 2], [2, 4]]) == [3, 2, 1]
    (ended,) = episodes(served, tmp_path)
    assert (ended["obs"], ended["reward"]) == ([[2, 1], [2, 2], [2, 3]], [0.5, 1])


def test_an_episode_that_broke_off_is_not_taken_for_whole(connect: Connect, served: Served, tmp_path: Path) -> None:
    client = connect(served.address)
    client.call("act", observation=[0, 1])
    assert client.call("act", observation=[0, 2], restarted=True) == 1
    client.call("act", observation=[0, 3], terminated=True)
    (whole,) = episodes(served, tmp_path)
    assert whole["obs"] == [[0, 2], [0, 3]]


def test_actions_of_a_person_are_told(connect: Connect, served: Served, tmp_path: Path) -> None:
    client = connect(served.address, lanes=2)
    client.call("act_lanes", observations=[HERE, HERE])
    client.call("act_lanes", observations=[HERE, HERE], executed=[None, 77])
    client.call("act", observation=HERE, lane=1, executed=78)
    client.call("act_lanes", observations=[HERE, HERE], truncated=[True, True])
    found = {len(each["action"]): each for each in episodes(served, tmp_path)}
    assert (found[2]["action"], found[2]["intervened"][:2]) == ([1, 2], [False, False])
    assert (found[3]["action"], found[3]["intervened"][:3]) == ([77, 78, 3], [True, True, False])


def test_structured_observations_and_actions(connect: Connect, start: Start, tmp_path: Path) -> None:
    save_policy(tmp_path / "rich", STRUCTURED)
    served = Served(start, tmp_path / "rich", "--record", str(tmp_path / "episodes"))
    client = connect(served.address, lanes=2)
    picture = [[[3, 6, 9], [3, 6, 9]], [[3, 6, 9], [3, 6, 9]]]
    seen = {"camera": picture, "arm/joints": [0.5, 0, -0.5]}
    assert client.call("act", observation=seen) == {"count": 1, "aim": [1, 6]}
    as_bytes = [{**seen, "camera": bytes([value] * 12)} for value in (7, 200)]
    both = client.call("act_lanes", observations=as_bytes)
    assert both == [{"count": 2, "aim": [2, 7]}, {"count": 1, "aim": [1, 200]}]
    person = {"count": 5, "aim": [0.5, 0.25]}
    client.call("act", observation=seen, truncated=True, executed=person)
    with pytest.raises(CallError) as error:
        client.call("act", observation={**seen, "camera": bytes(11)})
    assert error.value.name == "bad_message"
    (episode,) = episodes(served, tmp_path)
    assert [np.mean(each) for each in episode["obs/camera"]] == [6, 7, 6]
    assert episode["obs/arm/joints"] == [[0.5, 0, -0.5]] * 3
    assert (episode["action/count"], episode["action/aim"]) == ([1, 5], [[1, 6], [0.5, 0.25]])


def test_a_client_names_one_of_several_policies_with_its_own_spaces(
    connect: Connect, start: Start, run: Path, tmp_path: Path
) -> None:
    save_policy(tmp_path / "rich", STRUCTURED)
    served = Served(start, f"plain={run}", "--run", f"rich={tmp_path / 'rich'}")
    seen = {"camera": bytes([9] * 12), "arm/joints": [0, 0, 0]}
    assert connect(served.address, policy="rich").call("act", observation=seen) == {"count": 1, "aim": [1, 9]}
    assert connect(served.address).call("act", observation=HERE) == 1
    with pytest.raises(CallError, match="richer") as error:
        connect(served.address, policy="richer")
    assert error.value.name == "bad_message"


def test_large_pictures_travel(connect: Connect, start: Start, tmp_path: Path) -> None:
    large = {"type": "Box", "low": 0, "high": 255, "shape": [200, 300, 3], "dtype": "uint8"}
    spaces = {"observation": {"type": "Dict", "spaces": {"camera": large}}, "action": STRUCTURED["action"]}
    save_policy(tmp_path / "rich", spaces)
    served = Served(start, tmp_path / "rich", "--set", "max_message_bytes=1000000")
    client = connect(served.address, lanes=6)
    assert client.call("act", observation={"camera": bytes([9]) * 180_000}) == {"count": 1, "aim": [1, 9]}
    with pytest.raises(CallError) as error:
        client.call("act_lanes", observations=[{"camera": bytes(180_000)}] * 6)
    assert error.value.name == "message_too_big"
    assert client.call("act", observation={"camera": bytes(180_000)}) == {"count": 2, "aim": [2, 0]}


def test_masks_are_obeyed(connect: Connect, start: Start, tmp_path: Path) -> None:
    parts = {"observation": {"type": "Box", "low": -1, "high": 1, "shape": [2]}}
    parts["action_mask"] = {"type": "Box", "low": 0, "high": 1, "shape": [5], "dtype": "int8"}
    spaces = {"observation": {"type": "Dict", "spaces": parts}, "action": {"type": "Discrete", "n": 5}}
    dqn = PluginConfig(target="common.agents.dqn:DQN", params={"units": [8]})
    save_policy(tmp_path / "masked", spaces, dqn)
    client = connect(Served(start, tmp_path / "masked", "--explore").address)
    for only in (*range(5), *range(5)):
        mask = [int(action == only) for action in range(5)]
        assert client.call("act", observation={"observation": HERE, "action_mask": mask}) == only
    none = {"observation": HERE, "action_mask": [0] * 5}
    with pytest.raises(CallError, match="expected at least one allowed action"):
        client.call("act", observation=none)
    client.call("act", observation=none, terminated=True)


REFUSED: dict[str, dict[str, Any]] = {
    "expected float32 [k, 2], with a row for each of k lanes, found the shape [1, 3]": {"observation": [0, 0, 0]},
    "lanes: expected numbers below 2": {"observation": HERE, "lane": 2},
    "observation": {"observation": {"eye": 0}},
}
"""Messages by the reason of their refusal."""


def test_a_refused_message_has_a_reason_and_changes_nothing(connect: Connect, served: Served) -> None:
    client = connect(served.address, lanes=2)
    assert client.call("act", observation=HERE) == 1
    for reason, given in REFUSED.items():
        with pytest.raises(CallError) as error:
            client.call("act", **given)
        assert error.value.name == "bad_message"
        assert reason in str(error.value)
    with pytest.raises(CallError, match="expected 2") as error:  # It is not even sent.
        client.call("act_lanes", observations=[HERE])
    assert error.value.name == "bad_argument"
    assert client.call("act", observation=HERE, reward=1) == 2
    assert client.get("losses") == 0


@pytest.mark.parametrize("connect", UNTYPED, indirect=True)
@pytest.mark.parametrize("name", ["terminated", "truncated", "restarted"])
def test_a_text_is_not_taken_for_a_truth(connect: Connect, served: Served, name: str) -> None:
    client = connect(served.address)
    assert client.call("act", observation=HERE) == 1
    with pytest.raises(CallError, match=r"expected True or False|expected `bool`"):
        client.call("act", observation=HERE, **{name: "no"})
    assert client.call("act", observation=HERE, terminated=False) == 2


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_what_is_no_finite_number_is_refused_with_the_part_that_has_it(
    connect: Connect, served: Served, value: float
) -> None:
    client = connect(served.address)
    assert client.call("act", observation=HERE) == 1
    parts: dict[str, dict[str, Any]] = {
        "observation": {"observation": [0, value]},
        "reward": {"observation": HERE, "reward": value},
    }
    for part, given in parts.items():
        with pytest.raises(CallError, match=f"{part}.*(finite|expected numbers|NaN)"):
            client.call("act", **given)
    assert client.call("act", observation=HERE, reward=1) == 2


def test_an_episode_goes_on_after_its_connection_broke(
    connect: Connect, served: Served, line: Line, tmp_path: Path
) -> None:
    client = connect(line.address)
    assert client.call("act", observation=[0, 1]) == 1
    line.cut()
    assert client.call("act", observation=[0, 2], reward=1) == 2
    assert line.n_connections == 2
    client.call("act", observation=[0, 3], reward=1, terminated=True)
    (episode,) = episodes(served, tmp_path)
    assert (episode["obs"], episode["reward"]) == ([[0, 1], [0, 2], [0, 3]], [1, 1])


def test_a_step_counts_once_whichever_message_was_lost(
    connect: Connect, served: Served, line: Line, tmp_path: Path
) -> None:
    client = connect(line.address, lanes=2)
    lost = ("request", "answer", "request", "answer")
    for count, line.breaks_at in enumerate(lost, start=1):
        given = {"observations": [[0, count], [1, count]], "rewards": [int(count > 1)] * 2}
        assert client.call("act_lanes", **given) == [count] * 2
    client.call("act", observation=[0, 5], reward=2, terminated=True)
    assert line.n_connections == 5
    (episode,) = episodes(served, tmp_path)
    assert (episode["obs"], episode["reward"]) == ([[0, 1], [0, 2], [0, 3], [0, 4], [0, 5]], [1, 1, 1, 2])


@pytest.mark.parametrize("pings", [False, True])
def test_a_slow_service_is_asked_again_and_the_step_counts_once(connect: Connect, line: Line, *, pings: bool) -> None:
    client = connect(line.address, timeout=1, patience=60)
    assert client.call("act", observation=HERE) == 1
    line.pings = pings
    line.flows.clear()
    client.begin("act", observation=HERE)
    wait_for(lambda: line.n_connections > 2, "the client connects again, twice")
    line.flows.set()
    assert client.result() == 2
    assert client.call("act", observation=HERE) == 3
    assert client.get("losses") == 0


def test_after_a_restart_of_the_service_the_rest_of_an_episode_is_an_episode(
    connect: Connect, start: Start, run: Path, tmp_path: Path
) -> None:
    port = free_port()
    before = Served(start, run, port=port)
    client = connect(before.address, lanes=3)
    client.call("act_lanes", observations=[[0, 1], [1, 1], [2, 1]])
    kill(before.command.process.pid)
    before.command.wait()
    after = Served(start, run, "--record", str(tmp_path / "episodes"), port=port)
    assert client.call("act", observation=[0, 2], reward=1) == 1
    assert client.get("losses") == 1
    client.call("act", observation=[1, 2], reward=1, terminated=True, lane=1)  # The service knows no episode that ends.
    assert client.call("act", observation=[1, 3], lane=1) == 1
    assert client.call("act", observation=[2, 2], reward=5, executed=9, lane=2) == 1
    assert client.call("act", observation=[0, 3], reward=2) == 2
    client.call("act_lanes", observations=[[0, 4], [1, 4], [2, 3]], rewards=[3, 4, 5], terminated=[True] * 3)
    found = {each["obs"][0][0]: each for each in episodes(after, tmp_path)}
    assert (found[0]["obs"], found[0]["reward"]) == ([[0, 2], [0, 3], [0, 4]], [2, 3])
    assert (found[1]["obs"], found[1]["reward"]) == ([[1, 3], [1, 4]], [4])
    assert (found[2]["obs"], found[2]["reward"]) == ([[2, 2], [2, 3]], [5])
    assert not any(found[2]["intervened"])


def test_after_an_orderly_end_of_the_service_another_session_begins(connect: Connect, start: Start, run: Path) -> None:
    port = free_port()
    before = Served(start, run, port=port)
    client = connect(before.address)
    client.call("act", observation=HERE)
    before.command.signal(signal.SIGTERM)
    before.command.wait()
    client.begin("act", observation=HERE, reward=1)
    Served(start, run, port=port)
    assert client.result() == 1
    assert client.get("losses") == 1


def test_a_client_waits_for_a_service_that_has_no_room_yet(connect: Connect, start: Start, run: Path) -> None:
    served = Served(start, run, "--set", "max_sessions=1")
    first = connect(served.address)
    for patience in (0.5, 2.0, 8.0):  # A busy host may need more than a short patience for its first answer.
        with pytest.raises(CallError) as error:
            connect(served.address, patience=patience)
        if "max_sessions" in str(error.value):
            break
    assert "max_sessions" in str(error.value)
    assert error.value.name == "over_limit"
    assert "--websocket" not in str(error.value), "the address is right"
    first.call("close")
    assert connect(served.address).call("act", observation=HERE) == 1


def test_a_service_out_of_reach_is_given_up_after_the_patience(connect: Connect) -> None:
    with pytest.raises(CallError) as error:
        connect(f"127.0.0.1:{free_port()}", patience=0.5)
    assert error.value.name == "out_of_reach"


def test_an_address_without_websocket_is_given_up_after_the_patience(connect: Connect, served: Served) -> None:
    (grpc,) = [line.split()[-1] for line in served.command.output().splitlines() if "acts for clients on" in line]
    with pytest.raises(CallError) as error:
        connect(grpc, patience=0.5)
    assert error.value.name == "out_of_reach"


def test_a_token_goes_over_tls_and_a_wrong_one_is_refused(
    connect: Connect, start: Start, run: Path, tmp_path: Path
) -> None:
    make_files(tmp_path, ["localhost"], 1, renew=False)
    (tmp_path / "clients.tokens").write_text(f"game {TOKEN}\n")
    (tmp_path / "clients.tokens").chmod(0o600)
    files = {"certificate": "server.pem", "key": "server.key", "tokens": "clients.tokens"}
    words = [word for name, file in files.items() for word in (f"--listen-{name}", str(tmp_path / file))]
    served = Served(start, run, *words)
    address, ca = f"wss://localhost:{served.address.rpartition(':')[2]}", str(tmp_path / "ca.pem")
    assert connect(address, ca=ca, token=TOKEN).call("act", observation=HERE) == 1
    for token in ("b" * 20, ""):
        with pytest.raises(CallError) as error:
            connect(address, ca=ca, token=token)
        assert error.value.name == "unauthenticated"
    with pytest.raises(CallError) as error:
        connect("ws://game.example:50061", token=TOKEN)
    assert error.value.name == "bad_argument"
    with pytest.raises(CallError) as error:
        connect(address, token=TOKEN, patience=0.5)  # Nobody vouches for the certificate.
    assert error.value.name == "out_of_reach"
