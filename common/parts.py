"""Builds the parts that a configuration names, in the same way for learner, actor and saved policy.

A part may change rows before they leave the actor: a map of rows, or a step processor for each lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.config.actor_config import ActorConfig
from common.data import INTERVENED, PRIORITY, Column, Items, Schema
from common.errors import PluginError
from common.interfaces import Agent, EnvSpec, RowMap, StepProcessor
from common.lanes.building import build_lanes, picks_of, read_spec, stacked_spec
from common.lanes.lanes import Lanes
from common.lanes.plain_lanes import PlainLanes
from common.lanes.safe_stop import check_safe_stop
from common.plugins.part_config import AgentArguments, EnvConfig, PluginConfig, require_role
from common.plugins.part_loading import naming_fault
from common.spaces import columns_of


@dataclass(frozen=True)
class Parts:
    """An agent, the lanes in which it acts, and the columns of the rows that it records."""

    agent: Agent
    schema: Schema
    """The columns that are sent and stored."""
    spec: EnvSpec
    """The spaces of one lane as the agent sees them, with ``env.frame_stack``."""
    frames: EnvSpec
    """The spaces of one lane as they are recorded: single frames."""
    rows: Schema
    """The columns of rows as the sampler records them, before the map of rows and the priorities."""
    frame_stack: int = 1
    lanes: Lanes | None = None
    """None if the agent does not act in this process, as on a learner."""
    row_map: RowMap | None = None
    processors: tuple[StepProcessor, ...] = field(default=())
    """One for each lane if items are sent instead of rows, otherwise empty."""
    has_priorities: bool = False
    """Whether the actor computes the first priority of each row."""

    def close(self) -> None:
        """Close all environments."""
        if self.lanes is not None:
            self.lanes.close()


def build_parts(config: ActorConfig, *, seed: int, epsilon: float = 0.0, device: str = "cpu", n_envs: int = 0) -> Parts:
    """Build everything that the configuration names.

    Args:
        config: names the parts.
        seed: of the agent, and of environments that are built with a seed.
        epsilon: the agent's own epsilon; 0 if the agent does not explore.
        device: where the agent computes.
        n_envs: the number of plain environments to build; a vector environment decides its number of lanes itself.
            With 0 there are no lanes, and the spaces are those of ``env.spaces`` or of an environment that is closed at
            once.

    Raises:
        CrossborderError: a part cannot be built or does not fit the others.
    """
    with ExitStack() as stack:
        lanes = build_lanes(config.env, n_envs, seed) if n_envs else None
        if lanes is not None:
            stack.callback(lanes.close)
        frames = lanes.spec if lanes else read_spec(config.env)
        check_safe_stop(config.env, frames.action_space, lanes.envs[0] if isinstance(lanes, PlainLanes) else None)
        spec = stacked_spec(frames, config.env.frame_stack)
        # The agent needs the stacked spaces, and the schema needs the agent: it may record columns of its own.
        with naming_fault(f"agent {config.agent.target}"):
            agent = config.agent.build(**AgentArguments(spec=spec, seed=seed, epsilon=epsilon, device=device))
        if not isinstance(agent, Agent):
            raise PluginError(f"agent.target: expected a crossborder.Agent, found {type(agent).__name__}")
        row_map, processors = build_processors(config.step_processor, lanes.n if lanes else 1)
        rows = row_schema(frames, agent, config.env)
        schema = check_mapped(row_map, rows) if row_map else processors[0].schema(spec) if processors else rows
        if config.push.initial_priorities:
            if type(agent).td_error is Agent.td_error:
                raise PluginError(f"push.initial_priorities: {config.agent.target} has no td_error(items)")
            schema = schema.plus(PRIORITY)
        parts = Parts(
            agent,
            schema,
            spec,
            frames,
            rows,
            frame_stack=config.env.frame_stack,
            lanes=lanes,
            row_map=row_map,
            processors=processors,
            has_priorities=config.push.initial_priorities,
        )
        stack.pop_all()  # The lanes stay open.
    return parts


def row_schema(frames: EnvSpec, agent: Agent | None = None, config: EnvConfig | None = None) -> Schema:
    """The columns of the rows that a sampler records.

    Raises:
        ConfigError: a space cannot be recorded, or two columns have one name.
    """
    columns = [
        *columns_of("obs", frames.observation_space),
        *columns_of("action", frames.action_space),
        Column.of("reward", np.float32),
        Column.of("terminated", np.bool_),
        Column.of("truncated", np.bool_),
        *(_extra_columns(agent) if agent else ()),
    ]
    if config is not None:
        picks = picks_of(config)
        columns += [*picks.info.values(), *([INTERVENED] if picks.intervention else [])]
    return Schema.of_rows(columns)


def _extra_columns(agent: Agent) -> Sequence[Column]:
    found: Any = agent.extra_columns()
    if not isinstance(found, Sequence) or not all(isinstance(column, Column) for column in found):
        raise PluginError(f"agent.extra_columns: expected a list of crossborder.Column, found {found!r:.80}")
    return found


class SameColumns(RowMap):
    """Leaves rows unchanged. A map that changes values and adds no columns derives from it and overrides ``map``."""

    def schema(self, rows: Schema) -> Schema:
        return rows

    def map(self, rows: Items) -> Items:
        return rows


def build_processors(config: PluginConfig | None, n: int) -> tuple[RowMap | None, tuple[StepProcessor, ...]]:
    """Build the part that ``step_processor`` names.

    Args:
        config: names the part; None leaves rows unchanged.
        n: the number of lanes; each has a separate step processor.

    Returns:
        The map of rows, or None; and the step processors, which are empty if the part is no step processor.

    Raises:
        PluginError: the part is not a map of rows or a step processor.
    """
    if config is None:
        return None, ()
    with naming_fault(f"step_processor {config.target}"):
        made = config.build()
        if isinstance(made, RowMap):
            return made, ()
        require_role(made, "step processor", "step_processor.target")
        return None, (made, *(config.build() for _ in range(n - 1)))


def check_mapped(row_map: RowMap, rows: Schema) -> Schema:
    """Return the columns of the rows that ``row_map`` makes.

    Raises:
        PluginError: ``row_map.schema`` returned something else than the columns of rows.
    """
    found: Any = row_map.schema(rows)
    if not (isinstance(found, Schema) and found.is_rows):
        raise PluginError(
            f"step_processor.target: {type(row_map).__name__}.schema must return the columns of rows; build on "
            f"rows.plus(column), found {found}"
        )
    return found
