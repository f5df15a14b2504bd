"""Atari 2600 games, preprocessed as in deep Q-learning (Mnih et al. 2015, Machado et al. arXiv:1709.06009)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, TransformReward

from common.errors import PluginError
from common.lanes.building import Env


def make(
    id: str,
    *,
    train: bool = True,
    terminal_on_life_loss: bool = False,
    repeat_action_probability: float = 0.0,
    side: int = 84,
    **params: Any,
) -> Env:
    """Make a game; ``env: {target: common.envs.atari:make, params: {id: ALE/Pong-v5}, frame_stack: 4}`` names it.

    The environment gives single frames, uint8 ``[side, side]``, of which ``env.frame_stack`` puts the last four into
    one observation of the agent. A step takes 4 frames of the emulator; the frame of the step is the pixel-wise maximum
    of the last two, in grey. An episode begins with 1 to 30 frames without action, and is truncated after 108,000
    frames, half an hour of play.

    For evaluation, write ``eval_params: {train: false}``: scores are then the game's own, and episodes are whole games.

    Args:
        id: the game, of version 5, such as ``ALE/Pong-v5``.
        train: replace each reward by its sign; the returns that actors report are then sums of signs.
        terminal_on_life_loss: in training, end the episode when a life is lost; the next one begins a new game.
        repeat_action_probability: the probability at each frame that the last action is repeated (sticky actions).
        side: pixels of a frame's height and width; with 42 a network of convolutions takes a fifth of the time.
        params: further arguments of ``gymnasium.make``, for example ``difficulty`` or ``full_action_space``.

    Raises:
        PluginError: the emulator or OpenCV is not installed.
        gymnasium.error.Error: there is no such game.
    """
    _register_games()
    game = gymnasium.make(id, frameskip=1, repeat_action_probability=repeat_action_probability, **params)
    env: Env = AtariPreprocessing(game, screen_size=side, terminal_on_life_loss=train and terminal_on_life_loss)
    if train:
        env = TransformReward(env, lambda reward: float(np.sign(float(reward))))
    return env


def make_vector(
    id: str,
    *,
    num_envs: int,
    train: bool = True,
    terminal_on_life_loss: bool = False,
    repeat_action_probability: float = 0.0,
    side: int = 84,
    num_threads: int = 1,
    **params: Any,
) -> Any:
    """Make the emulator's own vector environment, whose copies of a game are stepped in C++.

        env: {target: common.envs.atari:make_vector, params: {id: ALE/Pong-v5, num_envs: 8}, frame_stack: 4}

    Games, frames and rewards are as ``make`` gives them, except that a frame is uint8 ``[1, side, side]``.

    Args:
        id: the game, of version 5, such as ``ALE/Pong-v5``.
        num_envs: the number of lanes.
        train: as in ``make``.
        terminal_on_life_loss: as in ``make``.
        repeat_action_probability: as in ``make``.
        side: as in ``make``.
        num_threads: threads of the emulator, in which the copies of the game are stepped.
        params: further arguments of ``ale_py.vector_env.AtariVectorEnv``.

    Raises:
        PluginError: the emulator or OpenCV is not installed.
        gymnasium.error.Error: there is no such game.
    """
    _register_games()
    return gymnasium.make_vec(
        id,
        num_envs=num_envs,
        vectorization_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
        num_threads=num_threads,
        stack_num=1,
        img_height=side,
        img_width=side,
        reward_clipping=train,
        episodic_life=train and terminal_on_life_loss,
        repeat_action_probability=repeat_action_probability,
        **{"use_fire_reset": False, **params},
    )


def _register_games() -> None:
    """Make gymnasium know the games, and let the emulator log errors only."""
    try:
        import ale_py  # noqa: PLC0415 - installed by an extra
        import cv2  # noqa: F401, PLC0415
    except ImportError as error:
        raise PluginError(f"Atari games need more: pip install 'crossborder[atari]' ({error})") from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
