"""Connect Four: a player that sees one move ahead, a person, and a game against a saved policy in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pettingzoo

from crossborder import EnvSpec, load_policy

ROWS, COLUMNS = 6, 7
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


def one_ply(spec: EnvSpec, rng: np.random.Generator) -> Callable[[Any], int]:
    """A player that wins if it can, else prevents the other one from winning at once, else moves at random."""

    def choose(obs: Any) -> int:
        allowed = np.flatnonzero(obs["action_mask"])
        for side in (0, 1):  # Its own stones, and then those of the other one.
            for column in allowed:
                if wins(obs["observation"], side, int(column)):
                    return int(column)
        return int(rng.choice(allowed))

    return choose


def person(spec: EnvSpec, rng: np.random.Generator) -> Callable[[Any], int]:
    """A person in the terminal."""
    return ask


def wins(board: Any, side: int, column: int) -> bool:
    """Whether a stone in this column makes four in a row; the board is ``[6, 7, 2]``, row 0 at the top."""
    row = ROWS - 1 - int(board[:, column].sum())

    def run(down: int, right: int) -> int:
        length, y, x = 0, row + down, column + right
        while 0 <= y < ROWS and 0 <= x < COLUMNS and board[y, x, side]:
            length, y, x = length + 1, y + down, x + right
        return length

    return any(run(down, right) + run(-down, -right) >= 3 for down, right in DIRECTIONS)


def show(board: Any) -> str:
    """The board as the player sees it whose stones are in the first layer: X are that player's, O the other one's."""
    lines = ["".join(" X" if x else " O" if o else " ." for x, o in row) for row in board]
    return "\n".join([*lines, *["".join(f" {column}" for column in range(COLUMNS))], ""])


def ask(obs: Any) -> int:
    """The column that a person names."""
    sys.stdout.write(f"\n{show(obs['observation'])}You are X. Column: ")
    sys.stdout.flush()
    allowed = np.flatnonzero(obs["action_mask"]).tolist()
    while (text := sys.stdin.readline().strip()) not in map(str, allowed):
        if not text:
            raise SystemExit
        sys.stdout.write(f"One of {allowed}: ")
        sys.stdout.flush()
    return int(text)


def main(directory: str) -> None:
    """Play one game; the person begins."""
    policy, game = load_policy(directory), pettingzoo.make("aec", "classic/connect_four-v3")
    game.reset()
    for agent in game.agent_iter():
        obs, reward, is_over, *_ = game.last()
        if is_over:
            sys.stdout.write(f"\n{show(obs['observation'])}")
            sys.stdout.write({1: f"{agent} has won\n", 0: "a draw\n"}.get(int(reward), f"{agent} has lost\n"))
            break
        game.step(ask(obs) if agent == "player_0" else policy(obs))


if __name__ == "__main__":
    main(sys.argv[1])
