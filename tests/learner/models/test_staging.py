"""Models whose values come from a real GPU, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.config.trainer_config import Precision
from common.data import ModelVersion
from learner.loop.server import LearnerServer
from learner.models.publisher import ModelPublisher
from tests.conftest import MakeConfig
from tests.devices import needs_gpu
from tests.learner.models.newest import newest


def queue_work() -> None:
    """Keep the GPU busy for a moment with kernels that the host does not wait for."""
    square = torch.rand(4096, 4096, device="cuda")
    for _ in range(50):
        square = square @ square / 4096


@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpus_values_are_those_of_the_moment_although_opt_steps_before_and_after_are_still_queued(
    tmp_path: Path, precision: Precision
) -> None:
    tensors = {
        "w": torch.zeros(1000, 1000, device="cuda", requires_grad=True),
        "turned": torch.zeros(3, 5, device="cuda").T,
        "steps": torch.zeros((), dtype=torch.int64, device="cuda"),
        "on_the_host": torch.zeros(2),
    }
    publisher = ModelPublisher(tmp_path / "models", tensors, incarnation=3, precision=precision)
    for step in range(1, 6):
        queue_work()
        with torch.no_grad():
            for tensor in tensors.values():
                tensor.fill_(step + 0.001)
            publisher.publish(opt_steps=step)
            for tensor in tensors.values():
                tensor.fill_(-1)
        publisher.settle(wait=step % 2 == 0)
    publisher.settle(wait=True)
    assert publisher.slots.newest() == ModelVersion(3, 5)
    assert publisher.slots.header.published == 5
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    found = newest(publisher)
    for name, tensor in tensors.items():
        expected = torch.full(tensor.shape, 5.001).to(dtype if tensor.is_floating_point() else tensor.dtype)
        assert torch.equal(found[name], expected), name


@needs_gpu
def test_each_of_a_gpus_models_has_the_version_of_its_values(tmp_path: Path) -> None:
    weights = torch.zeros(1_000_000, device="cuda")
    publisher = ModelPublisher(tmp_path / "models", {"w": weights}, incarnation=3)
    seen = set()
    for step in range(200):
        weights.fill_(step)
        if step % 5 == 0:
            publisher.publish(opt_steps=step)
        publisher.settle()
        if publisher.slots.header.published:
            found = publisher.slots.newest().opt_steps
            assert (newest(publisher)["w"] == found).all()
            seen.add(found)
    publisher.settle(wait=True)
    assert publisher.slots.header.published == 40
    assert len(seen) > 1


@needs_gpu
def test_a_run_on_a_gpu_begins_with_the_model_that_it_has_there(make_config: MakeConfig) -> None:
    agent = {"target": "common.agents.dqn:DQN", "params": {"units": [64, 64]}}
    with LearnerServer(make_config(agent=agent, trainer={"device": "cuda"})) as server:
        assert server.publisher.slots.newest() == ModelVersion(1, 0)
        live = server.learner.agent.model_info()
        assert all(torch.equal(value, live[name].cpu()) for name, value in newest(server.publisher).items())
