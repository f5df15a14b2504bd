"""The table of a run's actors that ``learner-server status`` shows; rates come from two views of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from learner.ingest.cordons import NOBODY, Selection
from learner.records.status import format_return

_STYLES: Final = {
    "online": "green",
    "building": "cyan",
    "joined": "cyan",
    "away": "yellow",
    "left": "dim",
    "lost": "red",
}
STATES: Final = tuple(_STYLES)
PRESENT: Final = ("online", "building", "joined", "away")
"""States of actors that hold an id."""


@dataclass(frozen=True)
class ActorView:
    """One actor process, as the learner's AdminService describes it. None: not known yet."""

    actor_id: int
    host: str
    pid: int
    state: str
    items: int
    env_steps: int
    lag_opt_steps: int | None
    silent_seconds: float
    last_return: float | None
    reconnects: int
    name: str = ""
    """The name of the token by which the actor proves itself; empty for a token without a name."""
    version: str = ""
    """The crossborder release that the actor runs."""
    evaluates: bool = False
    """Whether the actor scores candidates and pushes no rows."""

    @property
    def process(self) -> tuple[int, str, int]:
        """Identifies the process: an actor id alone does not, since a new actor may get the id of one that left."""
        return self.actor_id, self.host, self.pid


@dataclass(frozen=True)
class FleetView:
    """A run and its actors at one moment; ``at`` is that moment on this process's monotonic clock, in seconds."""

    at: float
    run_id: str
    name: str
    opt_steps: int
    inserted: int
    sampled: int
    replay_items: int
    replay_capacity: int
    return_mean: float | None
    samples_per_insert: float | None
    actors: tuple[ActorView, ...]
    cordoned: Selection = NOBODY
    drained: Selection = NOBODY
    """``cordoned``: actors that may not join. ``drained``: those of them that have to leave."""


_Rates = Mapping[tuple[int, str, int], float]
SORTS: Final[Mapping[str, Callable[[ActorView, _Rates], Any]]] = {
    "id": lambda actor, _: actor.actor_id,
    "host": lambda actor, _: (actor.host, actor.pid),
    "state": lambda actor, _: STATES.index(actor.state) if actor.state in STATES else len(STATES),
    "lag": lambda actor, _: -(actor.lag_opt_steps or 0),
    "rate": lambda actor, rates: rates.get(actor.process, 0.0),
    "items": lambda actor, _: -actor.items,
    "seen": lambda actor, _: -actor.silent_seconds,
    "return": lambda actor, _: actor.last_return if actor.last_return is not None else float("inf"),
    "reconnects": lambda actor, _: -actor.reconnects,
}
"""Sort keys by name; the actor that most likely needs attention comes first."""


@dataclass(frozen=True)
class ShownActors:
    """Which actors the table shows, and in which order.

    Args:
        states: of the actors.
        host: a part of the host's name; empty for all hosts.
        sort: a key of ``SORTS``.
        rows: actors on a page; None puts all on one.
        page: counts from 1; a number beyond the last page shows the last one.
    """

    states: Sequence[str] = PRESENT
    host: str = ""
    sort: str = "id"
    rows: int | None = None
    page: int = 1

    def pages(self, count: int) -> int:
        """The number of pages for ``count`` actors, at least 1."""
        return max(1, -(-count // self.rows)) if self.rows else 1

    def number(self, count: int) -> int:
        """The number of the page that is shown of ``count`` actors."""
        return min(self.page, self.pages(count))


class FleetTable:
    """The later of two views of a run, with rates between the two."""

    def __init__(self, before: FleetView, now: FleetView) -> None:
        self.now = now
        self._before = before
        self._seconds = max(now.at - before.at, 1e-9)

    def _rate(self, name: str) -> float:
        """How fast a counter of the run grows, per second; 0 if the two views show different runs."""
        grown = getattr(self.now, name) - getattr(self._before, name)
        return max(0.0, grown / self._seconds) if self.now.run_id == self._before.run_id else 0.0

    def items_per_second(self) -> Mapping[tuple[int, str, int], float]:
        """The rate of each actor process that is in both views."""
        earlier = {actor.process: actor.items for actor in self._before.actors}
        return {
            actor.process: max(0, actor.items - earlier[actor.process]) / self._seconds
            for actor in self.now.actors
            if actor.process in earlier
        }

    def select(self, shown: ShownActors) -> list[ActorView]:
        """The actors that the table shows on all its pages, in its order."""
        key, rates = SORTS[shown.sort], self.items_per_second()
        found = [actor for actor in self.now.actors if actor.state in shown.states and shown.host in actor.host]
        return sorted(found, key=lambda actor: (key(actor, rates), actor.actor_id))

    def page(self, shown: ShownActors) -> list[ActorView]:
        """The actors of one page."""
        found = self.select(shown)
        if shown.rows is None:
            return found
        begin = (shown.number(len(found)) - 1) * shown.rows
        return found[begin : begin + shown.rows]

    def to_json(self, shown: ShownActors) -> dict[str, Any]:
        """The run and the actors on a page as values for JSON."""
        rates = self.items_per_second()
        values = asdict(self.now) | {name: getattr(self.now, name).to_json() for name in ("cordoned", "drained")}
        del values["at"]
        values["opt_steps_per_second"] = self._rate("opt_steps")
        values["items_per_second"] = self._rate("inserted")
        values["actors"] = [
            {**asdict(actor), "items_per_second": rates.get(actor.process)} for actor in self.page(shown)
        ]
        return values

    def table(self, shown: ShownActors) -> Group:
        """The run and the actors on a page as a table for a terminal."""
        table = Table("id", "name", "host", "state", pad_edge=False, box=None)
        for heading in ("lag", "steps/s", "steps", "seen", "return", "reconnects"):
            table.add_column(heading, justify="right")
        rates = self.items_per_second()
        actors = self.page(shown)
        for actor in actors:
            table.add_row(
                str(actor.actor_id),
                Text(actor.name or "-"),  # Text shows markup as it is: the other side chose these names.
                Text(f"{actor.host}:{actor.pid}"),
                Text(self._state(actor), _STYLES.get(actor.state, "")),
                _format(actor.lag_opt_steps, ",d"),
                _format(rates.get(actor.process), ",.1f"),
                f"{actor.items:,}",
                f"{actor.silent_seconds:.1f} s",
                format_return(actor.last_return),
                str(actor.reconnects),
            )
        return Group(self._headline(shown), table if actors else Text("no actors", "yellow"))

    def _state(self, actor: ActorView) -> str:
        """The state of an actor, whether it evaluates, and the order that it is under."""
        if actor.state not in PRESENT:
            return actor.state
        who = actor.actor_id, actor.host
        order = "draining" if self.now.drained.covers(*who) else "cordoned" if self.now.cordoned.covers(*who) else ""
        return ", ".join(filter(None, (actor.state, "evaluating" if actor.evaluates else "", order)))

    def _cordons(self) -> str:
        """The cordons, for the headline."""
        now = self.now
        drained = f", of which drained: {now.drained}" if now.drained else ""
        return f" · cordoned: {now.cordoned}{drained}" if now.cordoned else ""

    def _states(self, shown: ShownActors) -> str:
        """The number of actors in each state, and the number of the page."""
        counts, total = Counter(actor.state for actor in self.now.actors), len(self.select(shown))
        text = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state] or state == "online")
        pages = shown.pages(total)
        return f"{text} · page {shown.number(total)} of {pages}" if pages > 1 else text

    def _headline(self, shown: ShownActors) -> Text:
        now = self.now
        wanted = "" if now.samples_per_insert is None else f" (now set to {now.samples_per_insert:g})"
        return Text(
            f"{now.name} ({now.run_id}): opt step {now.opt_steps:,}, {self._rate('opt_steps'):.0f}/s · "
            f"actors: {self._states(shown)} · "
            f"{self._rate('inserted'):.0f} steps/s, return {format_return(now.return_mean)} · "
            f"replay {now.replay_items:,} of {now.replay_capacity:,}, "
            f"ratio since the start {now.sampled / max(now.inserted, 1):.1f}{wanted}{self._cordons()}\n"
        )


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
