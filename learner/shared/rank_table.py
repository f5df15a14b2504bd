"""Where the ranks of a run listen and how many actors each has: written by each rank's trainer, read by its ingest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from common.data import Array
from common.depth import parse_json
from common.errors import RunDirectoryError
from common.shared.mapped import map_file
from learner.shared.durable import replace_text

FILE: Final = "ranks.json"
"""The number of this rank, and HOST:PORT of all ranks in their order."""
ACTORS_FILE: Final = "rank-actors"
_ITEM: Final = np.dtype("<f8")


@dataclass(frozen=True, eq=False)
class RankTable:
    """The ranks of a run.

    Args:
        rank: of this process.
        addresses: HOST:PORT of each rank.
        actors: float64 ``[n_ranks]``, the actors that hold an id at each rank, as last exchanged. The trainer writes
            each value whole and ingest reads it at any time; values of two exchanges may lie side by side.
    """

    rank: int
    addresses: Sequence[str]
    actors: Array

    @classmethod
    def create(cls, shared: Path, rank: int, addresses: Sequence[str]) -> Self:
        """Write the table; that of an earlier life of the run is replaced.

        Raises:
            RunDirectoryError: it cannot be written.
        """
        (shared / ACTORS_FILE).unlink(missing_ok=True)
        mapped = map_file(shared / ACTORS_FILE, _ITEM.itemsize * len(addresses), create=True)
        replace_text(shared / FILE, json.dumps({"rank": rank, "addresses": [*addresses]}) + "\n")
        return cls(rank, addresses, np.frombuffer(mapped, _ITEM))

    @classmethod
    def open(cls, shared: Path) -> Self:
        """Read the table.

        Raises:
            OSError: it is not there yet.
            RunDirectoryError: it is damaged, or its parts do not fit each other, since it is just being replaced.
        """
        try:
            told = parse_json((shared / FILE).read_text())
            rank, addresses = int(told["rank"]), [str(address) for address in told["addresses"]]
        except (ValueError, LookupError, TypeError) as error:
            raise RunDirectoryError(f"{shared / FILE}: expected a rank and addresses, found {error!r}") from error
        mapped = map_file(shared / ACTORS_FILE, _ITEM.itemsize * len(addresses), create=False, writable=False)
        return cls(rank, addresses, np.frombuffer(mapped, _ITEM))
