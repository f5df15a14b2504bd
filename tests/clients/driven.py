"""A client of any language as a process, which a test calls; and the services that it calls."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from common.config.actor_config import ActorConfig
from common.parts import build_parts
from common.plugins.part_config import EnvConfig, PluginConfig
from learner.storage.checkpoint import Checkpoints
from tests.conftest import PATIENCE, ROOT, Command, wait_for

CLIENTS: Final = ROOT / "clients"
BUILD: Final = ROOT / "build" / "clients" / os.environ.get("PYTEST_XDIST_WORKER", "main")
"""Where programs are compiled: processes of pytest that run side by side have folders of their own."""
DRIVERS: Final = Path(__file__).parent / "drivers"
CPP_PACKAGES: Final = ("nlohmann/json.hpp", "openssl/ssl.h")
COUNTING: Final = PluginConfig(target="tests.clients.counting:CountingAgent")


class CallError(Exception):
    """The client has raised an error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class Driven:
    """One client; each call waits for its result.

    Args:
        command: runs its driver.
        log: the file of its other output.
        ca: the file of an authority that it trusts; Node and Mono know it from their environment, Python from ``open``.
    """

    def __init__(self, command: Sequence[str], log: Path, ca: str = "") -> None:
        self._log = log.open("wb")
        env, pipe = {**os.environ, "NODE_EXTRA_CA_CERTS": ca}, subprocess.PIPE
        if ca and command[0] == "mono":
            env["XDG_CONFIG_HOME"] = str(make_mono_store(Path(ca)))
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, text=True, env=env)

    def call(self, name: str, **given: Any) -> Any:
        self.begin(name, **given)
        return self.result()

    def get(self, attribute: str) -> Any:
        """An attribute of its session."""
        return self.call("get", attribute=attribute)

    def begin(self, name: str, **given: Any) -> None:
        """Call, and do not wait."""
        assert self._process.stdin is not None
        print(json.dumps({"call": name, **_as_json(given)}), file=self._process.stdin, flush=True)

    def result(self) -> Any:
        """The result of the call.

        Raises:
            CallError: it has failed.
        """
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], PATIENCE)[0], "the client has not answered"
        line = self._process.stdout.readline()
        assert line, f"the client has ended: {Path(self._log.name).read_text()}"
        answer = json.loads(line)
        if "error" in answer:
            raise CallError(answer["error"], answer["message"])
        return answer["result"]

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


def make_mono_store(ca: Path) -> Path:
    """Beside an authority's file, a folder in which Mono finds it, as ``cert-sync`` would make it."""
    words = ["openssl", "x509", "-subject_hash", "-noout", "-in", str(ca)]
    name = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    store = ca.parent / "config" / ".mono" / "new-certs" / "Trust"
    store.mkdir(parents=True, exist_ok=True)
    shutil.copy(ca, store / f"{name}.0")
    return ca.parent / "config"


def _as_json(value: Any) -> Any:
    """The value, with ``{"bytes": TEXT}`` in the place of bytes, and ``{"float": TEXT}`` of NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": json.dumps(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: _as_json(part) for key, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, list) else value


def oldest_python() -> list[str]:
    """The oldest Python of this host that the client supports."""
    installed = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.8.*/bin/python"))
    return [str(installed[0])] if installed else [shutil.which("python3.8") or "python3"]


def find_node() -> list[str] | None:
    """Node with a WebSocket, which it has by itself since version 22."""
    node = shutil.which("node")
    if node is None:
        return None
    has_one = subprocess.run([node, "-p", "typeof WebSocket"], capture_output=True, text=True, check=True).stdout
    return [node] if "function" in has_one else [node, "--experimental-websocket"]


def compile_csharp(*sources: Path) -> list[str] | None:
    """Programs of the client in C# and these sources, for Mono."""
    if not all(map(shutil.which, ("mcs", "mono"))):
        return None
    program = BUILD / f"{sources[0].stem}.exe"
    program.parent.mkdir(parents=True, exist_ok=True)
    words = ["-nologo", "-warnaserror", "-langversion:7.2", "-r:System.Net.Http.dll", f"-out:{program}"]
    files = [CLIENTS / "csharp" / "Crossborder.cs", *sources]
    subprocess.run(["mcs", *words, *map(str, files)], check=True)  # noqa: S607
    return ["mono", str(program)]


