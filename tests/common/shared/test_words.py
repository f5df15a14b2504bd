"""Words in a mapped file."""

from __future__ import annotations

from pathlib import Path

from common.shared.mapped import map_file
from common.shared.words import Word, Words


class TwoWords(Words):
    N_WORDS = 2
    count = Word(0)
    mean = Word(1, float)


def test_words_are_numbers_that_every_mapping_of_the_file_sees(tmp_path: Path) -> None:
    written = TwoWords(map_file(tmp_path / "words", 32, create=True), 16)
    read = TwoWords(map_file(tmp_path / "words", 32, create=False, writable=False), 16)
    written.count, written.mean = -(2**40), -1.5
    assert (read.count, read.mean) == (-(2**40), -1.5)
