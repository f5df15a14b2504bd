"""Reads tensors and meta data of a safetensors file, without the library of that name, which an actor does not have.

The format is that of github.com/huggingface/safetensors, section 'Format'.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from common.data import Array
from common.depth import parse_json

_DTYPES: Final = {
    "BOOL": "?",
    **{f"U{8 * n}": f"<u{n}" for n in (1, 2, 4, 8)},
    **{f"I{8 * n}": f"<i{n}" for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": f"<f{n}" for n in (2, 4, 8)},
}

_NO_FILE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""The errors that reading raises if a file is none."""


def read_tensors(file: Array) -> dict[str, Array]:
    """The tensors of a safetensors file by name.

    They are views of ``file``, which saves a copy. Only bfloat16, which numpy does not know, becomes new arrays of
    float32.

    Args:
        file: uint8 [n]

    Raises:
        ValueError: it is no safetensors file.
    """
    try:
        header, data = _split(file)
        header.pop("__metadata__", None)
        _check_regions([entry["data_offsets"] for entry in header.values()], data.size)
        return {name: _view(data, **entry) for name, entry in header.items()}
    except _NO_FILE as error:
        raise ValueError(f"not a safetensors file with numpy's dtypes: {error}") from error


def read_metadata(file: Array) -> dict[str, str]:
    """The texts that a safetensors file holds beside its tensors, by name.

    Args:
        file: uint8 [n]

    Raises:
        ValueError: it is no safetensors file.
    """
    try:
        header, _ = _split(file)
        return {name: str(text) for name, text in header.get("__metadata__", {}).items()}
    except _NO_FILE as error:
        raise ValueError(f"not a safetensors file: {error}") from error


def _split(file: Array) -> tuple[dict[str, Any], Array]:
    """The header of a file, and the bytes of its tensors.

    Python reads more than JSON, and JSON allows more than the format: other encodings, a name twice, negative numbers.
    """
    begin = 8 + int.from_bytes(file[:8].tobytes(), "little")
    text = file[8:begin].tobytes().decode("utf-8")
    if not text.startswith("{"):
        raise ValueError("expected a header that begins with '{'")
    header: dict[str, Any] = parse_json(
        text, object_pairs_hook=_make_object, parse_int=_parse_count, parse_float=_refuse, parse_constant=_refuse
    )
    if not all(isinstance(value, str) for value in header.get("__metadata__", {}).values()):
        raise ValueError("expected texts as __metadata__")
    return header, file[begin:]


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"expected each name once, found one twice among {len(pairs)}")
    for name in found:
        name.encode()  # Half of a surrogate pair, which Python reads, is no text.
    return found


def _parse_count(text: str) -> int:
    return int(text) if text.isdigit() else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"expected whole numbers from 0, found {text}")


def _check_regions(regions: list[tuple[int, int]], size: int) -> None:
    """Check that tensors lie one after another and fill the file: else a small file could become many large arrays."""
    end_before = 0
    for begin, end in sorted(regions):
        if not begin == end_before <= end:
            raise ValueError(f"expected tensors one after another, found bytes {begin} to {end} after {end_before}")
        end_before = end
    if end_before != size:
        raise ValueError(f"expected {end_before} bytes of tensors, found {size}")


def _view(data: Array, dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> Array:
    begin, end = data_offsets
    if not all(type(number) is int for number in (*shape, begin, end)):  # True is 1 to numpy.
        raise ValueError(f"expected whole numbers, found {shape} and {data_offsets}")
    if dtype == "BF16":  # The upper half of a float32.
        widened: Array = data[begin:end].view("<u2").astype("<u4") << 16
        return widened.view("<f4").reshape(shape)
    return data[begin:end].view(_DTYPES[dtype]).reshape(shape)
