"""Publishing, with values that come at once and with values that come late."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from common.agents.dqn import DQN
from common.config.trainer_config import Precision
from common.data import NO_MODEL, Model, ModelVersion
from common.errors import ConfigError
from common.interfaces import EnvSpec
from learner.loop.server import LearnerServer
from learner.models.publisher import ModelPublisher
from tests.conftest import PATIENCE, MakeConfig, wait_for
from tests.devices import needs_gpu
from tests.learner.models.newest import newest


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64])
def test_a_dtype_that_cannot_travel_is_refused_by_name(tmp_path: Path, dtype: torch.dtype) -> None:
    with pytest.raises(ConfigError, match=f"'w': expected a real dtype that numpy has, or bfloat16, found {dtype}"):
        ModelPublisher(tmp_path / "models", {"w": torch.zeros(2, dtype=dtype)}, incarnation=1)


def test_in_bfloat16_a_model_is_half_the_size_and_its_weights_are_rounded(tmp_path: Path) -> None:
    tensors = {"w": torch.linspace(0, 1, 1000).view(40, 25), "b": torch.full((3,), 1000.3), "steps": torch.tensor(7)}
    full = ModelPublisher(tmp_path / "full", tensors, incarnation=1)
    halved = ModelPublisher(tmp_path / "halved", tensors, incarnation=1, precision="bfloat16")
    halved.publish(opt_steps=1)
    assert halved.blob_bytes < 0.55 * full.blob_bytes
    found = newest(halved)
    assert torch.equal(found["w"], tensors["w"].bfloat16())
    assert torch.equal(found["b"], tensors["b"])
    assert found["steps"] == 7


@pytest.mark.parametrize("shape", [(3,), (4, 3)], ids=["a vector", "a stack of vectors"])
def test_in_bfloat16_actors_normalise_observations_as_the_learner_does(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """bfloat16 would round a mean of 1001.5 to 1000."""
    spec = EnvSpec(Box(-np.inf, np.inf, shape), Discrete(2))
    learner, actor = (DQN(spec, seed=seed, units=[4], normalize_observations=True) for seed in (0, 1))
    rows = torch.from_numpy(np.random.default_rng(0).normal(1001.5, 1, (64, *shape)).astype(np.float32))
    learner.normalizer.merge({"obs": rows})
    publisher = ModelPublisher(tmp_path / "models", learner.model_info(), incarnation=1, precision="bfloat16")
    publisher.publish(opt_steps=1)
    actor.sync_model(Model(ModelVersion(1, 1), {name: t.float().numpy() for name, t in newest(publisher).items()}))
    assert torch.equal(actor.normalizer(rows), learner.normalizer(rows))
    assert all(torch.equal(t, t.bfloat16().float()) == (t.dim() == 2) for t in actor.qnet.state_dict().values())


def test_tied_weights_travel_under_each_of_their_names(tmp_path: Path) -> None:
    weight = torch.zeros(3, 3)
    publisher = ModelPublisher(tmp_path / "models", {"first": weight, "second": weight}, incarnation=1)
    weight.fill_(7)
    publisher.publish(opt_steps=1)
    found = newest(publisher)
    assert [bool((found[name] == 7).all()) for name in ("first", "second")] == [True, True]


@pytest.mark.parametrize("names", [("w", "none"), ("none", "w"), ("none",), ()])
def test_a_tensor_without_elements_and_a_model_without_tensors_travel_too(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    tensors = {name: {"w": torch.ones(3), "none": torch.zeros(0, 4)}[name] for name in names}
    publisher = ModelPublisher(tmp_path / "models", tensors, incarnation=1)
    publisher.publish(opt_steps=1)
    found = newest(publisher)
    assert {name: tensor.shape for name, tensor in found.items()} == {name: t.shape for name, t in tensors.items()}
    assert all(torch.equal(found[name], tensors[name]) for name in names)


class Late:
    """A source whose values arrive at the second look, if nobody waits for them."""

    looks = 2

    def __init__(self, live: list[torch.Tensor], sent: object) -> None:
        self.tensors = [torch.empty_like(tensor) for tensor in live]
        self.waits = 0
        self._live, self._looked = live, 0

    def fetch(self) -> None:
        self._looked, self._fetched = 0, [tensor.clone() for tensor in self._live]

    def has_arrived(self, *, wait: bool) -> bool:
        self._looked += 1
        self.waits += wait
        if not wait and self._looked < self.looks:
            return False
        torch._foreach_copy_(self.tensors, self._fetched)
        return True


class Lost(Late):
    """A source whose values arrive only if they are waited for."""

    looks = 10**9


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[torch.Tensor], ModelPublisher]:
    """Publishes a tensor that comes late."""
    monkeypatch.setattr("learner.models.publisher.make_source", Late)
    return lambda weights: ModelPublisher(tmp_path / "models", {"w": weights}, incarnation=3)


Publisher = Callable[[torch.Tensor], ModelPublisher]


def test_a_model_on_its_way_is_the_newest_once_it_has_arrived_with_the_values_and_version_of_before(
    late: Publisher,
) -> None:
    weights = torch.full((1000,), 1.0)
    publisher = late(weights)
    publisher.publish(opt_steps=1)
    weights.fill_(2.0)
    assert publisher.slots.newest() == NO_MODEL
    arrived_at = time.monotonic()
    publisher.settle()
    assert publisher.slots.newest() == ModelVersion(3, 1)
    assert newest(publisher)["w"].tolist() == [1.0] * 1000
    published_at = publisher.slots.read(lambda blob: blob.published_at)
    assert published_at is not None
    assert published_at >= arrived_at, "nobody could have it before"


def test_a_model_that_is_waited_for_is_the_newest_afterwards_and_only_once(late: Publisher) -> None:
    publisher = late(torch.zeros(1000))
    publisher.publish(opt_steps=1)
    for _ in range(3):
        publisher.settle(wait=True)
    assert publisher.slots.header.published == 1


def test_a_model_that_is_due_while_another_is_on_its_way_waits_for_that(late: Publisher) -> None:
    weights = torch.full((1000,), 1.0)
    publisher = late(weights)
    publisher.publish(opt_steps=1)
    weights.fill_(2.0)
    publisher.publish(opt_steps=2)
    assert publisher.slots.newest() == ModelVersion(3, 1)
    assert newest(publisher)["w"].tolist() == [1.0] * 1000
    publisher.settle(wait=True)
    assert publisher.slots.newest() == ModelVersion(3, 2)
    assert newest(publisher)["w"].tolist() == [2.0] * 1000


def test_a_run_has_its_first_model_before_anyone_may_join_and_its_last_one_in_the_end(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor's agent fails when the version of a model is not that of its values."""
    monkeypatch.setattr("learner.models.publisher.make_source", Late)
    config = make_config(replay={"samples_per_insert": 8.0}, trainer={"max_opts": 95})
    with LearnerServer(config, local_actors=1) as server:
        slots = server.publisher.slots
        assert slots.newest() == ModelVersion(1, 0)
        server.train()
    assert slots.newest() == ModelVersion(1, 95)
    assert slots.header.published == 11


def test_a_model_becomes_the_newest_while_opt_steps_go_on(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.models.publisher.make_source", Late)
    config = make_config(trainer={"max_opts": 95, "sync_interval": 50})
    with LearnerServer(config, local_actors=1) as server:
        server.train()
    source = server.publisher._source
    assert isinstance(source, Late)
    assert source.waits == 2, "the first and the last, but not the one between"


def test_a_model_becomes_the_newest_while_items_are_waited_for(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.models.publisher.make_source", Lost)
    with LearnerServer(make_config()) as server, ThreadPoolExecutor() as pool:
        server.learner.publish(40)
        training = pool.submit(server.train)
        wait_for(lambda: server.publisher.slots.newest().opt_steps == 40, "the model")
        server.learner.request_stop()
        assert training.result(PATIENCE).opt_steps == 0


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
        expected = torch.full(tensor.shape, 5.001).to(dtype if tensor.dim() == 2 else tensor.dtype)
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
