"""Drops operations from a graph that change no result, and finds operations whose result is the same in each call.

In an update of a small network each operation costs more than its arithmetic: about 4 µs, since the products before it
have filled the processor's caches.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import fx

aten = torch.ops.aten
_FILLS: Final = frozenset(
    {
        aten.full.default,
        aten.full_like.default,
        aten.new_full.default,
        aten.new_ones.default,
        aten.new_zeros.default,
        aten.ones.default,
        aten.ones_like.default,
        aten.scalar_tensor.default,
        aten.zeros.default,
        aten.zeros_like.default,
    }
)
"""Operations whose result depends on the shape of their arguments and not on the values."""
_UNDECLARED_VIEWS: Final = frozenset({aten._unsafe_view.default})
"""Operations whose result has the memory of their argument, although their schema does not say it."""


def is_view(node: fx.Node) -> bool:
    """Whether a node makes another tensor of the same memory, or takes one of several tensors, without computing."""
    if node.target is operator.getitem or node.target in _UNDECLARED_VIEWS:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def simplify(graph: fx.Graph) -> None:
    """Drop detaching, transposing back and forth, and views of the same shape."""
    for node in graph.nodes:
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
        elif node.target is aten.view.default:
            _simplify_view(node)
    graph.eliminate_dead_code()


def _simplify_view(node: fx.Node) -> None:
    """Drop a view of the same shape; let a sum that is only viewed without the summed dimension drop that dimension."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    shape, summed = node.meta["layout"].shape, source.args[1:3]
    if shape == source.meta["layout"].shape:
        node.replace_all_uses_with(source)
    elif (
        source.target is aten.sum.dim_IntList
        and summed == ([0], True)
        and shape == source.meta["layout"].shape[1:]
        and len(source.users) == 1
    ):
        source.args = (source.args[0], [0])
        source.meta["layout"] = node.meta["layout"]
        node.replace_all_uses_with(source)


def find_constant_results(graph: fx.Graph) -> dict[fx.Node, Any]:
    """Compute the results that are the same in each call, such as the gradient of a loss with respect to itself.

    A tensor that the graph changes later or returns must be made again in each call, so it does not count.
    """
    written = _find_written(graph)
    constants: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or node in written:
            continue
        if torch.Tag.nondeterministic_seeded in node.target.tags or node.target._schema.is_mutable:
            continue
        sources = node.all_input_nodes
        if node.target in _FILLS:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda source: source.meta["layout"].make_zeros())
        elif sources and all(source in constants for source in sources):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), constants.__getitem__)
        else:
            continue
        constants[node] = node.target(*args, **kwargs)
    return constants


def _find_written(graph: fx.Graph) -> set[fx.Node]:
    """Find the nodes whose memory an operation changes, or which the graph returns."""
    written: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output":
            written.update(node.all_input_nodes)
        elif is_view(node):
            if node in written:
                written.update(node.all_input_nodes)
        elif isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            written.update(node.all_input_nodes)  # Also those that it only reads: few of them are constants.
    return written
