"""Every row carries a checksum, and every environment counts: what is lost, doubled or torn is seen, and counted."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.data import Array, Column, Items, Schema
from common.interfaces import EnvSpec, Step
from common.processors import OneStep
from tests.parts import CheckingAgent, check_rows, expected_items

CHECKSUM = Column.of("checksum", np.uint32)


def checksums(items: Mapping[str, Array]) -> Array:
    """CRC-32 of the other columns of each row, uint32 ``[n]``."""
    others = (np.ascontiguousarray(column) for name, column in items.items() if name != CHECKSUM.name)
    rows = np.concatenate([column.reshape(len(column), -1).view(np.uint8) for column in others], axis=1)
    return np.fromiter((zlib.crc32(row) for row in rows), np.uint32, len(rows))


class ChecksummedStep(OneStep):
    """``OneStep`` and a checksum of the row."""

    def schema(self, spec: EnvSpec) -> Schema:
        return super().schema(spec).plus(CHECKSUM)

    def process(self, step: Step) -> Items:
        items = super().process(step)
        return {**items, CHECKSUM.name: checksums(items)}


class ChecksumAgent(CheckingAgent):
    """Checks the checksum of every row it is given to learn from too."""

    def check(self, items: Mapping[str, Array]) -> None:
        check_rows(items)
        np.testing.assert_array_equal(checksums(items), items[CHECKSUM.name])


@dataclass(frozen=True)
class Audit:
    """What became of the items of counting environments."""

    items: int
    lost: int
    """Acknowledged, or followed by later ones of the same environment, and not there."""
    doubled: int
    disordered: int
    torn: int
    """Not as they were sent."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.disordered or self.torn)


def audit(items: Items, acknowledged: Mapping[int, int]) -> Audit:
    """Count what is wrong in a whole replay.

    Args:
        items: in the order of the replay.
        acknowledged: by the tag of an environment, how many of its items were acknowledged, at least.
    """
    torn = checksums(items) != items[CHECKSUM.name]
    tags, steps = items["obs"][~torn, 0].astype(int), items["obs"][~torn, 1]
    lost = doubled = disordered = 0
    for tag in sorted({*tags.tolist(), *acknowledged}):
        mine = steps[tags == tag]
        distinct = np.unique(mine)
        count = max(len(distinct), acknowledged.get(tag, 0))
        expected = expected_items(tag, count)["obs"]
        lost += len(np.setdiff1d(expected[:, 1] if count else [], distinct))
        doubled += len(mine) - len(distinct)
        disordered += int((np.diff(mine) < 0).sum())
    return Audit(len(items["obs"]), lost, doubled, disordered, int(torn.sum()))
