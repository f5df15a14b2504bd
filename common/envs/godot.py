"""Games of Godot RL Agents (Beeching et al., arXiv:2112.03636), each of whose agents is a lane.

A game with the plugin of Godot RL Agents connects to its trainer by TCP: here, to a port of this host. Each message is
JSON after its size in 4 bytes, little-endian. The trainer asks, and the game answers:

    handshake                              no answer
    env_info                               n_agents, and of each agent observation_space and action_space
    reset                                  obs
    action: a mapping for each agent       obs, reward, done, info
    close                                  no answer: the game ends
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from common.data import Array
from common.errors import AddressError, ConfigError, PluginError
from common.lanes.interface_faults import InterfaceError
from common.process.clocks import Deadline
from common.system import LOOK_SECONDS

Spaces = dict[str, gymnasium.Space[Any]]
CLOSED: Final = "the game has closed its connection"
PORT: Final = 11008
"""The port to which a game connects that was not told another one, as when it is played in the editor."""
MAX_BYTES: Final = 1 << 28
"""Of a message from a game. A larger size comes from a program that is no such game."""
END_SECONDS: Final = 4.0
"""The time that a game has to end by itself, less than environments have to close."""


def make(
    path: str | None = None,
    *,
    arguments: Sequence[str] = ("--headless", "--disable-render-loop"),
    port: int | None = None,
    seed: int = 0,
    seconds: float = 60.0,
) -> GodotEnv:
    """Start a game, or wait for one, and make a vector environment of its agents.

        env: {target: godot, params: {path: games/BallChase.x86_64, arguments: [--headless, --speedup=8]}}

    Args:
        path: the exported game, or an engine whose ``arguments`` name a project; None: wait for a game that somebody
            starts, for example in the editor.
        arguments: of the game. The plugin knows ``--speedup=N`` and ``--action_repeat=N``.
        port: on which to wait for the game's connection; None: a free one, or 11008 without ``path``.
        seed: of the game's random numbers, if it has a ``path``.
        seconds: the longest wait for the game's connection, and for each of its answers.

    Raises:
        PluginError: the game cannot be started, ends at once, does not connect in time, or breaks the protocol.
        AddressError: the port is taken.
        ConfigError: its agents have different spaces, or spaces of an unknown kind.
    """
    command = None if path is None else [path, *arguments, f"--env_seed={seed}"]
    game = _Game(seconds)
    try:
        game.begin(command, PORT if port is None and path is None else port or 0)
        return GodotEnv(game)
    except BaseException:
        game.close()
        raise


class GodotEnv(VectorEnv[Any, Any, Any]):
    """The agents of a game as lanes, which share one policy.

    A leaf of observations whose name contains ``2d`` is a picture, uint8; other leaves are float32. With a single leaf,
    the space is that leaf's; the same is true of actions. The game itself begins an agent's next episode in the step
    that ends the one before. It does not say whether an end was a limit of time: each end counts as terminated. The
    observation that comes with an end counts as the last one of its episode. In some games it is the next one's first.
    ``make`` makes it, and names the errors.
    """

    def __init__(self, game: _Game) -> None:
        self._game = game
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        game.send("handshake", major_version="0", minor_version="7")  # A game with another one warns.
        info = game.ask("env_info")
        with _reading(info):
            self.num_envs = int(info["n_agents"])
            self._seen = _read_spaces(info["observation_space"], "observation")
            self._done = _read_spaces(info["action_space"], "action")
        self.single_observation_space, self.single_action_space = _alone(self._seen), _alone(self._done)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of every agent, with no other seed than that of ``make``; raises as ``step`` does."""
        found = self._game.ask("reset")
        with _reading(found):
            return self._read_obs(found["obs"]), {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Have every agent act.

        Raises:
            InterfaceError: the game does not keep to the protocol.
            OSError: the game has ended, or does not answer in time.
        """
        by_name = []
        for action in iterate(self.action_space, actions):
            parts = action if len(self._done) > 1 else dict.fromkeys(self._done, action)
            by_name.append({name: np.asarray(parts[name]).tolist() for name in self._done})
        found = self._game.ask("action", answer="step", action=by_name)
        infos, final = dict[str, Any](), dict[str, Any]()
        with _reading(found):
            obs = self._read_obs(found["obs"])
            rewards = np.array(found["reward"], np.float64).reshape(self.num_envs)
            done = np.array(found["done"], bool).reshape(self.num_envs)
            for lane, info in enumerate(found.get("info", [])):
                self._add_info(final if done[lane] else infos, info, lane)
        if done.any():
            infos |= {"final_obs": obs, "final_info": final}
        return obs, rewards, done, np.zeros(self.num_envs, bool), infos

    def close_extras(self, **_: Any) -> None:
        self._game.close()

    def _read_obs(self, found: Sequence[Mapping[str, Any]]) -> Any:
        """The observations of all agents, an element of the batched space."""
        leaves = {}
        for name, space in self._seen.items():
            values = [agent[name] for agent in found]
            if space.dtype == np.uint8:  # Two hexadecimal digits for each value.
                values = [np.frombuffer(bytes.fromhex(value), np.uint8) for value in values]
            leaves[name] = np.array(values, space.dtype).reshape(self.num_envs, *(space.shape or ()))
        return leaves if len(leaves) > 1 else leaves.popitem()[1]


def _read_spaces(found: Any, kind: str) -> Spaces:
    """The spaces of an agent's leaves by name, from those of all agents; older plugins send those of one agent."""
    first, *others = [found] if isinstance(found, Mapping) else found
    if unlike := [other for other in others if other != first]:
        why = f"since all agents of the game share a policy, found {first} and {unlike[0]}"
        raise ConfigError(f"expected one {kind} space, {why}")
    return {name: _read_space(name, leaf) for name, leaf in first.items()}


def _read_space(name: str, leaf: Mapping[str, Any]) -> gymnasium.Space[Any]:
    match leaf.get("space", leaf.get("action_type")):
        case "discrete":
            return Discrete(int(leaf["size"]))
        case "continuous":
            return Box(-1.0, 1.0, (int(leaf["size"]),))
        case "box":
            shape = tuple(map(int, leaf["size"]))
            if "2d" in name:
                return Box(0, 255, shape, np.uint8)
            return Box(leaf.get("low", -np.inf), leaf.get("high", np.inf), shape)
        case kind:
            raise ConfigError(f"{name}: expected a space that is box, discrete or continuous, found {kind!r}")


def _alone(spaces: Spaces) -> gymnasium.Space[Any]:
    return gymnasium.spaces.Dict(spaces) if len(spaces) > 1 else next(iter(spaces.values()))


@contextlib.contextmanager
def _reading(message: Any) -> Iterator[None]:
    """A context in which a message of the game is read; what does not fit becomes an ``InterfaceError``."""
    try:
        yield
    except (AttributeError, KeyError, OverflowError, StopIteration, TypeError, ValueError) as error:
        raise InterfaceError(f"a game of Godot RL Agents: {error!r} in its message {message!r:.300}") from error


class _Game:
    """A game's process, if it is started here, and its connection; no wait is longer than ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: Any = None  # A socket, once the game has connected.

    def begin(self, command: Sequence[str] | None, port: int) -> None:
        """Start the game, if there is a command, and wait for its connection. See ``make``."""
        try:
            listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            why = f"cannot wait for a game on port {port}: {error.strerror}; name another port"
            raise AddressError(f"env.params.port: {why}") from error
        with listener:
            port = listener.getsockname()[1]
            if command is not None:
                try:  # Standard output is for the events of this process.
                    self._process = subprocess.Popen([*command, f"--port={port}"], stdin=subprocess.DEVNULL, stdout=2)
                except OSError as error:
                    raise PluginError(f"env.params.path: cannot start {command[0]}: {error.strerror}") from error
            deadline = Deadline(self._seconds)
            listener.settimeout(LOOK_SECONDS)
            while not deadline.passed():
                with contextlib.suppress(TimeoutError):
                    self._socket = listener.accept()[0]
                    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return
                if self._process and (code := self._process.poll()) is not None:
                    raise PluginError(f"env.params.path: the game has ended with code {code} before it connected")
        why = "has its scene a Sync node, with TRAINING as control mode?"
        raise PluginError(f"no game of Godot RL Agents has connected to port {port} within {self._seconds:g} s: {why}")

    def send(self, kind: str, **fields: Any) -> None:
        data = json.dumps({"type": kind, **fields}).encode()
        self._socket.settimeout(self._seconds)
        try:
            self._socket.sendall(len(data).to_bytes(4, "little") + data)
        except ConnectionError as error:
            raise ConnectionError(CLOSED) from error

    def ask(self, kind: str, *, answer: str = "", **fields: Any) -> Any:
        """Send a message, and return the answer, which is of the same kind, or of the kind ``answer``."""
        self.send(kind, **fields)
        deadline = Deadline(self._seconds)
        size = int.from_bytes(self._receive(4, deadline), "little")
        if size > MAX_BYTES:
            raise InterfaceError(f"expected a message of Godot RL Agents, found one of {size} bytes")
        data = self._receive(size, deadline)
        with _reading(data):
            found = json.loads(data)
            if found["type"] != (answer or kind):
                raise ValueError(f"expected the answer to {kind}")
        return found

    def _receive(self, size: int, deadline: Deadline) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(max(deadline.remaining(), 0.001))
            try:
                part = self._socket.recv(size - len(data))
            except TimeoutError as error:
                raise TimeoutError(f"the game has not answered within {self._seconds:g} s") from error
            except ConnectionError as error:
                raise ConnectionError(CLOSED) from error
            if not part:
                raise ConnectionError(CLOSED)
            data += part
        return bytes(data)

    def close(self) -> None:
        """Tell the game to end, and kill its process if it does not end in time."""
        self._seconds = END_SECONDS if self._socket else 0.0
        if self._socket:
            with self._socket, contextlib.suppress(OSError):  # It has ended already.
                self.send("close")
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._seconds)
            self._process.kill()
            self._process.wait(END_SECONDS)
