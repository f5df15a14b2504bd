from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import save

from common.data import Array
from common.wire.tensor_file import read_metadata, read_tensors


def file_of(data: bytes) -> Array:
    return np.frombuffer(bytearray(data), np.uint8)


def written(header: object, data: bytes = b"12345678") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("dtype", ["?", *"bBhHiIlL", "e", "f", "d"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_tensors_of_any_dtype_and_shape_are_views(dtype: str, shape: tuple[int, ...]) -> None:
    params = {"one": np.ones(shape, dtype), "other": np.full((5,), 7, np.float32)}
    file = file_of(save(params, metadata={"made": "here"}))
    found = read_tensors(file)
    assert found.keys() == params.keys()
    for name, expected in params.items():
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected, strict=True)
        assert np.shares_memory(found[name], file) == bool(expected.size)
        assert found[name].flags.writeable


def test_every_bfloat16_is_widened_to_the_float32_that_torch_makes_of_it() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    found = read_tensors(file_of(safetensors.torch.save({"w": every.reshape(2, -1)})))["w"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, every.float().reshape(2, -1).numpy())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234",
        (2**63).to_bytes(8, "little") + b"{}1234",
        written([]),
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        written("w"),
        written({"w": 1}),
        written({"w": {"dtype": "F32", "shape": [2]}}),
        written({"w": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}),
        written({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}),
        written({"w": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}),
        written({"w": {"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]}}),
        written({"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 7]}}),
        written({"w": {"dtype": "U8", "shape": [10**30], "data_offsets": [0, 8]}}),
    ],
)
def test_bytes_that_are_no_safetensors_file_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a safetensors file with numpy's dtypes"):
        read_tensors(file_of(data) if data else np.empty(0, np.uint8))


def test_tensors_that_share_bytes_are_refused_before_any_is_widened() -> None:
    entry = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
    with pytest.raises(ValueError, match="expected tensors one after another, found bytes 0 to 8 after 8"):
        read_tensors(file_of(written({f"t{i}": entry for i in range(500)})))


def test_the_texts_beside_the_tensors_are_read() -> None:
    assert read_metadata(file_of(save({"w": np.ones(2)}, metadata={"made": "here"}))) == {"made": "here"}
    assert read_metadata(file_of(save({"w": np.ones(2)}))) == {}
    for broken in (b"", b"12345678[]", written([])):
        with pytest.raises(ValueError, match="not a safetensors file"):
            read_metadata(file_of(broken))
