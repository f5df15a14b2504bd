"""The loop of acting, written once: observe, act, step, record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final, Protocol

import numpy as np

from actor.episode_recording import EpisodeRecording
from actor.sampling.item_maker import ItemMaker, next_of
from actor.sampling.recorder import NEXT, SEEN, RowRecorder, add_priority, add_priority_to_rows, noted_columns
from actor.stat import ActorCounters
from common.data import PRIORITY, Array, Items, Leaves, Schema
from common.errors import CrossborderError, PluginError
from common.interfaces import Agent
from common.lanes.lanes import Lanes, Round
from common.lanes.pace import Pace
from common.lanes.plain_lanes import PlainLanes
from common.lanes.stacking import Stacker
from common.leaves import by_path
from common.parts import Parts


class ItemSink(Protocol):
    """Takes a sampler's rows. The sampler cannot tell whether a network lies behind it."""

    def takes(self, rows: int) -> bool:
        """Whether to push the rows that were gathered so far; asked after each round."""

    def push(self, items: Items) -> None:
        """Take rows, or items of a user's step processor; blocks while the other side holds back.

        The arrays are valid during the call.
        """


class Records(Protocol):
    """Notes the rounds of a sampler. ``RowRecorder`` and ``ItemMaker`` do."""

    version: int
    """Opt steps of the model that acts."""

    @property
    def rows(self) -> int:
        """The number of rows that were gathered since the last ``clear``."""

    def begin(self, obs: Leaves, begins: Array | None, actions: Leaves, extras: Mapping[str, Array] | None) -> None:
        """Note a round before its step, since environments may write the next observations into the same arrays."""

    def end(self, outcome: Round) -> None:
        """Note the step of the round."""

    def items(self) -> Items:
        """The rows that were gathered, valid until the next round."""

    def clear(self) -> None:
        """Begin to gather anew."""


WATCH_SECONDS: Final = 1.0
"""The time between two looks at what an agent does with its observations."""


class SampleCheck:
    """Looks once in a while whether an agent changes the observations it is given: rows take them after it."""

    def __init__(self) -> None:
        self._due = -math.inf

    def sample(self, sample: Callable[[Leaves], Leaves], seen: Leaves, now: float) -> Leaves:
        """Call the agent's ``sample``.

        Raises:
            PluginError: it has changed the observations.
        """
        if now < self._due:
            return sample(seen)
        self._due = now + WATCH_SECONDS
        before = _bytes_of(seen)
        actions = sample(seen)
        if _bytes_of(seen) != before:
            raise PluginError(
                "agent: sample() changed the observations it was given, which are stored: copy them first"
            )
        return actions


def _bytes_of(leaves: Leaves) -> list[bytes]:
    return [leaf.tobytes() for leaf in by_path(leaves).values()]


class Outbox:
    """Pushes what was recorded as the learner expects it.

    Args:
        parts: say how rows are changed before they are pushed.
        records: the rows; if they get priorities, it has noted the agent's observations before and after each step.
        recording: takes the rows too; None: they are not recorded. It must be None for items of a step processor.
    """

    def __init__(self, parts: Parts, records: Records, recording: EpisodeRecording | None) -> None:
        self._parts, self._records, self._recording = parts, records, recording
        self._agreed = agreed_schema(parts)

    def push(self, agent: Agent, sink: ItemSink) -> None:
        """Push the rows that were gathered, if there are any.

        Raises:
            SchemaMismatchError: the map of rows makes other columns than it says.
        """
        if self._records.rows:
            if self._recording is not None:
                self._recording.add(self._records.items())
            sink.push(self._make_items(agent))
            self._records.clear()

    def _make_items(self, agent: Agent) -> Items:
        """The rows as the learner expects them."""
        items, records, row_map = self._records.items(), self._records, self._parts.row_map
        if row_map is not None:
            items = map_rows(row_map.map, items, self._agreed)
        if not self._parts.has_priorities:
            return items
        if isinstance(records, RowRecorder):
            return add_priority_to_rows(items, records.notes(SEEN), records.notes(NEXT), agent)
        return add_priority(items, agent)


