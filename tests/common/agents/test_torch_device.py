from __future__ import annotations

from typing import Any

import pytest
import torch

from common.agents.torch_device import making_float32, require_device
from common.errors import ConfigError
from tests.devices import needs_gpu


def test_a_device_that_exists_is_returned() -> None:
    assert require_device("cpu") == torch.device("cpu")


@needs_gpu
def test_a_gpu_that_computes_is_returned() -> None:
    assert require_device("cuda:0") == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu0", "expected a device such as cpu, cuda or cuda:1, found 'gpu0'"),
        ("cuda:99", r"expected one of \d GPUs that torch finds here, found cuda:99"),
        (None, "expected a device such as cpu, cuda or cuda:1, found None"),
        ("mps", "expected a device that torch can use here, found mps: "),
        ("meta", "expected a device that torch can use here, found meta: "),  # It has tensors, but computes nothing.
    ],
)
def test_a_device_that_does_not_exist_or_does_not_compute_is_refused(text: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^trainer.device: {told}"):
        require_device(text)


def test_the_default_dtype_of_a_program_comes_back_when_the_last_context_ends_in_whatever_order_they_do() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        first, second = making_float32(), making_float32()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() is torch.float32
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
