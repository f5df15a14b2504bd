"""The examples of the clients learn: a learner, an acting service and the game of each language, as processes."""

from __future__ import annotations

import re
import select
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest

from common.config.run_config import load_config
from common.interfaces import EnvSpec
from common.parts import build_parts
from crossborder import load_policy
from learner.loop.server import LearnerServer
from learner.replay.memory import ReplayMemory
from learner.storage.checkpoint import Checkpoints
from tests.clients.counting import PLAIN
from tests.clients.driven import (
    CLIENTS,
    LANGUAGES,
    Served,
    build_cpp_example,
    compile_csharp,
    find_node,
    oldest_python,
    run_godot,
    save_policy,
    websocket_of,
)
from tests.conftest import PATIENCE, ROOT, Command, free_port, kill, wait_for
from tests.crossborder.serving.services import Counting, Service
from tests.e2e.test_counting import train_in_thread
from tests.site.browser import PROGRAMS, Browser, open_browser

Start = Callable[..., Command]
GOOD = 45
"""Balls of a hundred; without learning it is about 20."""
IN_NODE = """
    const [folder, address] = process.argv.slice(1);
    const { Session } = await import(folder + "/crossborder.js");
    const { Catch, play } = await import(folder + "/catch.js");
    const tell = (n, caught) => n % 100 || console.log(`${caught} were caught`);
    await play(await Session.open(address), new Catch(), () => {}, tell).catch((error) => {
      if (error.code !== "run_over") throw error;
      console.log("The run has ended.");
    });
"""
NEEDS_BROWSER = pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {' and '.join(PROGRAMS)}")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerServer]:
    """Trains the game: the first client teaches it, and each of the others finds a policy that catches well."""
    free = (
        "server.listen=127.0.0.1:0",
        "metrics.listen=127.0.0.1:0",
        f"run_dir={tmp_path_factory.mktemp('catch') / 'run'}",
    )
    explores = "exploration.epsilons=[0.2]"  # So that a policy that catches well misses now and then.
    config = load_config(CLIENTS / "catch.yaml", (*free, explores, "trainer.max_opts=1000000"))
    with train_in_thread(config, local_actors=0) as (server, _):
        yield server


@pytest.fixture
def serve(learner: LearnerServer, start: Start) -> Callable[..., str]:
    """Starts an acting service; its address for WebSocket."""

    def _serve(*words: str) -> str:
        doors = ["--listen", "127.0.0.1:0", "--websocket", "127.0.0.1:0", *words]
        return f"ws://{websocket_of(start('policy-server', '--learner', learner.ingest.address, *doors))}"

    return _serve


def are_rewarded(memory: ReplayMemory, begin: int) -> bool:
    """Whether the balls from row ``begin`` on are stored with 1 or -1, and enough of the last hundred with 1."""
    slots = np.arange(begin, memory.committed) % memory.n_slots
    rewards = memory.columns["reward"][slots[memory.columns["terminated"][slots]]]
    return {*rewards.tolist()} == {1.0, -1.0} and int(np.count_nonzero(rewards[-100:] == 1.0)) >= GOOD


def find_game(language: str) -> list[str] | None:
    """The command that plays the game, all but the address; None if its tools are missing."""
    if language == "python":
        return [*oldest_python(), str(CLIENTS / "python" / "example.py")]
    if language == "csharp":
        return compile_csharp(CLIENTS / "csharp" / "Example.cs")
    if language == "cpp":
        return build_cpp_example("catch")
    if language == "godot":
        return run_godot()
    node = find_node()
    return node and [*node, "--input-type=module", "-e", IN_NODE, str(CLIENTS / "javascript")]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_game_learns_to_catch(
    learner: LearnerServer, serve: Callable[..., str], tmp_path: Path, language: str
) -> None:
    command, memory = find_game(language), learner.run.memory
    assert memory is not None
    begin = memory.committed
    if command is None:
        pytest.skip(f"the tools of {language} are missing")
    log = tmp_path / "game.log"
    with log.open("wb") as errors:
        game = subprocess.Popen([*command, serve()], stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert game.stdout is not None
        caught = 0
        while caught < GOOD:
            assert select.select([game.stdout], [], [], PATIENCE)[0], "the game stands still"
            line = game.stdout.readline()
            assert line, log.read_text()
            found = re.search(r"(\d+) were caught", line)
            caught = int(found[1]) if found else caught
        wait_for(lambda: are_rewarded(memory, begin), "each ball is stored with its reward")
    finally:
        game.kill()
        game.communicate()


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_game_ends_with_a_sentence_when_its_run_has_ended(language: str) -> None:
    command = find_game(language)
    if command is None:
        pytest.skip(f"the tools of {language} are missing")
    catch = Counting(EnvSpec(gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(1000)))
    with Service(catch, websocket="127.0.0.1:0") as service:
        words = [*command, f"ws://{service.places.websocket}"]
        game = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: catch.batches, "the game plays")
        service.is_run_over = True
        service.stop()
    told, complaints = game.communicate(timeout=PATIENCE)
    assert game.returncode == 0, complaints
    assert "run_over" not in complaints
    assert told.splitlines()[-1] == "The run has ended."


