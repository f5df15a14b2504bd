"""A function of tensors as the fixed list of operations that it comes down to, called without the Python around them.

It is what a CUDA graph is for a GPU (https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/), and on one it
becomes such a graph. Whatever is no tensor, such as a learning rate, stays what it was when the function was traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

Traced = Callable[..., list[torch.Tensor]]
aten = torch.ops.aten


def trace(function: Traced, inputs: Sequence[torch.Tensor]) -> Traced:
    """Compute ``function`` once, and give what computes it again on inputs of the same shapes and dtypes.

    The same kernels run on the same memory in the same order, so results are the same bit for bit.

    Args:
        function: may change memory that it refers to, such as parameters, in place.
        inputs: of this call.

    Raises:
        Exception: whatever the function or torch raises; parts of the function may have been computed.
    """
    module = make_fx(function)(*inputs)
    _simplify(module.graph)
    constants = _lift_constants(module)
    kind = inputs[0].device.type
    with torch.autocast(kind, enabled=False):
        _bind(module.graph)
    module.recompile()
    replay: Traced = functools.partial(module.forward, *constants)
    if torch.is_autocast_enabled(kind):  # Its casts have been traced.
        replay = torch.autocast(kind, enabled=False)(replay)
    return _as_cuda_graph(replay, inputs, constants) if kind == "cuda" else replay


def _simplify(graph: fx.Graph) -> None:
    """Drop what changes no result: profiler marks, detaching, transposing back and forth."""
    for node in reversed(graph.nodes):
        if "record_function" in str(node.target):
            graph.erase_node(node)
    for node in graph.nodes:
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
    graph.eliminate_dead_code()


def _lift_constants(module: fx.GraphModule) -> list[Any]:
    """Turn the tensors and generators that a graph refers to, and views of them, into its first arguments: these."""
    graph = module.graph
    known = {node: _attribute(module, node) for node in graph.nodes if node.op == "get_attr"}
    for node in graph.nodes:
        if _is_view(node) and all(source in known for source in node.all_input_nodes):
            known[node] = node.target(*fx.node.map_arg(node.args, known.__getitem__), **node.kwargs)
    arguments: dict[int, fx.Node] = {}
    constants: list[Any] = []
    first = next(iter(graph.nodes))
    for node, value in known.items():
        if all(user in known for user in node.users):
            continue
        if id(value) not in arguments:
            with graph.inserting_before(first):
                arguments[id(value)] = graph.placeholder(f"constant_{len(constants)}")
            arguments[id(value)].meta["val"] = value
            # What autograd does has been traced: it need not look at parameters again.
            constants.append(value.detach() if isinstance(value, torch.Tensor) else value)
        node.replace_all_uses_with(arguments[id(value)], lambda user: user not in known)
    for node in reversed(known):
        graph.erase_node(node)
    graph.lint()
    return constants


def _attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    return getattr(module, str(node.target))


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _bind(graph: fx.Graph) -> None:
    """Call operations by torch's own functions where these come to the same: half of a look-up by name."""
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and not _is_random(node.target):
            name = node.target._opname
            functions = (getattr(home, name, None) for home in (torch, torch._C._nn, torch.Tensor))
            node.target = next((found for found in functions if _comes_to(found, node)), node.target)


def _comes_to(function: object, node: fx.Node) -> bool:
    """Whether it is a function in C that, called as the node's operation is, makes that very call and no other."""
    if not isinstance(function, BuiltinFunctionType | MethodDescriptorType):
        return False
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda argument: _blank(argument.meta["val"]))
    calls = _Calls()
    with calls:
        try:
            function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - it takes other arguments, or none of zeros
            return False
    return calls.made == [(node.target, _by_identity((args, kwargs)))]


class _Calls(TorchDispatchMode):
    """The operations that are called while it is entered, and with what."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[tuple[object, object]] = []

    def __torch_dispatch__(
        self, operation: Callable[..., Any], _: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.made.append((operation, _by_identity((args, kwargs))))
        return operation(*args, **kwargs)


def _by_identity(arguments: object) -> object:
    """To be compared: tensors are equal if they are the same."""
    return tree_map_only(torch.Tensor, id, arguments)


def _is_random(operation: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in operation.tags


def _blank(value: torch.Tensor) -> torch.Tensor:
    """One of the same kind; of zeros, since numbers may be indices."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).zero_()


def _as_cuda_graph(call: Traced, inputs: Sequence[torch.Tensor], constants: Sequence[Any]) -> Traced:
    """The same as one launch: inputs are copied to where the graph expects them, results from where it puts them."""
    held = [column.clone() for column in inputs]
    graph = torch.cuda.CUDAGraph()
    for constant in constants:
        if isinstance(constant, torch.Generator):
            graph.register_generator_state(constant)
    with torch.cuda.graph(graph):  # Records; computes nothing.
        results = call(*held)

    def launch(*again: torch.Tensor) -> list[torch.Tensor]:
        torch._foreach_copy_(held, again)
        graph.replay()
        return [result.clone() for result in results]

    return launch
