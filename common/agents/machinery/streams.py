"""Spreads the operations of a graph over several CUDA streams, so that a GPU computes independent operations together.

The kernels of a small network fill a small part of a GPU: the two critics of SAC, or the gradients of a layer's weights
and of its inputs, can be computed at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from common.agents.machinery.simplifying import is_view


class Step(NamedTuple):
    """An operation that computes on the GPU.

    Args:
        node: of the graph.
        stream: the number of its stream.
        waits: operations of other streams that must end before it begins.
    """

    node: fx.Node
    stream: int
    waits: tuple[fx.Node, ...]


def spread(graph: fx.Graph, values: Mapping[fx.Node, Any], n_streams: int) -> list[Step]:
    """Give each operation of a graph a stream, in the order of the graph.

    Two operations keep their order if one of them changes memory that the other one uses.

    Args:
        graph: of torch's operations, not bound to other functions.
        values: the values of the placeholders that are no inputs; some tensors among them may share memory.
        n_streams: the number of streams, at least 1.
    """
    memory = _Memory(graph, values)
    lanes = _Lanes(n_streams)
    return [lanes.place(node, memory.find_earlier(node)) for node in graph.nodes if memory.computes(node)]


class _Memory:
    """The memory that each node of a graph uses, and the operations that used it last.

    A piece of memory is named by any hashable value: the number of a storage, or the node that allocates it.
    """

    def __init__(self, graph: fx.Graph, values: Mapping[fx.Node, Any]) -> None:
        self._of: dict[fx.Node, Any] = {}
        self._written: dict[Any, fx.Node] = {}
        self._read: defaultdict[Any, list[fx.Node]] = defaultdict(list)
        self._operations = set[fx.Node]()
        for node in graph.nodes:
            source = _find_source(node)
            if source is not None:
                self._of[node] = self._of[source]
            else:
                value = values.get(node)
                self._of[node] = value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else node
            if node.op == "call_function" and not is_view(node):
                self._operations.add(node)

    def computes(self, node: fx.Node) -> bool:
        """Whether the node computes: it is no argument, no view and no result of the graph."""
        return node in self._operations

    def find_earlier(self, node: fx.Node) -> set[fx.Node]:
        """The operations that must end before this one; called once for each operation, in the order of the graph."""
        written = {self._of[each] for each in _find_written(node)}
        written.add(self._of[node])
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


def _find_written(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments of an operation whose memory it changes, and generators of random numbers that it draws from."""
    target: Any = node.target
    for i, argument in enumerate(target._schema.arguments):
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name == "generator":
            yield from _nodes_in(given)


def _nodes_in(given: object) -> Iterator[fx.Node]:
    if isinstance(given, fx.Node):
        yield given
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _nodes_in(each)


class _Lanes:
    """Places operations on streams, one after another, and knows which of them each stream has waited for."""

    def __init__(self, n: int) -> None:
        self._ends: list[list[fx.Node]] = [[] for _ in range(n)]
        self._numbers: dict[fx.Node, int] = {}
        """The number of each operation in the order of the graph."""
        self._place: dict[fx.Node, tuple[int, int]] = {}
        """The stream of an operation, and its number in that stream, from 1 on."""
        self._seen: dict[fx.Node, list[int]] = {}
        """For each operation, how many operations of each stream have ended when it ends."""

    def place(self, node: fx.Node, earlier: Iterable[fx.Node]) -> Step:
        """Choose a stream for an operation that begins after ``earlier`` operations."""
        others = sorted(earlier, key=self._numbers.__getitem__, reverse=True)  # The latest first.
        known = self._merge(others)
        stream = self._choose(others, known)
        mine, waits = self._ends[stream], list[fx.Node]()
        seen = list(self._seen[mine[-1]]) if mine else [0] * len(self._ends)
        for other in others:
            lane, number = self._place[other]
            if seen[lane] < number:
                waits.append(other)
                seen = [max(pair) for pair in zip(seen, self._seen[other], strict=True)]
        mine.append(node)
        self._numbers[node] = len(self._numbers)
        seen[stream] = len(mine)
        self._place[node], self._seen[node] = (stream, len(mine)), seen
        return Step(node, stream, tuple(waits))

    def _merge(self, nodes: Sequence[fx.Node]) -> list[int]:
        """How many operations of each stream have ended when all of these have."""
        return [max((self._seen[node][i] for node in nodes), default=0) for i in range(len(self._ends))]

    def _choose(self, earlier: Sequence[fx.Node], known: Sequence[int]) -> int:
        """The stream of the latest of the earlier operations if it is that stream's last; otherwise the emptiest one.

        The emptiest stream has the fewest operations that this one need not wait for.
        """
        for node in earlier:
            stream, number = self._place[node]
            if number == len(self._ends[stream]):
                return stream
        return min(range(len(self._ends)), key=lambda i: len(self._ends[i]) - known[i])
