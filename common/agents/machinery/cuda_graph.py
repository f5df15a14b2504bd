"""Records operations as a CUDA graph, which a GPU computes without the host between them.

See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import fx

from common.agents.machinery.streams import Step, spread

Compute = Callable[..., list[torch.Tensor]]
N_STREAMS: Final = 4
MAX_BYTES: Final = 256 << 20
"""The most bytes of intermediate results that operations on several streams may take. None of them shares memory with a
later one, which another stream could overwrite too early. Larger operations fill a GPU by themselves."""

_SINGLY_COPIED: Final = frozenset({torch.uint16, torch.uint32, torch.uint64})
"""The dtypes of which torch copies one tensor at a time."""


def record(compute: Compute, inputs: Sequence[torch.Tensor], constants: Sequence[Any], used: Sequence[int]) -> Compute:
    """Record a function as a CUDA graph, without computing it, and make a function that launches the graph.

    A graph reads and writes fixed memory. So each launch first copies its inputs into memory of the graph, and copies
    the results into new tensors afterwards.

    Args:
        compute: makes the same calls of torch each time.
        inputs: arguments of the shapes and dtypes of all later calls.
        constants: other tensors and generators that the function uses.
        used: the places of the inputs that the function uses; the others are not copied.

    Raises:
        Exception: torch cannot record a call. The generators go on as if nothing had been recorded.
    """
    held = [column.clone() for column in inputs]
    graph = torch.cuda.CUDAGraph()
    generators = [constant for constant in constants if isinstance(constant, torch.Generator)]
    states = [generator.clone_state() for generator in generators]
    for generator in generators:
        graph.register_generator_state(generator)
    try:
        # Other threads may use the GPU meanwhile.
        with _without_collecting(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = compute(*held)
    except Exception:
        for generator, state in zip(generators, states, strict=True):
            generator.graphsafe_set_state(state)
        raise
    return _Launch(graph, held, used, results, constants)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Collect no garbage: it may hold another CUDA graph, which cannot be freed while one is recorded."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Launch:
    """Launches a CUDA graph.

    Args:
        graph: recorded.
        held: its inputs.
        used: the places of the inputs that it uses.
        results: its results.
        constants: kept alive here, since the graph has only their addresses.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        held: list[torch.Tensor],
        used: Sequence[int],
        results: list[torch.Tensor],
        constants: Sequence[Any],
    ) -> None:
        self._graph, self._held, self._results, self._constants = graph, held, results, constants
        self._inputs_by_dtype = _group_by_dtype({i: held[i] for i in used})
        self._results_by_dtype = _group_by_dtype(dict(enumerate(results)))

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        for places in self._inputs_by_dtype:
            _copy([self._held[i] for i in places], [inputs[i] for i in places])
        self._graph.replay()
        copies = [torch.empty_like(result) for result in self._results]
        for places in self._results_by_dtype:
            _copy([copies[i] for i in places], [self._results[i] for i in places])
        return copies


def _group_by_dtype(tensors: Mapping[int, torch.Tensor]) -> list[list[int]]:
    """The places of the tensors of each dtype."""
    places: defaultdict[torch.dtype, list[int]] = defaultdict(list)
    for i, tensor in tensors.items():
        places[tensor.dtype].append(i)
    return list(places.values())


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy tensors of one dtype, in one kernel if torch has a kernel for this dtype."""
    if targets[0].dtype in _SINGLY_COPIED:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    else:
        torch._foreach_copy_(targets, sources)


def plan(graph: fx.Graph, constants: Mapping[fx.Node, Any]) -> list[Step] | None:
    """Spread the operations of a graph over streams; None if their results would take too much memory.

    Args:
        graph: of torch's operations, not bound to other functions.
        constants: the values of its first arguments, by node.
    """
    layouts = (node.meta["layout"] for node in graph.nodes if node.op == "call_function" and "layout" in node.meta)
    n_bytes = sum(layout.shape.numel() * layout.dtype.itemsize for layout in layouts)
    return spread(graph, constants, N_STREAMS) if n_bytes <= MAX_BYTES else None


def on_streams(graph: fx.Graph, steps: Sequence[Step]) -> Compute:
    """Make a function that computes a graph, its operations on the streams of ``steps``; only for ``record``.

    Args:
        graph: whose arguments are the arguments of the function.
        steps: the operations, in the order of the graph.
    """
    by_node = {step.node: step for step in steps}
    awaited = {node for step in steps for node in step.waits}

    def compute(*arguments: Any) -> list[torch.Tensor]:
        main: Any = torch.cuda.current_stream()
        streams: list[Any] = [main, *(torch.cuda.Stream() for _ in range(N_STREAMS - 1))]  # type: ignore[no-untyped-call]
        for stream in streams[1:]:
            stream.wait_stream(main)
        values = dict(zip(graph.nodes, arguments, strict=False))  # All stay alive until the end; see MAX_BYTES.
        events: dict[fx.Node, Any] = {}
        for node in list(graph.nodes)[len(arguments) : -1]:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            step = by_node.get(node)
            if step is None:  # It is a view.
                values[node] = node.target(*args, **kwargs)
                continue
            stream = streams[step.stream]
            for other in step.waits:
                stream.wait_event(events[other])
            with torch.cuda.stream(stream):
                values[node] = node.target(*args, **kwargs)
            if node in awaited:
                events[node] = stream.record_event()
        for stream in streams[1:]:
            main.wait_stream(stream)
        results: Any = graph.output_node().args[0]
        return [values[node] for node in results]

    return compute
