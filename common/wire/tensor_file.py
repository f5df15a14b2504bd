"""Reads tensors and meta data of a safetensors file, without the library of that name, which an actor does not have.

The format is that of github.com/huggingface/safetensors, section 'Format'.
"""

from __future__ import annotations

import json
from typing import Final

from common.data import Array

_DTYPES: Final = {
    "BOOL": "?",
    **{f"U{8 * n}": f"<u{n}" for n in (1, 2, 4, 8)},
    **{f"I{8 * n}": f"<i{n}" for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": f"<f{n}" for n in (2, 4, 8)},
}


def read_tensors(file: Array) -> dict[str, Array]:
    """The tensors of a safetensors file by name.

    They are views of ``file``, which saves a copy. Only bfloat16, which numpy does not know, becomes new arrays of
    float32.

    Args:
        file: uint8 [n]

    Raises:
        ValueError: it is no safetensors file.
    """
    begin = _end_of_header(file)
    try:
        header = json.loads(file[8:begin].tobytes())
        header.pop("__metadata__", None)
        _check_regions([entry["data_offsets"] for entry in header.values()])
        return {name: _view(file[begin:], **entry) for name, entry in header.items()}
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"not a safetensors file with numpy's dtypes: {error}") from error


def read_metadata(file: Array) -> dict[str, str]:
    """The texts that a safetensors file holds beside its tensors, by name.

    Args:
        file: uint8 [n]

    Raises:
        ValueError: it is no safetensors file.
    """
    try:
        metadata = json.loads(file[8 : _end_of_header(file)].tobytes()).get("__metadata__", {})
        return {name: str(text) for name, text in metadata.items()}
    except (AttributeError, RecursionError, ValueError) as error:
        raise ValueError(f"not a safetensors file: {error}") from error


def _end_of_header(file: Array) -> int:
    return 8 + int.from_bytes(file[:8].tobytes(), "little")


def _check_regions(regions: list[tuple[int, int]]) -> None:
    """Check that no two tensors share bytes: else a small file of bfloat16 could become many large arrays.

    Raises:
        ValueError: two tensors share bytes.
    """
    end_before = 0
    for begin, end in sorted(regions):
        if not end_before <= begin <= end:
            raise ValueError(f"expected tensors one after another, found bytes {begin} to {end} after {end_before}")
        end_before = end


def _view(data: Array, dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> Array:
    begin, end = data_offsets
    if dtype == "BF16":  # The upper half of a float32.
        widened: Array = data[begin:end].view("<u2").astype("<u4") << 16
        return widened.view("<f4").reshape(shape)
    return data[begin:end].view(_DTYPES[dtype]).reshape(shape)
