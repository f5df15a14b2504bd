"""The commands on the pages run as they stand there, but for addresses, and with small budgets.

A story is a transcript of terminals. Its lines are commands of pages, and others that prepare them. Before a line may
stand

- ``&``: the command goes on in a terminal of its own;
- ``$``: it is a command of the shell;
- ``^C``: the command that goes on and begins with these words gets a Ctrl-C, and must end in order.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from common.config.nested import overlay
from tests.conftest import PATIENCE, ROOT, Command, free_port, wait_for
from tests.test_docs import PAGES, commands_in_blocks

Settings = dict[str, Any]
Story = dict[str, Any]

STORIES: Final[dict[str, Story]] = yaml.load(Path(__file__).with_name("stories.yaml").read_text(), yaml.CSafeLoader)
ELSEWHERE: Final[Mapping[str, str]] = {
    "crossborder-benchmark classic": "tests/crossborder/sweeps/test_crossborder_benchmark.py",
    "crossborder-launch hosts.yaml": "tests/clusters",
    "learner-server --config examples/own_parts.yaml --local-actors 2": "tests/e2e/test_own_parts.py",
    "policy-export --run runs/cartpole-20250101-120000-1a2b --output policy.onnx": "tests/crossborder/policies",
}
"""Which tests run the commands that are in no story; the tutorial's own test runs those of the tutorial."""

READY: Final = {
    "learner-server": "listening on",
    "actor-worker": "joined ",
    "actor-relay": "listens on",
    "policy-server": "acts for clients on",
}
"""The words in a command's log that say that it has begun its work; each of several actors logs them."""
MANY_ACTORS: Final = "--num-actors 4"
FEWER_ACTORS: Final = 2
IDLE_ROBOT: Final = """
from crossborder.people.device import Command


def connect(address):
    return Idle()


def reward_of(seen):
    return 0.0


class Idle:
    def move_home(self): pass
    def send(self, action): pass
    def brake(self): pass

    def look(self):
        picture = np.random.randint(0, 255, (3, 24, 24), np.uint8)
        return {"front": picture, "wrist": picture, "joints": np.zeros(7, np.float32)}


class Person:
    def __init__(self, env): pass
    def begin(self, obs, info): self.steps = 0
    def close(self): pass

    def read(self, obs, info):
        self.steps += 1
        return Command(action=np.zeros(7, np.float32), label="success" if self.steps > 4 else None)
"""
"""What a user adds to the page's ``Arm``: a robot that does nothing, and a person who moves it."""


def blocks(page: str, language: str) -> list[str]:
    """The page's blocks of code in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def write_yaml(path: Path, text: str, *changes: Settings) -> None:
    """A file with the values of ``text``, overlaid by the changes in turn."""
    values = yaml.safe_load(text)
    for each in changes:
        values = overlay(values, each)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))


def write_files(place: Path, changes: Settings, port: int) -> None:
    """The files that the pages' commands name: those of the repository and of the pages, with small budgets."""
    ports = {"server": {"listen": f"127.0.0.1:{port}"}, "metrics": {"listen": "127.0.0.1:0"}}
    shipped = ("acrobot", "cartpole", "pendulum", "pendulum_offline", "ppo_pettingzoo", "mappo_pettingzoo")
    for name in (*shipped, "ppo_connect_four"):
        config = Path("configs", f"{name}.yaml")
        write_yaml(place / config, (ROOT / config).read_text(), changes, ports)
    write_yaml(place / "clients" / "catch.yaml", (ROOT / "clients" / "catch.yaml").read_text(), changes, ports)
    for copied in ("FILE", "run.yaml"):
        shutil.copy(place / "configs" / "cartpole.yaml", place / copied)
    sweep = (ROOT / "examples" / "sweeps" / "cartpole.yaml").read_text()
    for name in ("examples/sweeps/cartpole.yaml", "sweep.yaml"):
        write_yaml(place / name, sweep, {"fixed": {"trainer.max_opts": 20}, "seeds": [0], "trials": 2})
    (suite,), (peers,) = blocks("benchmarks.md", "yaml"), blocks("benchmarks.md", "json")
    write_yaml(place / "suite.yaml", suite, {"seeds": [0]})
    (place / "peers.jsonl").write_text(peers)
    (online,) = (block for block in blocks("demonstrations.md", "yaml") if block.startswith("# online.yaml"))
    write_yaml(place / "online.yaml", online, changes, ports)
    shutil.copy(ROOT / "deploy" / "ssh" / "hosts.yaml", place)
    write_robot(place, ports)


