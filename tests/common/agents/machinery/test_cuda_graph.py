"""Updates as CUDA graphs give the numbers of eager updates; most of these tests need a GPU."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from common.agents.machinery import cuda_graph
from common.agents.machinery.recording import Recorder
from common.agents.machinery.update import Update
from common.config.trainer_config import ComputingPrecision
from common.testing import ItemMemory
from tests.common.agents.machinery.test_update import KINDS, items, learn
from tests.devices import needs_gpu


@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "rounded_products"])
@pytest.mark.parametrize("name", KINDS)
def test_a_captured_update_on_a_gpu_is_the_eager_one_but_for_the_order_of_sums(
    name: str, precision: ComputingPrecision, caplog: pytest.LogCaptureFixture
) -> None:
    kind = KINDS[name]
    columns = items(*kind[1:])
    captured, eager = (learn(kind, ItemMemory(columns), update, precision, "cuda") for update in ("captured", "eager"))
    rtol, atol = (1e-4, 1e-5) if precision == "float32" else (0.05, 0.02)
    for one, other in zip(captured, eager, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            np.testing.assert_allclose(one[key], value, rtol, atol, err_msg=key)
    assert not caplog.records, "it was captured"


@needs_gpu
def test_an_update_on_a_gpu_that_cannot_be_captured_goes_on_to_draw_random_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    generator, same = (torch.Generator("cuda").manual_seed(3) for _ in range(2))

    def draw_noise(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        noise = torch.randn(4, generator=generator, device="cuda")
        return {"noise": noise + batch["x"].nonzero().sum()}  # The host must know how many there are.

    update = Update(draw_noise, {}, captured=True)
    with caplog.at_level(logging.WARNING):
        found = [update({"x": torch.ones(2, device="cuda")})["noise"] for _ in range(4)]
    expected = [torch.randn(4, generator=same, device="cuda") + 1 for _ in range(4)]
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert [record.getMessage() for record in caplog.records] == ["updates stay eager, as they cannot be captured:"]


def test_operations_whose_results_would_take_too_much_memory_stay_on_one_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder([torch.ones(1000)])
    with recorder:
        result = torch.zeros(1000).exp()
    recorder.end([result])
    assert cuda_graph.plan(recorder.graph, recorder.outside) is not None
    monkeypatch.setattr(cuda_graph, "MAX_BYTES", 4000)
    assert cuda_graph.plan(recorder.graph, recorder.outside) is None
