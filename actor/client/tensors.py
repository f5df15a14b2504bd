"""Tensors of a safetensors file (github.com/huggingface/safetensors, 'Format') where they lie."""

from __future__ import annotations

import json

from common.data import Array

_DTYPES = {
    "BOOL": "?",
    **{f"U{8 * n}": f"<u{n}" for n in (1, 2, 4, 8)},
    **{f"I{8 * n}": f"<i{n}" for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": f"<f{n}" for n in (2, 4, 8)},
}


def tensors_of(file: Array) -> dict[str, Array]:
    """By name; views of ``file``, but bfloat16, which numpy does not know, as new arrays of float32.

    Args:
        file: uint8 [n]

    Raises:
        ValueError: it is no such file.
    """
    begin = 8 + int.from_bytes(file[:8].tobytes(), "little")
    try:
        header = json.loads(file[8:begin].tobytes())
        header.pop("__metadata__", None)
        _check_regions([entry["data_offsets"] for entry in header.values()])
        return {name: _tensor(file[begin:], **entry) for name, entry in header.items()}
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"not a safetensors file with numpy's dtypes: {error}") from error


def _check_regions(regions: list[tuple[int, int]]) -> None:
    """See that no two tensors share bytes: a small file could become many large arrays.

    Raises:
        ValueError: two of them do.
    """
    end_before = 0
    for begin, end in sorted(regions):
        if not end_before <= begin <= end:
            raise ValueError(f"expected tensors one after another, found bytes {begin} to {end} after {end_before}")
        end_before = end


def _tensor(data: Array, dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> Array:
    begin, end = data_offsets
    if dtype == "BF16":  # The upper half of a float32.
        widened: Array = data[begin:end].view("<u2").astype("<u4") << 16
        return widened.view("<f4").reshape(shape)
    return data[begin:end].view(_DTYPES[dtype]).reshape(shape)
