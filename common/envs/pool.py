"""Environments of EnvPool, which steps many copies at once in its own threads (Weng et al., arXiv:2206.10558)."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.errors import PluginError


def make(id: str, *, num_envs: int, seed: int | None = None, **params: Any) -> Any:
    """Make a vector environment of EnvPool.

        env: {target: common.envs.pool:make, params: {id: Pong-v5, num_envs: 64, stack_num: 1}, frame_stack: 4}

    An EnvPool takes its seed when it is made, not at a reset. So each actor passes its seed here, and actors differ.

    Args:
        id: EnvPool's name of the environment, such as ``HalfCheetah-v4``.
        num_envs: the number of lanes.
        seed: the lanes' seeds are drawn from it; None: they are drawn from random numbers of the system.
        params: further arguments of ``envpool.make_gymnasium``, for example ``num_threads``.

    Raises:
        PluginError: EnvPool is not installed, or knows no such environment.
    """
    try:
        import envpool  # noqa: PLC0415 - installed by an extra
    except ImportError as error:
        raise PluginError(f"EnvPool is not installed: pip install 'crossborder[envpool]' ({error})") from error
    drawn = int(np.random.SeedSequence(seed).generate_state(1)[0] >> 2)
    try:
        return envpool.make_gymnasium(id, num_envs=num_envs, seed=drawn, **params)
    except (AssertionError, KeyError, ValueError) as error:
        raise PluginError(f"EnvPool cannot make '{id}' with {params}: {error}") from error
