"""Exports that begin sooner: torch's exporter parses the source of all its functions anew for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest


@pytest.fixture(autouse=True, scope="module")
def known_functions() -> Iterator[None]:
    """Keep the functions that torch's exporter has parsed, half of the time that an export of a small policy takes."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry  # It imports torch, which few tests need.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield
