"""Turns a function of tensors into the fixed list of operations that it runs, without the Python around them.

On a CPU the list works as a CUDA graph does on a GPU (https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/);
on a GPU the list becomes a CUDA graph. Values that are no tensors, such as a learning rate, stay as they were when the
function was traced.

The steps of ``trace``: a ``Recorder`` records the operations as a graph; ``simplify`` drops operations that change no
result; ``_lift_constants`` turns results that are the same in each call into arguments; ``bind`` replaces torch's
dispatch of an operation by name with the C function behind it. On a GPU ``cuda_graph`` does the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from common.agents.machinery import cuda_graph
from common.agents.machinery.binding import bind
from common.agents.machinery.recording import Layout, Recorder
from common.agents.machinery.simplifying import find_constant_results, is_view, simplify

Traced = Callable[..., list[torch.Tensor]]


def trace(function: Traced, inputs: Sequence[torch.Tensor]) -> Traced:
    """Compute ``function`` once, and make a function that computes it again on inputs of the same shapes and dtypes.

    The same kernels run on the same memory in the same order, so results are the same bit for bit.

    Args:
        function: may change memory that it refers to, such as parameters, in place.
        inputs: arguments of this one call.

    Raises:
        Exception: any exception of the function or torch; parts of the function may have been computed.
    """
    recorder = Recorder(inputs)
    with recorder:
        results = function(*inputs)
    recorder.end(results)
    graph = recorder.graph
    simplify(graph)
    constants = _lift_constants(graph, recorder.outside)
    kind = inputs[0].device.type
    on_gpu = kind == "cuda"
    replay: Traced = functools.partial(_make_compute(graph, constants, on_gpu=on_gpu), *constants)
    if torch.is_autocast_enabled(kind):  # The graph has autocast's casts already; they must not come twice.
        replay = torch.autocast(kind, enabled=False)(replay)
    if not on_gpu:
        return replay
    given = [node for node in graph.nodes if node.op == "placeholder"][len(constants) :]
    return cuda_graph.record(replay, inputs, constants, [i for i, node in enumerate(given) if node.users])


def _make_compute(graph: fx.Graph, constants: Sequence[Any], *, on_gpu: bool) -> Traced:
    """Make a function that computes a graph; ``constants`` are the values of its first arguments."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    steps = cuda_graph.plan(graph, dict(zip(placeholders, constants, strict=False))) if on_gpu else None
    with torch.autocast("cuda" if on_gpu else "cpu", enabled=False):
        bind(graph)
    return fx.GraphModule({}, graph).forward if steps is None else cuda_graph.on_streams(graph, steps)


def _lift_constants(graph: fx.Graph, outside: Mapping[fx.Node, Any]) -> list[Any]:
    """Turn values from outside of a graph, views of them and constant results into its first arguments.

    Args:
        graph: changed in place.
        outside: the nodes of the values from outside, with the values.

    Returns:
        The values of these arguments, in their order.
    """
    known = dict(outside)
    for node in graph.nodes:
        if is_view(node) and all(source in known for source in node.all_input_nodes):
            known[node] = node.target(*fx.node.map_arg(node.args, known.__getitem__), **node.kwargs)
    known |= find_constant_results(graph)
    arguments: dict[int, fx.Node] = {}
    constants: list[Any] = []
    first = next(iter(graph.nodes))
    for node, value in known.items():
        if all(user in known for user in node.users):
            continue
        if id(value) not in arguments:
            with graph.inserting_before(first):
                arguments[id(value)] = graph.placeholder(f"constant_{len(constants)}")
            if isinstance(value, torch.Tensor):
                arguments[id(value)].meta["layout"] = Layout.of(value)
            # The graph has autograd's operations already; detached, parameters do not start autograd again.
            constants.append(value.detach() if isinstance(value, torch.Tensor) else value)
        node.replace_all_uses_with(arguments[id(value)], lambda user: user not in known)
    for node in reversed(known):
        graph.erase_node(node)
    graph.eliminate_dead_code()  # Of a loss whose value no one asks for, only the shape was needed.
    graph.lint()
    return constants
