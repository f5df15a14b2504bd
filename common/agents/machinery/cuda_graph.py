"""Records operations as a CUDA graph, which a GPU computes without the host between them.

See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs. Independent operations are spread over several
streams, since the kernels of a small network fill a small part of a GPU: the two critics of SAC, or the gradients of a
layer's weights and of its inputs, can be computed at the same time.
"""

from __future__ import annotations

import gc
import operator
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import fx

from common.agents.averaging import AVERAGE

aten = torch.ops.aten
_UNDECLARED_VIEWS: Final = frozenset({aten._unsafe_view.default})
"""Operations whose result has the memory of their argument, although their schema does not say it."""


def is_view(node: fx.Node) -> bool:
    """Whether a node makes another tensor of the same memory, or takes one of several tensors, without computing."""
    if node.target is operator.getitem or node.target in _UNDECLARED_VIEWS:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


class PlacedOperation(NamedTuple):
    """An operation that computes on the GPU.

    Args:
        node: of the graph.
        stream: the number of its stream.
        waits: operations of other streams that must end before it begins.
    """

    node: fx.Node
    stream: int
    waits: tuple[fx.Node, ...]


def spread(graph: fx.Graph, values: Mapping[fx.Node, Any], n_streams: int) -> list[PlacedOperation]:
    """Give each operation of a graph a stream, in the order of the graph.

    Two operations keep their order if one of them changes memory that the other one uses.

    Args:
        graph: of torch's operations, not bound to other functions.
        values: the values of the placeholders that are no inputs; some tensors among them may share memory.
        n_streams: the number of streams, at least 1.
    """
    memory = _Memory(graph, values)
    lanes = _Lanes(n_streams)
    operations = [node for node in graph.nodes if node.op == "call_function" and not is_view(node)]
    return [lanes.place(node, memory.find_earlier(node)) for node in operations]


