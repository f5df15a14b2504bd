"""Updates as CUDA graphs give the numbers of eager updates; most of these tests need a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from torch import fx

from common.agents.averaging import AVERAGE, average, average_by
from common.agents.impala import IMPALA
from common.agents.machinery import capturing, cuda_graph
from common.agents.machinery.capturing import OperationRecorder
from common.agents.machinery.cuda_graph import PlacedOperation, spread
from common.agents.machinery.update import Update
from common.agents.network_agent import NetworkAgent
from common.agents.ppo import PPO
from common.agents.r2d2 import R2D2
from common.agents.recurrent_ppo import RecurrentPPO
from common.agents.recurrent_sac import RecurrentSAC
from common.config.trainer_config import ComputingPrecision
from common.lanes.building import spec_of
from crossborder.testing import ItemMemory
from crossborder.testing.agent_checks import MakeAgent
from learner.replay.view import View
from learner.views.rollouts import Rollouts
from learner.views.sequences import Sequences
from tests.common.agents.machinery.test_update import KINDS, items, learn
from tests.common.agents.sequences import played_by
from tests.devices import DEVICES, needs_gpu, needs_two_gpus

STAYS_EAGER = "updates stay eager, as they cannot be captured:"


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


WIDTH: Any = {"units": (8,), "batch_size": 8}
MEMORY: Any = {"memory": {"kind": "lstm", "width": 8}}
OF_SEQUENCES: dict[str, tuple[MakeAgent, str, Callable[..., View], dict[str, Any]]] = {
    "R2D2": (partial(R2D2, **WIDTH, **MEMORY), "CartPole-v1", Sequences, {"length": 6, "burn_in": 2}),
    "recurrent SAC": (partial(RecurrentSAC, **WIDTH, **MEMORY), "Pendulum-v1", Sequences, {"length": 6, "burn_in": 2}),
    "PPO": (partial(PPO, **WIDTH, epochs=2), "Pendulum-v1", Rollouts, {"length": 6}),
    "recurrent PPO": (partial(RecurrentPPO, **WIDTH, **MEMORY), "CartPole-v1", Rollouts, {"length": 6}),
    "IMPALA": (partial(IMPALA, **WIDTH), "CartPole-v1", Sequences, {"length": 6, "period": 6}),
}
"""Agents that learn from sequences, each with an environment, a view and the parameters of the view."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OF_SEQUENCES)
def test_a_captured_update_from_sequences_is_the_eager_one_but_for_the_order_of_sums_on_a_gpu(
    name: str, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, env_id, view, params = OF_SEQUENCES[name]
    env = gymnasium.make(env_id)
    spec = spec_of(env)
    memory = played_by(cast(NetworkAgent, make(spec=spec, seed=0)), spec, env, 200, view, **params)
    batches = [memory.batch(8) for _ in range(6)]
    found = []
    for update in ("captured", "eager"):
        agent = make(spec=spec, seed=0, update=update, device=device)
        records = [agent.opt(ItemMemory(batch)) for batch in batches]
        numbers = [{key: float(value) for key, value in (record or {}).items()} for record in records]
        found.append((numbers, agent.training_state().tensors))
    (captured, captured_state), (eager, eager_state) = found
    rtol, atol = (1e-4, 1e-5) if device == "cuda" else (0.0, 0.0)
    for one, other in zip(captured, eager, strict=True):
        assert other, "it has learned"
        assert one == pytest.approx(other, rtol, atol)
    for key, tensor in eager_state.items():
        torch.testing.assert_close(captured_state[key], tensor, rtol=rtol, atol=atol, msg=key)
    assert not caplog.records, "it was captured"


@needs_gpu
def test_an_update_on_a_gpu_that_cannot_be_captured_goes_on_to_draw_random_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    generator, same = (torch.Generator("cuda").manual_seed(3) for _ in range(2))

    def draw_noise(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        noise = torch.randn(4, generator=generator, device="cuda")
        return {"noise": noise + batch["x"].nonzero().sum()}  # The host must know how many there are.

    update, stream = Update(draw_noise, {}, captured=True), torch.cuda.current_stream()
    with caplog.at_level(logging.WARNING):
        found = [update({"x": torch.ones(2, device="cuda")})["noise"] for _ in range(4)]
    expected = [torch.randn(4, generator=same, device="cuda") + 1 for _ in range(4)]
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert [record.getMessage() for record in caplog.records] == [STAYS_EAGER]
    assert torch.cuda.current_stream() == stream


@needs_two_gpus
def test_an_update_of_another_gpu_than_the_current_one_is_captured_there(caplog: pytest.LogCaptureFixture) -> None:
    kind = KINDS["SAC"]
    columns = items(*kind[1:])
    learn(kind, ItemMemory(columns), "captured", device="cuda:0")  # It may have taken the streams of the first GPU.
    captured, eager = (learn(kind, ItemMemory(columns), update, device="cuda:1") for update in ("captured", "eager"))
    for one, other in zip(captured, eager, strict=True):
        for key, value in other.items():
            np.testing.assert_allclose(one[key], value, 1e-4, 1e-5, err_msg=key)
    assert not caplog.records, "it was captured"
    assert torch.cuda.current_device() == 0


@needs_gpu
def test_an_update_that_does_nothing_on_the_gpu_of_its_batch_stays_eager(caplog: pytest.LogCaptureFixture) -> None:
    calls = list[int]()

    def do_nothing(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        calls.append(len(batch))
        return {}

    update = Update(do_nothing, {}, captured=True)
    for _ in range(4):
        update({"x": torch.ones(2, device="cuda")})
    assert len(calls) == 4
    assert [record.getMessage() for record in caplog.records] == [STAYS_EAGER]


def test_operations_whose_results_would_take_too_much_memory_stay_on_one_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = OperationRecorder([torch.ones(1000)])
    with recorder:
        result = torch.zeros(1000).exp()
    recorder.end([result])
    assert cuda_graph.plan(recorder.graph, recorder.outside) is not None
    monkeypatch.setattr(cuda_graph, "MAX_BYTES", 4000)
    assert cuda_graph.plan(recorder.graph, recorder.outside) is None


def record(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[fx.Graph, dict[fx.Node, Any]]:
    """The operations of a function, and the values that it uses from outside."""
    recorder = OperationRecorder(inputs)
    with recorder:
        result = function(*inputs)
    recorder.end([result])
    return recorder.graph, recorder.outside


def summary(steps: Sequence[PlacedOperation]) -> list[tuple[str, int, int]]:
    """Each operation's name and stream, and for how many operations it waits."""
    return [(step.node.target._opname, step.stream, len(step.waits)) for step in steps]  # type: ignore[union-attr]


def test_operations_that_need_each_other_follow_each_other_and_others_have_other_streams() -> None:
    graph, outside = record(lambda x: x.exp().sin() + x.cos().tan(), torch.ones(3))
    steps = spread(graph, outside, 2)
    assert summary(steps) == [("exp", 0, 0), ("sin", 0, 0), ("cos", 1, 0), ("tan", 1, 0), ("add", 1, 1)]


def test_an_operation_on_one_of_few_streams_waits_for_no_operation_before_it_on_that_stream() -> None:
    graph, outside = record(lambda x: x.exp() + x.cos(), torch.ones(3))
    assert summary(spread(graph, outside, 1)) == [("exp", 0, 0), ("cos", 0, 0), ("add", 0, 0)]


def test_memory_is_changed_after_it_has_been_read_and_read_after_it_has_been_changed_also_through_views() -> None:
    weights = torch.ones(4)

    def compute(x: torch.Tensor) -> torch.Tensor:
        before = weights.view(2, 2).exp()
        weights[:2].mul_(x)
        return before.sum() + weights.sin().sum()

    graph, outside = record(compute, torch.full((2,), 3.0))
    steps = {step.node.target._opname: step for step in spread(graph, outside, 4)}  # type: ignore[union-attr]
    order = list(steps)
    assert order.index("exp") < order.index("mul_") < order.index("sin")
    for name, earlier in (("mul_", "exp"), ("sin", "mul_")):
        step = steps[name]
        assert steps[earlier].node in step.waits or steps[earlier].stream == step.stream


def test_means_over_ranks_that_do_not_need_each_other_are_computed_in_their_order() -> None:
    average_by(lambda _: None, 2)
    try:
        graph, outside = record(lambda x: average(x.exp()) + average(x.cos()), torch.ones(3))
    finally:
        average_by(None)
    first, second = (step for step in spread(graph, outside, 4) if step.node.target is AVERAGE)
    assert first.node in second.waits or first.stream == second.stream


def test_a_traced_function_reads_a_part_of_a_weight_after_the_weight_has_been_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights, kept = torch.ones(4), list[PlacedOperation]()

    def compute(x: torch.Tensor) -> list[torch.Tensor]:
        _, part = weights.chunk(2)
        weights.mul_(x)
        return [part.sin()]

    def keep_steps(graph: fx.Graph, constants: Sequence[Any], *, on_gpu: bool) -> fx.GraphModule:
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        kept.extend(spread(graph, dict(zip(placeholders, constants, strict=False)), 4))
        return fx.GraphModule({}, graph)

    monkeypatch.setattr(capturing, "_make_compute", keep_steps)
    capturing.trace(compute, [torch.tensor(3.0)])
    assert summary(kept) == [("mul_", 0, 0), ("sin", 0, 0)]


class AnyOrder:
    """Computes steps in a random order, as streams might: each only after those before it on its stream or awaited."""

    def __init__(self, graph: fx.Graph, steps: Sequence[PlacedOperation], rng: np.random.Generator) -> None:
        self._graph, self._rng = graph, rng
        last: dict[int, fx.Node] = {}
        self._after: dict[fx.Node, set[fx.Node]] = {}
        for step in steps:
            self._after[step.node] = {*step.waits, *([last[step.stream]] if step.stream in last else [])}
            last[step.stream] = step.node

    def __call__(self, *arguments: Any) -> list[torch.Tensor]:
        values = dict(zip(self._graph.nodes, arguments, strict=False))
        left = {node: set(after) for node, after in self._after.items()}
        waiting = [node for node in self._graph.nodes if node.op == "call_function"]
        while waiting:
            ready = [
                node
                for node in waiting
                if not left.get(node) and all(source in values for source in node.all_input_nodes)
            ]
            node = ready[self._rng.integers(len(ready))]
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
            waiting.remove(node)
            for after in left.values():
                after.discard(node)
        results: Any = self._graph.output_node().args[0]
        return [values[node] for node in results]


@pytest.mark.parametrize(
    "name",
    [
        *("double DQN in a burst", "noisy, dueling Munchausen IQN", "Munchausen DQN with spectral norms", "SAC"),
        *("TD3 with AdamW and a schedule", "SAC: no targets (CrossQ)", "SAC: two of five critics (REDQ)"),
    ],
)
def test_updates_on_streams_give_the_numbers_of_eager_updates_in_whatever_order_the_streams_compute(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)

    def compute_in_any_order(graph: fx.Graph, constants: Sequence[Any], *, on_gpu: bool) -> AnyOrder:
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        return AnyOrder(graph, spread(graph, dict(zip(placeholders, constants, strict=False)), 4), rng)

    monkeypatch.setattr(capturing, "_make_compute", compute_in_any_order)
    columns = items(*KINDS[name][1:])
    assert learn(KINDS[name], ItemMemory(columns), "captured") == learn(KINDS[name], ItemMemory(columns), "eager")
