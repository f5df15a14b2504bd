"""Rows carry checksums, and environments count: what is lost, doubled, torn or linked wrongly is seen, and counted."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from common.data import Array, Column, Items, Schema
from common.interfaces import RowMap

CHECKSUM = Column.of("checksum", np.uint32)


def checksums(rows: Mapping[str, Array]) -> Array:
    """CRC-32 of the other columns of each row, uint32 ``[n]``."""
    others = (np.ascontiguousarray(rows[name]) for name in sorted(rows) if name != CHECKSUM.name)
    values = np.concatenate([column.reshape(len(column), -1).view(np.uint8) for column in others], axis=1)
    return np.fromiter((zlib.crc32(row) for row in values), np.uint32, len(values))


class Checksummed(RowMap):
    """Adds to each row a checksum of it."""

    def schema(self, rows: Schema) -> Schema:
        return rows.plus(CHECKSUM)

    def map(self, rows: Items) -> Items:
        return {**rows, CHECKSUM.name: checksums(rows)}


@dataclass(frozen=True)
class Audit:
    """What became of the rows of counting environments."""

    rows: int
    lost: int
    """Acknowledged, or followed by later rows of the same environment, and not there."""
    doubled: int
    disordered: int
    torn: int
    """Not as they were sent."""
    unlinked: int = 0
    """The row before is there, and there is no link to it."""
    mislinked: int = 0
    """Linked to another row than the one before."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.disordered or self.torn or self.unlinked or self.mislinked)


def audit(rows: Items, acknowledged: Mapping[int, int], previous: Array | None = None) -> Audit:
    """Count what is wrong in a whole replay.

    The rows of an environment are numbered 1, 2, 3, … in their observations, final rows among them.

    Args:
        rows: in the order of the replay.
        acknowledged: by the tag of an environment, how many of its rows were acknowledged, at least.
        previous: by how many rows the row before lies back, ``[n]``, 0 for none; None if links are not looked at.
    """
    torn = checksums(rows) != rows[CHECKSUM.name]
    tags, numbers = rows["obs"][:, 0].astype(int), rows["obs"][:, 1].astype(int)
    found = Audit(len(torn), 0, 0, 0, int(torn.sum()))
    for tag in sorted({*tags[~torn].tolist(), *acknowledged}):
        mine = np.flatnonzero((tags == tag) & ~torn)
        distinct = np.unique(numbers[mine])
        expected = np.arange(1, max(len(distinct), acknowledged.get(tag, 0)) + 1)
        found = replace(
            found,
            lost=found.lost + len(np.setdiff1d(expected, distinct)),
            doubled=found.doubled + len(mine) - len(distinct),
            disordered=found.disordered + int((np.diff(numbers[mine]) < 0).sum()),
        )
        if previous is not None:
            found = _audit_links(found, mine, numbers[mine], previous[mine].astype(int))
    return found


def _audit_links(found: Audit, mine: Array, numbers: Array, offsets: Array) -> Audit:
    """Count what is wrong with the links of one environment's rows ``[n]``, which lie at ``mine`` in the replay."""
    expected = np.diff(mine, prepend=mine[:1])
    expected[1:][np.diff(numbers) != 1] = 0
    is_linked = (offsets != 0) & (offsets <= mine)
    return replace(
        found,
        unlinked=found.unlinked + int(((expected != 0) & ~is_linked).sum()),
        mislinked=found.mislinked + int((is_linked & (offsets != expected)).sum()),
    )