def has_headers(names: Sequence[str]) -> bool:
    """Whether the C++ compiler finds these headers."""
    includes = "".join(f"#include <{name}>\n" for name in names)
    looks = ["c++", "-E", "-x", "c++", "-"]
    return not subprocess.run(looks, input=includes, text=True, capture_output=True, check=False).returncode


def compile_cpp(source: Path) -> list[str] | None:
    """A program of the client in C++; None without a compiler or the packages."""
    if shutil.which("c++") is None or not has_headers(CPP_PACKAGES):
        return None
    program = BUILD / f"cpp-{source.stem}"
    program.parent.mkdir(parents=True, exist_ok=True)
    sources = (source, CLIENTS / "cpp" / "crossborder.hpp", Path(__file__))
    if program.exists() and program.stat().st_mtime > max(file.stat().st_mtime for file in sources):
        return [str(program)]
    strict = ["-std=c++17", "-pedantic-errors", "-fno-rtti", "-I", str(CLIENTS / "cpp")]
    subprocess.run(["c++", *strict, str(source), "-o", str(program), "-lssl", "-lcrypto"], check=True)  # noqa: S607
    return [str(program)]


def run_godot(*words: str) -> list[str] | None:
    """The project of the client in GDScript, without a window, by Godot 3. Its output comes line by line."""
    if shutil.which("godot3-server") is None:
        return None
    return ["stdbuf", "-oL", "godot3-server", "--path", str(CLIENTS / "godot"), *words]


def build_cpp_example(name: str) -> list[str] | None:
    """An example of the client in C++, built as its page says."""
    if not all(map(shutil.which, ("cmake", "make", "c++"))) or not has_headers(CPP_PACKAGES):
        return None
    build = BUILD / "cpp"
    quickly = "-DCMAKE_BUILD_TYPE=Debug"
    for words in (["-S", str(CLIENTS / "cpp"), "-B", str(build), quickly], ["--build", str(build), "--target", name]):
        subprocess.run(["cmake", *words], check=True, stdout=subprocess.DEVNULL)  # noqa: S607
    return [str(build / name)]


@cache
def command_of(language: str) -> list[str] | None:
    """The command that runs the driver of a client; None if its tools are missing."""
    if language == "csharp":
        return compile_csharp(DRIVERS / "Driver.cs")
    if language == "cpp":
        return compile_cpp(DRIVERS / "driver.cpp")
    if language == "godot":
        program = run_godot("--script", str(DRIVERS / "driver.gd"))
        return program and [sys.executable, str(DRIVERS / "dialling.py"), *program]
    node = find_node()
    found: dict[str, list[str] | None] = {
        "python": [*oldest_python(), str(DRIVERS / "driver.py"), str(CLIENTS / "python")],
        "javascript": node and [*node, str(DRIVERS / "driver.mjs"), str(CLIENTS / "javascript")],
    }
    return found[language]


LANGUAGES: Final = ("python", "javascript", "csharp", "cpp", "godot")


def save_policy(run: Path, spaces: Mapping[str, Any], agent: PluginConfig = COUNTING) -> None:
    """Save a policy for a game with these spaces."""
    config = ActorConfig(env=EnvConfig(target="my_game:Game", spaces=dict(spaces)), agent=agent)
    Checkpoints(run, config, "run").save("best", build_parts(config, seed=3).agent, opt_steps=12)


def websocket_of(command: Command) -> str:
    """Where an acting service listens for WebSocket."""
    output = command.output
    wait_for(lambda: "WebSocket on" in output() or command.process.poll() is not None, "it listens")
    found = re.search(r"WebSocket on (\S+)", output())
    assert found, output()
    return found[1]


class Served:
    """An acting service of a saved policy."""

    def __init__(self, start: Callable[..., Command], run: Path | str, *words: str, port: int = 0) -> None:
        allowed = ["--allow", "tests", "--allow", "my_game:Game"]
        doors = ["--listen", "127.0.0.1:0", "--websocket", f"127.0.0.1:{port}"]
        self.command = start("policy-server", "--run", str(run), *allowed, *doors, *words)
        self.address = websocket_of(self.command)