def write_robot(place: Path, ports: Settings) -> None:
    """The robot of its page, with small pictures and without hardware, and the files of the people who move it."""
    arm = next(block for block in blocks("robots.md", "python") if "class Arm" in block)
    (place / "my_robot.py").write_text(arm.replace("128, 128", "24, 24") + IDLE_ROBOT)
    config = next(block for block in blocks("robots.md", "yaml") if "my_robot:Arm" in block)
    write_yaml(place / "arm.yaml", config.replace("128, 128", "24, 24"), ports)
    env = next(block for block in blocks("people.md", "yaml") if "success_ends" in block)
    person = env.replace("target: Keyboard", "target: my_robot:Person").replace("200", "8")
    (place / "label.yaml").write_text(person)
    (place / "my_robot.yaml").write_text(person.replace("success_ends: false", "success_ends: true"))


class Terminals:
    """Runs the lines of a story in a directory."""

    def __init__(self, start: Callable[..., Command], place: Path) -> None:
        self._start, self._place = start, place
        self._going_on: list[tuple[str, Command]] = []
        self.port, self._relay_port, self._second_port = free_port(), free_port(), free_port()
        self._service_port = free_port()

    def play(self, lines: str) -> None:
        """Run all lines. A command must end with 0, and after a Ctrl-C with 130."""
        for line in filter(None, map(str.strip, lines.splitlines())):
            if line.startswith("^C "):
                self._interrupt(line[3:])
            elif line.startswith("$ "):
                subprocess.run(["/bin/bash", "-c", line[2:]], cwd=self._place, check=True, timeout=PATIENCE)
            elif line.startswith("& "):
                self._open(line[2:])
            else:
                assert self._type(line).wait() == 0, line
        for line, command in self._going_on:
            assert command.wait() == 0, line

    def _open(self, line: str) -> None:
        """Type a command, and wait until it has begun its work."""
        command, processes = self._type(line), FEWER_ACTORS if MANY_ACTORS in line else 1
        sign = READY[line.split(maxsplit=1)[0]]
        wait_for(lambda: command.output().count(sign) >= processes or command.process.poll() is not None, line)
        self._going_on.append((line, command))

    def _interrupt(self, words: str) -> None:
        each = next(each for each in reversed(self._going_on) if each[0].startswith(words))
        self._going_on.remove(each)
        each[1].signal(signal.SIGINT)
        assert each[1].wait() == 130, each[0]

    def _type(self, line: str) -> Command:
        name, *words = shlex.split(self._translate(line))
        expanded = [each for word in words for each in self._expand(word)]
        return self._start(name, *expanded, cwd=self._place)

    def _translate(self, line: str) -> str:
        """The line with this test's addresses, with directories of its own, and with few actors and steps."""
        listens = self._relay_port if line.startswith("actor-relay") else self.port
        line = line.replace(MANY_ACTORS, f"--num-actors {FEWER_ACTORS}").replace("--steps 400", "--steps 40")
        line = line.replace("s3://bucket", f"file://{self._place}/bucket")
        line = line.replace("relay-host:50051", f"localhost:{self._relay_port}").replace("gpu-host", "localhost")
        line = line.replace("0.0.0.0:50051", f"0.0.0.0:{listens}")
        line = line.replace("50051", str(self.port)).replace("50052", str(self._second_port))
        if line.startswith("policy-server") and " --listen " not in line:
            line += " --listen 127.0.0.1:50060"  # The default; two tests may run at the same time.
        line = line.replace("50060", str(self._service_port)).replace(":50061", ":0")
        return re.sub(r" /(data|shared)/", r" \1/", line)

    def _expand(self, word: str) -> list[str]:
        """The words that a shell makes of a word; the pages put patterns with ``=`` between quotation marks."""
        if "*" not in word or "=" in word:
            return [word]
        return sorted(str(path.relative_to(self._place)) for path in self._place.glob(word))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_the_commands_of_a_story_end_well(start: Callable[..., Command], tmp_path: Path, story: Story) -> None:
    terminals = Terminals(start, tmp_path)
    write_files(tmp_path, story["changes"], terminals.port)
    terminals.play(story["lines"])


def test_each_command_on_a_page_is_run_by_a_test() -> None:
    typed = {line.removeprefix("& ") for story in STORIES.values() for line in story["lines"].splitlines()}
    tutorial = {command for command in commands_in_blocks() if command in PAGES["tutorial.md"]}
    assert set(commands_in_blocks()) - typed - tutorial == set(ELSEWHERE)
    assert [place for place in ELSEWHERE.values() if not (ROOT / place).exists()] == []