class Sampler:
    """Steps all lanes at once with an agent's actions, and pushes the rows (border's SyncSampler).

    Args:
        parts: with lanes.
        counters: counts steps and episodes, and where the time goes.
        seed: lane j is first reset with ``seed + j``; later resets go on from there. A vector environment is reset with
            one number made of ``seed``, since its lanes would share seeds with those of other actors.
        pace: when steps begin; None: each at once. The agent acts before the wait, so each step begins at its tick.
        recording: takes the rows too; None: they are not recorded. It must be None for items of a step processor.
        records: notes all rounds; None: they become the rows, or items, that ``parts`` describe.
    """

    def __init__(
        self,
        parts: Parts,
        counters: ActorCounters,
        seed: int,
        pace: Pace | None = None,
        recording: EpisodeRecording | None = None,
        *,
        records: Records | None = None,
    ) -> None:
        self._parts, self._counters, self._lanes, self._pace = parts, counters, require_lanes(parts), pace
        self._stacker, self._has_stacks = Stacker(parts.frames, self._lanes.n, parts.frame_stack), parts.frame_stack > 1
        self._records: Records = self._make_recorder() if records is None else records
        self._outbox = Outbox(parts, self._records, recording)
        rows = self._records if isinstance(self._records, RowRecorder) else None
        self._noted = rows if parts.has_priorities else None  # Notes the agent's observations for priorities.
        self._has_extras = bool(parts.agent.extra_columns()) and isinstance(self._records, RowRecorder)
        self._makes_items = bool(parts.processors)
        more = self._has_stacks or self._has_extras or parts.has_priorities or pace is not None  # In each round.
        lanes = self._lanes if rows and not more and self._lanes.n == 1 else None
        self._alone = lanes if isinstance(lanes, PlainLanes) else None  # Takes many rounds in one call.
        self._unbegun: Array | None = np.ones(self._lanes.n, bool)  # Where the agent begins at the first round.
        self._check = SampleCheck()
        self._ended: float | None = None  # When the last round ended; None: it was pushed, or there was none.
        self._lanes.reset(seed if isinstance(self._lanes, PlainLanes) else spread(seed))

    def _make_recorder(self) -> RowRecorder | ItemMaker:
        parts = self._parts
        if parts.processors:
            return ItemMaker(agreed_schema(parts), parts.processors, self._stacker)
        return RowRecorder(parts.rows, self._lanes.n, noted_columns(parts.spec) if parts.has_priorities else ())

    @property
    def version(self) -> int:
        """Opt steps of the model that acts, which every row carries."""
        return self._records.version

    @version.setter
    def version(self, opt_steps: int) -> None:
        self._records.version = opt_steps

    def act_for(
        self, seconds: float, agent: Agent, sink: ItemSink, limits: Callable[[], tuple[int, float]] | None = None
    ) -> None:
        """Act for this long, and for at least one round; ``limits`` says when the sink takes the rows, if it knows."""
        until = monotonic() + seconds
        self.sample_and_push(agent, sink)
        while monotonic() < until:
            if self._alone is None or limits is None or not self._records.rows:
                self.sample_and_push(agent, sink)
            elif (chosen := self._go_on(agent, sink, until, *limits())) is not None or monotonic() < until:
                self.sample_and_push(agent, sink, chosen)

    def _go_on(self, agent: Agent, sink: ItemSink, until: float, most: int, due: float) -> Leaves | None:
        """Take usual steps in the only lane, and record them all at once; returns actions chosen for the next round."""
        counters, records = self._counters, self._records
        assert self._alone is not None
        assert isinstance(records, RowRecorder)
        began, before = self._ended or self._start_clock(), records.rows
        try:
            choosing, left = self._alone.go_on(agent.sample, records.extend, most - before, min(until, due))
        finally:
            counters.env_steps += records.rows - before  # Also if an environment raises, and is not rebuilt.
        self._ended = ended = monotonic()
        counters.inference_seconds += choosing
        counters.env_seconds += ended - began - choosing
        if left is None and sink.takes(records.rows):
            self.flush(agent, sink)
        return left

    def sample_and_push(self, agent: Agent, sink: ItemSink, chosen: Leaves | None = None) -> None:
        """Take one step in every lane, and push the rows that were gathered if the sink takes them.

        With a pace that was stopped, no step is taken. ``chosen`` are actions that the agent has chosen already.

        Raises:
            PluginError: the agent did not give one action of its space for each lane, failed with an observation
                outside its space, or has changed observations.
        """
        counters, lanes, records = self._counters, self._lanes, self._records
        began = self._ended or self._start_clock()
        obs, begins = lanes.observe(), lanes.begins
        if begins is not None or self._unbegun is not None:
            self._begin(agent, begins)
            counters.env_seconds += (now := monotonic()) - began
            began = now
        # 1. The agent chooses, before the wait for the tick: the step begins at its tick.
        seen = self._stacker.add(obs, begins) if self._has_stacks else obs  # The call takes 0.1 of 2.5 µs.
        actions = self._choose(agent, obs, seen, began) if chosen is None else chosen
        acted = monotonic()
        records.begin(seen if self._makes_items else obs, begins, actions, agent.extras() if self._has_extras else None)
        if self._noted is not None:
            self._noted.note(SEEN, seen)
        counters.inference_seconds += acted - began
        if self._pace is not None:
            if not self._pace.wait():
                self._ended = None
                return
            acted = monotonic()
        # 2. The environments step, which completes the rows of this round.
        outcome = lanes.step(actions)
        if self._noted is not None:
            self._noted.note(NEXT, next_of(outcome, self._stacker))
        records.end(outcome)
        counters.env_steps += lanes.n if outcome.taken is None else int(np.count_nonzero(outcome.taken))
        if outcome.intervened is not None:
            by_others = outcome.intervened if outcome.taken is None else outcome.intervened & outcome.taken
            counters.intervened_steps += int(np.count_nonzero(by_others))
        if outcome.ended is not None:
            counters.add_episodes(outcome, records.version)
        self._ended = ended = monotonic()
        counters.env_seconds += ended - acted
        if sink.takes(records.rows):
            self.flush(agent, sink)

    def _choose(self, agent: Agent, obs: Leaves, seen: Leaves, now: float) -> Leaves:
        try:
            return self._check.sample(agent.sample, seen, now)
        except CrossborderError:  # This error names the fault, and the observation may be right.
            raise
        except Exception:
            self._lanes.require_indices(obs)
            raise

    def _start_clock(self) -> float:
        """Begin to measure; the caller's time since the last push does not count."""
        self._counters.tick()
        return monotonic()

    def _begin(self, agent: Agent, begins: Array | None) -> None:
        """Tell the agent where episodes begin; at the first round, in all lanes but those of a resumed run."""
        unbegun, self._unbegun = self._unbegun, None
        if unbegun is not None:
            begins = unbegun if begins is None else begins | unbegun
        if begins is not None:
            agent.begin(begins)
            if self._pace is not None:
                self._pace.begin()

    def flush(self, agent: Agent, sink: ItemSink) -> None:
        """Push the rows that were gathered."""
        self._counters.tick()
        self._ended = None
        self._outbox.push(agent, sink)


def require_lanes(parts: Parts) -> Lanes:
    """The lanes in which to act."""
    assert parts.lanes is not None, "these parts were built without lanes"
    return parts.lanes


def spread(seed: int) -> int:
    """A number far from those that other seeds give, of 31 bits."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 1)


def agreed_schema(parts: Parts) -> Schema:
    """The columns that are sent, without the priorities that the actor adds."""
    return parts.schema.without(PRIORITY) if parts.has_priorities else parts.schema


def map_rows(function: Any, rows: Items, schema: Schema) -> Items:
    """The rows that a map makes of ``rows``.

    Raises:
        SchemaMismatchError: they have other columns than the map says.
        PluginError: the map made no columns, or another number of rows.
    """
    given = {name: column.view() for name, column in rows.items()}
    for column in given.values():
        column.flags.writeable = False  # The recorder goes on with these arrays.
    mapped: Items = function(given)
    if not isinstance(mapped, dict):
        raise PluginError(f"step_processor: expected a map of rows to columns by their names, found {mapped!r:.80}")
    count, expected = schema.count(mapped), len(next(iter(rows.values())))
    if count != expected:
        raise PluginError(f"step_processor: expected a map of {expected} rows to as many, found {count}")
    return mapped
