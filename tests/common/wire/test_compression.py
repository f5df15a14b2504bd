from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RefusedError
from common.wire.compression import NUMBERS, PICTURES, apply_delta, compress, compress_together, decompress, make_delta

SCREEN = bytes(7056)


@given(st.binary(), st.sampled_from([PICTURES, NUMBERS]))
def test_compressed_data_is_decompressed_to_the_same(data: bytes, level: int) -> None:
    assert decompress(compress(data, level), len(data)) == data


@given(st.lists(st.binary()), st.sampled_from([PICTURES, NUMBERS]))
def test_pieces_that_are_compressed_together_are_decompressed_to_one(pieces: list[bytes], level: int) -> None:
    whole = b"".join(pieces)
    assert decompress(compress_together(pieces, level), len(whole)) == whole
    assert compress_together(pieces, level) == compress_together([whole], level)


def test_incompressible_data_grows_by_a_few_bytes_only() -> None:
    noise = np.random.default_rng(0).bytes(1 << 20)
    assert len(compress(noise)) < len(noise) + 64


def test_a_decompression_bomb_is_refused_by_the_size_that_it_states() -> None:
    with pytest.raises(RefusedError, match="expected a content size of up to 7055 bytes, found 7056"):
        decompress(compress(SCREEN), 7055)


def test_a_frame_that_does_not_state_its_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(SCREEN)
    with pytest.raises(RefusedError, match="expected a content size of up to 7056 bytes, found none"):
        decompress(frame, 7056)


def lying(frame: bytes) -> bytes:
    """The frame with a stated size below its real size of 7056.

    The size is the two bytes after magic number and descriptor, less 256 (RFC 8878, 3.1.1.1.4).
    """
    stated = (7056 - 256).to_bytes(2, "little")
    assert frame[5:7] == stated
    return frame[:5] + bytes(2) + frame[7:]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: b"",
        lambda frame: SCREEN,
        lambda frame: frame[:-1],
        lambda frame: frame + b"x",
        lambda frame: frame + frame,
        lying,
    ],
)
def test_anything_but_one_whole_frame_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(RefusedError, match=re.escape("payload: expected one Zstandard frame, found other bytes: ")):
        decompress(spoil(compress(SCREEN)), 7056)


def test_threads_do_not_mix_up_their_data() -> None:
    def survives(seed: int) -> bool:
        data = np.random.default_rng(seed).integers(0, 4, 100_000, np.uint8).tobytes()
        return decompress(compress(data), len(data)) == data

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(survives, range(100)))


@given(st.integers(0, 50).flatmap(lambda n: st.tuples(*[st.binary(min_size=n, max_size=n)] * 2)))
def test_a_model_of_any_size_comes_back_and_its_base_stays(files: tuple[bytes, bytes]) -> None:
    base, model = files
    held = np.frombuffer(base, np.uint8)  # Read-only.
    found = apply_delta(held, make_delta(base, model))
    assert found.tobytes() == model
    assert found.flags.writeable, "tensors that are views of it can be adopted by torch"


def test_numbers_that_change_a_little_take_few_bytes() -> None:
    numbers = np.random.default_rng(0).standard_normal(10_000).astype("<f4")
    base, model = numbers.tobytes(), (numbers * np.float32(1.0001)).tobytes()
    assert len(make_delta(base, model)) < len(compress(model, NUMBERS)) / 2


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        (compress(bytes(8), NUMBERS), "delta: expected 12 bytes, found 8"),
        (compress(bytes(16), NUMBERS), "expected a content size of up to 12 bytes, found 16"),
        (b"no frame", "expected one Zstandard frame"),
    ],
)
def test_bytes_that_are_no_delta_of_a_file_of_this_size_are_refused(delta: bytes, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        apply_delta(np.zeros(9, np.uint8), delta)
