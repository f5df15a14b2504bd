"""MinAtar: five Atari games on 10 x 10 cells, in which agents learn in minutes (Young and Tian, arXiv:1903.03176)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from common.data import Array
from common.errors import PluginError
from common.lanes.building import Env

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def make(id: str, *, render_mode: str | None = None, **params: Any) -> Env:
    """Make a game; ``env: {target: common.envs.minatar:make, params: {id: breakout}}`` names it.

    Observations are bool ``[C, 10, 10]``, a channel for each kind of object. The actions are those that have an effect
    in the game. With a probability of 0.1 the last action is repeated, and most games become harder with time. An
    episode has no limit of steps.

    Args:
        id: the game, one of ``GAMES``.
        render_mode: of ``gymnasium.Env``, for videos.
        params: further arguments of ``minatar.Environment``: ``sticky_action_prob``, ``difficulty_ramping``.

    Raises:
        PluginError: MinAtar is not installed, or there is no such game.
    """
    try:
        from minatar.gym import BaseEnv  # noqa: PLC0415 - installed by an extra
    except ImportError as error:
        raise PluginError(f"MinAtar is not installed: pip install 'crossborder[minatar]' ({error})") from error
    if id not in GAMES:
        raise PluginError(f"MinAtar has no game '{id}': expected one of {', '.join(GAMES)}")
    return ChannelsFirst(BaseEnv(id, render_mode=render_mode, use_minimal_action_set=True, **params))


class ChannelsFirst(gymnasium.Wrapper[Array, Any, Array, Any]):
    """A game of MinAtar whose channels come first, and whose episodes depend on nothing but their seed.

    Seaquest has as many channels as rows, so an agent could not tell by the shape which axis has the channels.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        assert env.observation_space.shape is not None
        height, width, channels = env.observation_space.shape
        self.observation_space = gymnasium.spaces.Box(0, 1, (channels, height, width), np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self.unwrapped.game.last_action = 0  # type: ignore[attr-defined] # Else MinAtar may repeat an old episode's.
        obs, info = self.env.reset(seed=seed, options=options)
        return np.moveaxis(obs, -1, 0), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(int(action))
        return np.moveaxis(obs, -1, 0), float(reward), bool(terminated), truncated, info