class _Memory:
    """The memory that each node of a graph uses, and the operations that used it last.

    A piece of memory is named by any hashable value: the number of a storage, or the node that allocates it.
    ``AVERAGE`` stands for the order in which ranks average.
    """

    def __init__(self, graph: fx.Graph, values: Mapping[fx.Node, Any]) -> None:
        self._of: dict[fx.Node, Any] = {}
        self._written: dict[Any, fx.Node] = {}
        self._read: defaultdict[Any, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            source, value = _find_source(node), values.get(node)
            if source is not None:
                self._of[node] = self._of[source]
            else:
                self._of[node] = value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else node

    def find_earlier(self, node: fx.Node) -> set[fx.Node]:
        """The operations that must end before this one; called once for each operation, in the order of the graph."""
        written = {self._of[each] for each in _find_written(node)} | {self._of[node]}
        if node.target is AVERAGE:
            written.add(AVERAGE)  # As if they wrote to one place: ranks must average in one order.
        used = {self._of[each] for each in node.all_input_nodes}
        earlier = {self._written[each] for each in used | written if each in self._written}
        for each in written:
            earlier.update(self._read.pop(each, ()))
            self._written[each] = node
        for each in used - written:
            self._read[each].append(node)
        return earlier


def _find_source(node: fx.Node) -> fx.Node | None:
    """The argument whose memory the result of a node has; None if the result has memory of its own."""
    if node.op != "call_function":
        return None
    target: Any = node.target
    source = node.args[0] if node.args else None
    shares = is_view(node) or any(result.alias_info is not None for result in target._schema.returns)
    return source if shares and isinstance(source, fx.Node) else None


def _find_written(node: fx.Node) -> list[fx.Node]:
    """The arguments of an operation whose memory it changes, and generators of random numbers that it draws from."""
    target: Any = node.target
    found: list[fx.Node] = []
    for i, argument in enumerate(target._schema.arguments):
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name == "generator":
            fx.node.map_arg(given, found.append)
    return found


class _Lanes:
    """Places operations on streams, one after another, and knows which of them each stream has waited for."""

    def __init__(self, n: int) -> None:
        self._ends: list[list[fx.Node]] = [[] for _ in range(n)]
        self._place: dict[fx.Node, tuple[int, int]] = {}
        """The stream of an operation, and its number in that stream, from 1 on; operations are in the graph's order."""
        self._seen: dict[fx.Node, list[int]] = {}
        """For each operation, how many operations of each stream have ended when it ends."""

    def place(self, node: fx.Node, earlier: set[fx.Node]) -> PlacedOperation:
        """Choose a stream for an operation that begins after ``earlier`` operations."""
        others = [other for other in reversed(self._place) if other in earlier]  # The latest first.
        stream = self._choose(others)
        mine, waits = self._ends[stream], list[fx.Node]()
        seen = list(self._seen[mine[-1]]) if mine else [0] * len(self._ends)
        for other in others:
            lane, number = self._place[other]
            if seen[lane] < number:
                waits.append(other)
                seen = [max(pair) for pair in zip(seen, self._seen[other], strict=True)]
        mine.append(node)
        seen[stream] = len(mine)
        self._place[node], self._seen[node] = (stream, len(mine)), seen
        return PlacedOperation(node, stream, tuple(waits))

    def _choose(self, earlier: Sequence[fx.Node]) -> int:
        """The stream of the latest of the earlier operations if it is that stream's last; otherwise the emptiest one.

        The emptiest stream has the fewest operations that this one need not wait for.
        """
        for node in earlier:
            stream, number = self._place[node]
            if number == len(self._ends[stream]):
                return stream
        ended = [max((self._seen[node][i] for node in earlier), default=0) for i in range(len(self._ends))]
        return min(range(len(self._ends)), key=lambda i: len(self._ends[i]) - ended[i])


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
        Exception: torch cannot record a call, or nothing ran on the GPU of the inputs. The generators go on as if
            nothing had been recorded.
    """
    held = [column.clone() for column in inputs]
    graph, device = torch.cuda.CUDAGraph(), held[0].device
    generators = [constant for constant in constants if isinstance(constant, torch.Generator)]
    states = [generator.clone_state() for generator in generators]
    for generator in generators:
        graph.register_generator_state(generator)
    try:
        with (
            _without_collecting(),
            _refusing_empty_graphs(),
            torch.cuda.device(device),  # Operations run on the GPU of their tensors, but torch records the current one.
            torch.cuda.stream(torch.cuda.current_stream()),  # After a failure torch leaves its stream of recording set.
            # That stream is by default on the GPU that recorded first. Other threads may use the GPU meanwhile.
            torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"),  # type: ignore[no-untyped-call]
        ):
            results = compute(*held)
    except Exception:
        for generator, state in zip(generators, states, strict=True):
            generator.graphsafe_set_state(state)
        raise
    groups_in, groups_out = _group_by_dtype({i: held[i] for i in used}), _group_by_dtype(dict(enumerate(results)))

    def launch(*given: torch.Tensor) -> list[torch.Tensor]:
        for places in groups_in:
            _copy([held[i] for i in places], [given[i] for i in places])
        graph.replay()
        copies = [torch.empty_like(result) for result in results]
        for places in groups_out:
            _copy([copies[i] for i in places], [results[i] for i in places])
        return copies

    launch.constants = constants  # type: ignore[attr-defined] # Kept alive: the graph has only their addresses.
    return launch


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


@contextmanager
def _refusing_empty_graphs() -> Iterator[None]:
    """Raise torch's warning of a graph without operations, which ran on another GPU: each launch would do nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The CUDA Graph is empty")
        yield


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


def plan(graph: fx.Graph, constants: Mapping[fx.Node, Any]) -> list[PlacedOperation] | None:
    """Spread the operations of a graph over streams; None if their results would take too much memory.

    Args:
        graph: of torch's operations, not bound to other functions.
        constants: the values of its first arguments, by node.
    """
    layouts = (node.meta["layout"] for node in graph.nodes if node.op == "call_function" and "layout" in node.meta)
    n_bytes = sum(layout.shape.numel() * layout.dtype.itemsize for layout in layouts)
    return spread(graph, constants, N_STREAMS) if n_bytes <= MAX_BYTES else None


def on_streams(graph: fx.Graph, steps: Sequence[PlacedOperation]) -> Compute:
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
