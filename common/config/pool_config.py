"""The pool of a run's earlier models, against which its actors play."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, PositiveInt

from common.settings import Settings

POOL: Final = "pool"
"""The player (``common.envs.players``) whose games earlier models of the run play, and their directory in the run's."""
MAX_POOL: Final = 64


class PoolConfig(Settings):
    """The earlier models that play on the seats of ``pool`` (``env.params.players``); unused without such seats."""

    GONE: ClassVar = {"power": 1.0, "window": 3}
    INSTEAD: ClassVar = {"window": "write the number of newest models as pool.size, and pool.draw: uniform"}

    every: PositiveInt = Field(
        10, description="Every how many published models (trainer.sync_interval) one joins the pool, from the first on."
    )
    size: Annotated[int, Field(ge=1, le=MAX_POOL)] = Field(
        10, description="The number of models in the pool; a new one replaces the oldest."
    )
    draw: Literal["uniform", "losses"] = Field(
        "uniform",
        description="How an actor draws the opponent of a game. uniform: each model is as likely; losses: in "
        "proportion to (1 - x)², where x is the share of recent games that the learner won against the model "
        "(prioritised fictitious self-play).",
    )


def has_pool(params: Mapping[str, Any]) -> bool:
    """Whether the parameters of an environment of PettingZoo have earlier models of the run play."""

    def names_pool(value: Any) -> bool:
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        return value == POOL or any(map(names_pool, inner))

    return names_pool(params.get("players"))
