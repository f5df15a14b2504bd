"""The devices on which tests run: the CPU, and a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest
import torch

Test = TypeVar("Test", bound=Callable[..., Any])

_MARKS: Final = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
_MARKS_OF_TWO: Final = (pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"))
DEVICES: Final = ["cpu", pytest.param("cuda", marks=_MARKS)]


def needs_gpu(test: Test) -> Test:
    """Skip a test where there is no GPU; ``pytest -m gpu`` runs these tests alone."""
    for mark in _MARKS:
        test = mark(test)
    return test


def needs_two_gpus(test: Test) -> Test:
    """Skip a test where there are fewer than two GPUs."""
    for mark in _MARKS_OF_TWO:
        test = mark(test)
    return test
