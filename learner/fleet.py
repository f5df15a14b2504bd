"""A run and its actors as the people who run it see them: rates between two looks, as a table or as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

_STYLES: Final = {"online": "green", "away": "yellow", "left": "dim", "lost": "red"}


@dataclass(frozen=True)
class ActorLook:
    """One actor process. None: nothing to say yet."""

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

    @property
    def process(self) -> tuple[int, str, int]:
        """Tells it from one that has its id later."""
        return self.actor_id, self.host, self.pid


@dataclass(frozen=True)
class FleetLook:
    """One look at a run; ``at`` is seconds on the clock of whoever looks."""

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
    actors: tuple[ActorLook, ...]


class Fleet:
    """What two looks come to.

    Args:
        before: the earlier one.
        now: the later one.
    """

    def __init__(self, before: FleetLook, now: FleetLook) -> None:
        self.now = now
        self._before = before
        self._seconds = max(now.at - before.at, 1e-9)

    def _rate(self, name: str) -> float:
        """Per second; a run that was started anew has no past."""
        grown = getattr(self.now, name) - getattr(self._before, name)
        return max(0.0, grown / self._seconds) if self.now.run_id == self._before.run_id else 0.0

    def items_per_second(self) -> Mapping[tuple[int, str, int], float]:
        """By process, of those that were there before."""
        earlier = {actor.process: actor.items for actor in self._before.actors}
        return {
            actor.process: max(0, actor.items - earlier[actor.process]) / self._seconds
            for actor in self.now.actors
            if actor.process in earlier
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        rates = self.items_per_second()
        values = asdict(self.now)
        del values["at"]
        values["opt_steps_per_second"] = self._rate("opt_steps")
        values["items_per_second"] = self._rate("inserted")
        values["actors"] = [
            {**asdict(actor), "items_per_second": rates.get(actor.process)} for actor in self.now.actors
        ]
        return values

    def table(self) -> Group:
        """For a terminal, or without colours for a file."""
        table = Table("id", "host", "state", pad_edge=False, box=None)
        for heading in ("lag", "items/s", "items", "seen", "return", "reconnects"):
            table.add_column(heading, justify="right")
        rates = self.items_per_second()
        for actor in self.now.actors:
            table.add_row(
                str(actor.actor_id),
                Text(f"{actor.host}:{actor.pid}"),  # Whatever an actor calls its host is no markup.
                Text(actor.state, _STYLES.get(actor.state, "")),
                _shown(actor.lag_opt_steps, ",d"),
                _shown(rates.get(actor.process), ",.1f"),
                f"{actor.items:,}",
                f"{actor.silent_seconds:.1f} s",
                _shown(actor.last_return, ".1f"),
                str(actor.reconnects),
            )
        return Group(self._headline(), table if self.now.actors else Text("no actors", "yellow"))

    def _headline(self) -> Text:
        now, online = self.now, sum(actor.state == "online" for actor in self.now.actors)
        wanted = "" if now.samples_per_insert is None else f" of {now.samples_per_insert:g}"
        return Text(
            f"{now.name} ({now.run_id}): opt step {now.opt_steps:,}, {self._rate('opt_steps'):.0f}/s · "
            f"{online} actors online, {self._rate('inserted'):.0f} items/s, return {_shown(now.return_mean, '.1f')} · "
            f"replay {now.replay_items:,} of {now.replay_capacity:,}, "
            f"ratio {now.sampled / max(now.inserted, 1):.1f}{wanted}\n"
        )


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
