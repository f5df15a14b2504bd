"""A player that is an actor of a run: it acts with the learner's newest model, and records all steps as rows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import perf_counter
from typing import Protocol

import numpy as np

from actor.episode_recording import EpisodeRecording
from actor.sampling.recorder import NEXT, SEEN, RowRecorder, noted_columns
from actor.sampling.sampler import ItemSink, Outbox, SampleCheck
from actor.stat import CLIENT_FIGURES, MOST_OF_CLIENTS, ActorCounters
from common.data import FIRST, INTERVENED, VERSION, Array, Column, Items, Leaves, Model, ModelVersion, Schema
from common.interfaces import acting_for_lanes
from common.lanes.lanes import Round
from common.lanes.stacking import Stacker
from common.leaves import capacity_for, copy_leaves, pick_leaves, put_leaves
from common.parts import Parts
from common.spaces import columns_of, from_columns, to_columns
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError
from crossborder.serving.client_steps import ClientSteps


class RowSink(ItemSink, Protocol):
    """An ``ItemSink`` that knows which model acts; ``ReplayBufferProxy`` is one."""

    version: ModelVersion


class RecordingPlayer:
    """Acts for lanes as a ``Sampler`` acts in its own environments: the same calls of the agent give the same rows.

    A lane's step begins with its action and ends with the lane's next message. In between, the player keeps the
    beginning of the row. If the next message begins an episode, the step has no outcome, and gives no row.

    Args:
        parts: without lanes, and without step processors that make items.
        newer_than: gives the newest model if it is newer than a version, without a wait; called before each batch.
        sink: takes the rows.
        counters: counts steps and episodes, and the time of inference.
        recording: takes the rows too; None: they are not recorded.

    Raises:
        PluginError: the agent cannot act for some of its lanes.
    """

    def __init__(
        self,
        parts: Parts,
        newer_than: Callable[[ModelVersion], Model | None],
        sink: RowSink,
        counters: ActorCounters,
        recording: EpisodeRecording | None = None,
    ) -> None:
        self.spec, self.takes_executed = parts.frames, INTERVENED.name in parts.rows.by_name
        """The spaces of one lane, and whether the rows can tell that others than the agent acted."""
        self._agent, self._lane_agent = parts.agent, acting_for_lanes(parts.agent)
        self._newer_than, self._sink, self._counters = newer_than, sink, counters
        self._stacker = Stacker(parts.frames, 1, parts.frame_stack)
        seen = columns_of(SEEN, parts.spec.observation_space) if parts.has_priorities else ()
        self._records = RowRecorder(parts.rows, 0, noted_columns(parts.spec) if parts.has_priorities else ())
        self._outbox = Outbox(parts, self._records, recording)
        self._has_priorities = parts.has_priorities
        self._extras = [column.name for column in parts.agent.extra_columns()]
        self._begun = _Begun(parts.rows, parts.agent.extra_columns(), seen)
        self._check = SampleCheck()
        counters.tick()

    @property
    def opt_steps(self) -> int:
        """Opt steps of the model that acts now."""
        return self._sink.version.opt_steps

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:
        """See ``Player``."""
        began = perf_counter()
        model = self._newer_than(self._sink.version)
        if model is not None:
            self._agent.sync_model(model)
            self._sink.version = model.version
        if begins.any():
            self._lane_agent.begin(begins, lanes)
        seen = self._stacker.add(obs, begins, lanes)
        actions = self._check.sample(lambda seen: self._lane_agent.sample(seen, lanes), seen, began)
        self._records.require_actions(actions, len(lanes))
        extras = self._lane_agent.extras() if self._extras else {}
        begun = {**to_columns("obs", obs), **to_columns("action", actions), **extras, FIRST.name: begins}
        if self._has_priorities:
            begun |= to_columns(SEEN, seen)
        self._begun.put(lanes, begun, self.opt_steps)
        self._counters.inference_seconds += perf_counter() - began
        return actions

    def note(self, steps: ClientSteps, outcome: Round) -> None:
        """Take the outcome of the steps of some lanes, before actions for their next steps are chosen."""
        n_taken = len(steps.lanes) if outcome.taken is None else int(np.count_nonzero(outcome.taken))
        if not n_taken:
            return
        begun = self._begun.pick(steps.lanes)
        actions = from_columns("action", begun)
        if outcome.action is not None and outcome.intervened is not None:
            executed = copy_leaves(actions)
            put_leaves(executed, outcome.intervened, pick_leaves(outcome.action, outcome.intervened))
            outcome.action = executed
            self._counters.intervened_steps += int(np.count_nonzero(outcome.intervened))
        more = {name: begun[name] for name in (*self._extras, VERSION.name)}
        self._records.begin(from_columns("obs", begun), begun[FIRST.name], actions, more, steps.lanes)
        if self._has_priorities:
            self._records.note(SEEN, from_columns(SEEN, begun))
            self._records.note(NEXT, self._stacker.peek(steps.obs, steps.lanes))
        self._records.end(outcome)
        self._counters.env_steps += n_taken
        self._counters.add_episodes(outcome)

    def note_report(self, report: pb.ClientReport) -> None:
        """Take the figures of a client.

        Raises:
            BadMessageError: one of them is impossible.
        """
        if not 0 <= report.env_seconds < math.inf:
            raise BadMessageError(f"report.env_seconds: expected 0 or more, and finite, found {report.env_seconds}")
        for name in CLIENT_FIGURES:
            total = getattr(self._counters, name) + getattr(report, name)
            setattr(self._counters, name, min(total, MOST_OF_CLIENTS))
        if report.env_error:
            self._counters.note_env_error(report.env_error)

    async def hand_over(self) -> None:
        """Push the rows if it is time. While the learner holds its actors back, a thread waits, not the event loop."""
        if self._sink.takes(self._records.rows):
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Push the rows that were gathered; waits while the learner holds its actors back."""
        self._counters.tick()
        self._outbox.push(self._agent, self._sink)


class _Begun:
    """The beginning of each lane's present step, by column."""

    def __init__(self, rows: Schema, *further: Sequence[Column]) -> None:
        kept = [*rows.named("obs"), *rows.named("action"), FIRST, VERSION, *chain(*further)]
        self._columns: Items = {column.name: np.zeros((0, *column.shape), column.dtype) for column in kept}

    def put(self, lanes: Array, begun: Mapping[str, Array], opt_steps: int) -> None:
        self._make_room(lanes)
        for name, values in begun.items():
            self._columns[name][lanes] = values
        self._columns[VERSION.name][lanes] = opt_steps

    def pick(self, lanes: Array) -> dict[str, Array]:
        self._make_room(lanes)
        return {name: column[lanes] for name, column in self._columns.items()}

    def _make_room(self, lanes: Array) -> None:
        n = len(self._columns[FIRST.name])
        if (more := capacity_for(lanes, n) - n) > 0:
            for name, column in self._columns.items():
                self._columns[name] = np.concatenate((column, np.zeros((more, *column.shape[1:]), column.dtype)))
