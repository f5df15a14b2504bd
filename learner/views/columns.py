"""Which columns of rows a batch has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from common.data import FINAL, FIRST, LANE, PRIORITY, Schema
from common.errors import ConfigError

LEFT_OUT: Final = frozenset({FIRST.name, FINAL.name, LANE.name, PRIORITY.name})
"""Columns that say where a row belongs, and nothing about its step."""


@dataclass(frozen=True)
class StepColumns:
    """The names of a schema's columns: the leaves of observations and actions, and the extras of a step."""

    obs: tuple[str, ...]
    action: tuple[str, ...]
    extras: tuple[str, ...]
    """All other columns except ``reward``, ``terminated``, ``truncated`` and ``LEFT_OUT``; ``version`` is the last."""

    @property
    def state(self) -> tuple[str, ...]:
        """Those of the extras that hold an agent's recurrent state."""
        return tuple(name for name in self.extras if name == "state" or name.startswith("state/"))

    @property
    def step(self) -> tuple[str, ...]:
        """What a step has beside its observation and the recurrent state: ``version`` is the last of them."""
        found = (*self.action, "reward", "terminated", "truncated", *self.extras)
        return tuple(name for name in found if name not in self.state)

    @classmethod
    def of(cls, schema: Schema) -> StepColumns:
        """The columns of a schema of rows.

        Raises:
            ConfigError: the schema is of self-contained items, or of rows without an observation, a reward or an end.
        """
        obs, action = (tuple(c.name for c in schema.named(prefix)) for prefix in ("obs", "action"))
        missing = {"reward", "terminated", "truncated"} - schema.by_name.keys()
        if not schema.is_rows or not obs or missing:
            names = [column.name for column in schema.columns]
            raise ConfigError(
                f"replay.view: expected rows with obs, reward, terminated and truncated, found the columns {names}; "
                "self-contained items need the view SelfContained"
            )
        known = {*obs, *action, "reward", "terminated", "truncated", *LEFT_OUT}
        return cls(obs, action, tuple(c.name for c in schema.columns if c.name not in known))


def next_name(name: str) -> str:
    """The column of what comes one step later: ``next_obs/camera`` for ``obs/camera``."""
    return f"next_{name}"
