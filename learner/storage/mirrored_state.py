"""A state of a mirrored run: what the mirror has of the run at one moment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import zstandard

from common.depth import parse_json
from learner.replay.recovery import Watermark

FORMAT: Final = 1
INLINE: Final = "inline:"
"""Begins the content of a small file in the state itself."""


@dataclass(frozen=True)
class Segment:
    """Rows ``[start, end)`` of the replay in one object, see ``learner.replay.copying``."""

    start: int
    end: int
    steps: int
    """Steps among these rows."""
    steps_end: int
    """Steps ever stored, up to the last of these rows."""
    checksum: int
    """Of the rows and their links, as ``ReplayMemory.compute_checksum`` computes it."""
    level: int
    """How often the rows were joined with others into a larger segment."""
    name: str


@dataclass(frozen=True)
class MirroredState:
    """The run at one moment: the files of its directory by their paths, and the rows of its replay."""

    run_id: str
    epoch: int
    at: float
    """When it was read, in Unix seconds."""
    files: Mapping[str, str]
    """By path, ``inline:BASE64`` or the name of an object."""
    layout: Mapping[str, Any]
    """Of the replay, as in its ``layout.json``."""
    watermark: Watermark
    """How far the replay was, and the cursors of its actors."""
    segments: list[Segment] = field(default_factory=list)

    @property
    def objects(self) -> set[str]:
        """The names of all objects that the state needs."""
        files = {name for name in self.files.values() if not name.startswith(INLINE)}
        return files | {segment.name for segment in self.segments}

    def to_bytes(self) -> bytes:
        """As a compressed object with a checksum."""
        return make_compressor().compress(json.dumps({"format": FORMAT, **asdict(self)}).encode())

    @classmethod
    def from_bytes(cls, content: bytes) -> MirroredState:
        """From the bytes that ``to_bytes`` gave.

        Raises:
            ValueError, LookupError, TypeError: they are not whole, or another release wrote them.
        """
        try:
            values = parse_json(zstandard.ZstdDecompressor().decompress(content).decode())
        except (zstandard.ZstdError, MemoryError) as error:  # Damage may name a size that no host has.
            raise ValueError(str(error)) from error
        if values.pop("format") != FORMAT:
            raise ValueError("another release wrote it")
        segments = [Segment(**segment) for segment in values["segments"]]
        return cls(**{**values, "watermark": Watermark.from_values(values["watermark"]), "segments": segments})


def make_compressor() -> zstandard.ZstdCompressor:
    """For all that a mirror has: each frame has a checksum."""
    return zstandard.ZstdCompressor(level=1, write_checksum=True)
