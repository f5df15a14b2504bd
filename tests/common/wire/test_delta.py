from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RefusedError
from common.wire.compression import NUMBERS, compress
from common.wire.delta import apply_delta, make_delta


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