def test_a_robot_stops_while_its_service_is_away(start: Start, tmp_path: Path) -> None:
    command = build_cpp_example("robot_node")
    if command is None:
        pytest.skip("the tools of cpp are missing")
    spaces = load_config(CLIENTS / "catch.yaml").env.spaces
    assert isinstance(spaces, dict)
    save_policy(tmp_path / "run", {**spaces, "action": PLAIN["action"]})
    port = free_port()
    served = Served(start, tmp_path / "run", port=port)
    robot = subprocess.Popen([*command, f"ws://127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
    assert robot.stdout is not None

    def sees(word: str) -> None:
        """Wait until the robot is told this."""
        wait_for(lambda: word in robot.stdout.readline(), word)  # type: ignore[union-attr]

    try:
        sees("move")
        kill(served.command.process.pid)
        sees("stop")
        Served(start, tmp_path / "run", port=port)
        sees("move")
    finally:
        robot.kill()
        robot.communicate()


@contextmanager
def showing(page: str, serve: Callable[..., str], log: Path) -> Iterator[Browser]:
    """A browser that shows a page of the client; the page has a service that ``serve`` starts with more options.

    The console of the browser stays empty.
    """
    handler = partial(SimpleHTTPRequestHandler, directory=str(CLIENTS / "javascript"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as pages:
        threading.Thread(target=pages.serve_forever).start()
        origin = f"http://127.0.0.1:{pages.server_port}"
        address = serve("--set", f"origins=[{origin}]")
        try:
            with open_browser(log) as browser:
                browser.open(f"{origin}/{page}?{address}")
                yield browser
                assert not browser.complaints()
        finally:
            pages.shutdown()


def said(browser: Browser) -> str:
    return str(browser.run("return document.querySelector('#said').textContent"))


@pytest.mark.browser
@NEEDS_BROWSER
def test_the_page_learns_while_one_watches(serve: Callable[..., str], tmp_path: Path) -> None:
    with showing("index.html", serve, tmp_path / "browser.log") as browser:

        def caught() -> int:
            found = re.search(r"last 100, (\d+) were caught", said(browser))
            return int(found[1]) if found else 0

        wait_for(lambda: caught() >= GOOD, "it has learned")
        browser.screenshot(tmp_path / "game.png")


def play_at_random(browser: Browser, rng: np.random.Generator) -> list[int]:
    """Play a game of Connect Four on the page; returns the columns of all stones, from 0."""
    free = "return [...document.querySelectorAll('#board button')].flatMap((each, i) => (each.disabled ? [] : [i]))"
    is_over = "return !document.querySelector('#again').hidden"
    while True:
        wait_for(lambda: browser.run(free) or browser.run(is_over), "it is the person's turn, or the game is over")
        if browser.run(is_over):
            return [
                int(each) - 1 for each in browser.run("return document.querySelector('output').textContent").split()
            ]
        column = int(rng.choice(browser.run(free)))
        browser.run("document.querySelectorAll('#board button')[arguments[0]].click()", column)


def replay(columns: Sequence[int], policy: Callable[[Any], Any], place: int) -> str:
    """Play the same game in PettingZoo; returns how it ended.

    Args:
        columns: of all stones.
        policy: must choose the same columns for PettingZoo's observations.
        place: 0 if the policy has begun, 1 if the person has.
    """
    game = pettingzoo.make("aec", "classic/connect_four-v3")
    game.reset()
    for i, column in enumerate(columns):
        obs, _, is_over, *_ = game.last()
        assert not is_over
        assert obs["action_mask"][column]
        assert i % 2 != place or policy(obs) == column
        game.step(column)
    _, reward, is_over, *_ = game.last()
    assert is_over
    is_policys = (len(columns) - 1) % 2 == place
    return "A draw." if reward == 0 else "The policy has won." if is_policys else "You have won."


@pytest.mark.browser
@NEEDS_BROWSER
def test_a_person_plays_connect_four_by_the_rules_of_pettingzoo(start: Start, tmp_path: Path) -> None:
    """The policy is untrained: it chooses by all that it sees, so another observation would give other columns."""
    config = load_config(ROOT / "configs" / "ppo_connect_four.yaml").actor_part()
    Checkpoints(tmp_path / "run", config, "run").save("final", build_parts(config, seed=3).agent, opt_steps=12)
    policy = load_policy(tmp_path / "run" / "final")

    def serve(*words: str) -> str:
        return f"ws://{Served(start, tmp_path / 'run' / 'final', *words).address}"

    rng, ends = np.random.default_rng(0), set[str]()
    with showing("connect_four.html", serve, tmp_path / "browser.log") as browser:
        for game in range(8):
            columns = play_at_random(browser, rng)
            assert said(browser) == replay(columns, policy, place=1 - game % 2)
            ends.add(said(browser))
            browser.screenshot(tmp_path / "game.png")
            browser.run("document.querySelector('#again').click()")
    assert {"You have won.", "The policy has won."} <= ends
