"""Turns a function of tensors into the fixed list of operations that it runs, without the Python around them.

On a CPU the list works as a CUDA graph does on a GPU (https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/);
on a GPU the list becomes a CUDA graph. Values that are no tensors, such as a learning rate, stay as they were when the
function was traced.

The steps of ``trace``: torch records the operations as a graph, ``_simplify`` drops those that change no result,
``_lift_constants`` turns parameters into arguments, so that no attribute is looked up, and ``_bind`` replaces torch's
dispatch of an operation by name with the C function behind it.
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
    """Compute ``function`` once, and make a function that computes it again on inputs of the same shapes and dtypes.

    The same kernels run on the same memory in the same order, so results are the same bit for bit.

    Args:
        function: may change memory that it refers to, such as parameters, in place.
        inputs: arguments of this one call.

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
    if torch.is_autocast_enabled(kind):  # The graph has autocast's casts already; they must not come twice.
        replay = torch.autocast(kind, enabled=False)(replay)
    return _as_cuda_graph(replay, inputs, constants) if kind == "cuda" else replay


def _simplify(graph: fx.Graph) -> None:
    """Drop operations that change no result: profiler marks, detaching, transposing back and forth."""
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
    """Turn the tensors and generators that a graph refers to, and views of them, into its first arguments.

    Returns:
        The values of these arguments, in their order.
    """
    graph = module.graph
    known = {node: getattr(module, str(node.target)) for node in graph.nodes if node.op == "get_attr"}
    for node in graph.nodes:
        is_view = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
        if is_view and all(source in known for source in node.all_input_nodes):
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
            # The graph has autograd's operations already; detached, parameters do not start autograd again.
            constants.append(value.detach() if isinstance(value, torch.Tensor) else value)
        node.replace_all_uses_with(arguments[id(value)], lambda user: user not in known)
    for node in reversed(known):
        graph.erase_node(node)
    graph.lint()
    return constants


def _bind(graph: fx.Graph) -> None:
    """Call operations by torch's C functions of the same name, which takes half the time of dispatch by name.

    A function of the same name may differ from the operation, so each is tried once (``_makes_the_same_call``); where
    none fits, the operation stays. Random operations stay too, since trying them would draw numbers.
    """
    for node in graph.nodes:
        operation = node.target
        if isinstance(operation, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded not in operation.tags:
            functions = (getattr(home, operation._opname, None) for home in (torch, torch._C._nn, torch.Tensor))
            node.target = next((found for found in functions if _makes_the_same_call(found, node)), operation)


def _makes_the_same_call(function: object, node: fx.Node) -> bool:
    """Whether a C function, called with the node's arguments, calls the node's operation with them and nothing else.

    The function is called with tensors of zeros, since other numbers might be indices out of range; parameters stay
    unchanged.
    """
    if not isinstance(function, BuiltinFunctionType | MethodDescriptorType):
        return False

    def make_zeros(argument: fx.Node) -> torch.Tensor:
        value = argument.meta["val"]
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).zero_()

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), make_zeros)
    recorder = _CallRecorder()
    with recorder:
        try:
            function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the function takes other arguments, or no zeros: it does not fit
            return False
    return recorder.calls == [(node.target, _identify_tensors((args, kwargs)))]


class _CallRecorder(TorchDispatchMode):
    """Records the operations that are called while it is entered, with their arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[object, object]] = []

    def __torch_dispatch__(
        self, operation: Callable[..., Any], _: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.calls.append((operation, _identify_tensors((args, kwargs))))
        return operation(*args, **kwargs)


def _identify_tensors(arguments: object) -> object:
    """Replace tensors by their ids, so that arguments compare equal if their tensors are the same objects."""
    return tree_map_only(torch.Tensor, id, arguments)


def _as_cuda_graph(call: Traced, inputs: Sequence[torch.Tensor], constants: Sequence[Any]) -> Traced:
    """Record the call as a CUDA graph, and make a function that launches it.

    A graph reads and writes fixed memory: each launch copies the inputs into ``held`` first, and clones the results.
    """
    held = [column.clone() for column in inputs]
    graph = torch.cuda.CUDAGraph()
    for constant in constants:
        if isinstance(constant, torch.Generator):
            graph.register_generator_state(constant)
    with torch.cuda.graph(graph):  # This records the operations without computing them.
        results = call(*held)

    def launch(*again: torch.Tensor) -> list[torch.Tensor]:
        torch._foreach_copy_(held, again)
        graph.replay()
        return [result.clone() for result in results]

    return launch
