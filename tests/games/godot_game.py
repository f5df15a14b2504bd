"""Plays the game's side of Godot RL Agents' protocol: ``godot_game.py --port=PORT [--env_seed=…] [WORDS]``.

Two agents count their steps. Their episodes have 3 and 5 steps; their rewards are their actions. WORDS change it:
silent: it does not connect; late: it connects after a second; mute: it answers nothing; stubborn: it does not end when
it is told; dies: it ends in the tenth step; alone: its single agent has one leaf and one action; unlike: its two agents
have different actions; odd: it answers with a wrong type.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

WORDS = {word.lstrip("-").partition("=")[0]: word.partition("=")[2] for word in sys.argv[1:]}
LENGTHS = (3, 5)
OBS = {"obs": {"size": [2], "space": "box"}, "eye_2d": {"size": [2, 2, 3], "space": "box"}}
ACTIONS = {"turn": {"size": 3, "action_type": "discrete"}, "push": {"size": 2, "action_type": "continuous"}}


def read(connection: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        part = connection.recv(n - len(data))
        if not part:
            sys.exit(0)
        data += part
    return data


class Game:
    def __init__(self) -> None:
        self.n_agents = 1 if "alone" in WORDS else 2
        self.counts = [0] * self.n_agents
        self.steps = 0

    def look(self) -> list[dict[str, Any]]:
        found = [{"obs": [count, lane], "eye_2d": bytes([count] * 12).hex()} for lane, count in enumerate(self.counts)]
        return [{"obs": each["obs"]} for each in found] if "alone" in WORDS else found

    def info(self) -> dict[str, Any]:
        obs, actions = ({"obs": OBS["obs"]}, {"turn": ACTIONS["turn"]}) if "alone" in WORDS else (OBS, ACTIONS)
        all_actions = [actions] * self.n_agents
        if "unlike" in WORDS:
            all_actions[1] = {"turn": {"size": 4, "action_type": "discrete"}}
        return {"observation_space": [obs] * self.n_agents, "action_space": all_actions, "n_agents": self.n_agents}

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        kind = message["type"]
        if kind == "env_info":
            return {"type": kind, **self.info()}
        if kind == "reset":
            self.counts = [0] * self.n_agents
            return {"type": "reset", "obs": self.look()}
        if kind != "action":
            return None
        self.steps += 1
        if "dies" in WORDS and self.steps == 10:
            sys.exit(3)
        self.counts = [count + 1 for count in self.counts]
        done = [count == length for count, length in zip(self.counts, LENGTHS, strict=False)]
        self.counts = [0 if is_over else count for is_over, count in zip(done, self.counts, strict=True)]
        rewards = [action["turn"] for action in message["action"]]
        info = [{"is_success": True, "push": action.get("push", [0])[-1]} for action in message["action"]]
        kind = "odd" if "odd" in WORDS else "step"
        return {"type": kind, "obs": self.look(), "reward": rewards, "done": done, "info": info}


def main() -> None:
    sys.stdout.write("Games write to standard output.\n")
    time.sleep(60 if "silent" in WORDS else 1 if "late" in WORDS else 0)
    game = Game()
    with socket.create_connection(("127.0.0.1", int(WORDS["port"]))) as connection:
        while True:
            message = json.loads(read(connection, int.from_bytes(read(connection, 4), "little")))
            if message["type"] == "close":
                time.sleep(60 if "stubborn" in WORDS else 0)
                return
            answer = game.answer(message) if "mute" not in WORDS else None
            if answer is not None:
                data = json.dumps(answer).encode()
                connection.sendall(len(data).to_bytes(4, "little") + data)


main()
