"""The devices on which tests run: the CPU, and a GPU where there is one."""

from __future__ import annotations

from typing import Final

import pytest
import torch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES: Final = ["cpu", pytest.param("cuda", marks=needs_gpu)]
