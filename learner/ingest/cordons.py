"""Cordons: which actors may not join for now, and which of them are drained. A file of the run keeps them."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from common.depth import parse_json
from common.errors import CrossborderError, RunDirectoryError
from learner.shared.durable import naming_write_errors, replace_text

log = logging.getLogger(__name__)
MAX_HOSTS: Final = 4096
"""The most hosts that are cordoned at one time."""


class CordonedError(CrossborderError):
    """A cordon keeps the actor out until an admin ends the cordon."""


@dataclass(frozen=True)
class Selection:
    """Some of the actors: those that have one of the ids or are on one of the hosts, or all actors."""

    actor_ids: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    everybody: bool = False

    def __len__(self) -> int:
        return len(self.actor_ids) + len(self.hosts) + self.everybody

    def covers(self, actor_id: int | None, host: str) -> bool:
        """Whether an actor is selected; ``actor_id`` is None for an actor whose id is not known yet."""
        return self.everybody or actor_id in self.actor_ids or host in self.hosts

    def plus(self, other: Selection) -> Selection:
        """The actors of either selection."""
        return Selection(self.actor_ids | other.actor_ids, self.hosts | other.hosts, self.everybody or other.everybody)

    def without(self, other: Selection) -> Selection:
        """The ids and hosts that are not in the other selection; nothing if the other one selects everybody."""
        if other.everybody:
            return NOBODY
        return Selection(self.actor_ids - other.actor_ids, self.hosts - other.hosts, self.everybody)

    def to_json(self) -> dict[str, Any]:
        """The selection as values for JSON; the keys are the fields of ``pb.ActorSelection``."""
        return {"actor_ids": sorted(self.actor_ids), "hosts": sorted(self.hosts), "all": self.everybody}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Selection:
        """The selection that ``to_json`` wrote.

        Raises:
            LookupError, TypeError, ValueError: the values are not those of a selection.
        """
        hosts = frozenset(map(str, values["hosts"]))
        return cls(frozenset(map(int, values["actor_ids"])), hosts, bool(values["all"]))

    def __str__(self) -> str:
        ids, hosts = (", ".join(map(str, sorted(part))) for part in (self.actor_ids, self.hosts))
        named = [f"actors {ids}" if ids else "", f"hosts {hosts}" if hosts else "", "all" if self.everybody else ""]
        return " and ".join(filter(None, named)) or "none"


NOBODY: Final = Selection()


class Cordons:
    """The cordons of a run. They outlive ingest and the learner: no actor slips in when one of the two is restarted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.cordoned, self.drained = _read(path)
        """The actors that may not join, and the actors among them that have to leave."""

    def cordon(self, actors: Selection) -> None:
        """Keep new actors out.

        Raises:
            RunDirectoryError: the file cannot be written, and nothing has changed.
        """
        self._keep(self.cordoned.plus(actors), self.drained)

    def drain(self, actors: Selection) -> None:
        """Keep new actors out, and have the present actors leave."""
        self._keep(self.cordoned.plus(actors), self.drained.plus(actors))

    def uncordon(self, actors: Selection) -> None:
        """End the cordons and the drains of these ids and hosts; a selection of everybody ends all of them."""
        self._keep(self.cordoned.without(actors), self.drained.without(actors))

    def _keep(self, cordoned: Selection, drained: Selection) -> None:
        kept = {"cordoned": cordoned.to_json(), "drained": drained.to_json()}
        with naming_write_errors(self._path):
            replace_text(self._path, json.dumps(kept) + "\n")
        self.cordoned, self.drained = cordoned, drained
        log.info("cordoned: %s; drained: %s", cordoned, drained)


def _read(path: Path) -> tuple[Selection, Selection]:
    if not path.exists():
        return NOBODY, NOBODY
    try:
        found = parse_json(path.read_text())
        return Selection.from_json(found["cordoned"]), Selection.from_json(found["drained"])
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        log.error("%s is damaged (%s): no actor and no host is cordoned any more", path, error)
        return NOBODY, NOBODY
