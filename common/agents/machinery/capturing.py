"""Turns a function of tensors into the fixed list of operations that it runs, without the Python around them.

On a CPU the list works as a CUDA graph does on a GPU (https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/);
on a GPU the list becomes a CUDA graph. Values that are no tensors, such as a learning rate, stay as they were when the
function was traced.

The steps of ``trace``: an ``OperationRecorder`` records the operations as a graph; ``simplify`` drops operations that
change no result; ``_lift_constants`` turns results that are the same in each call into arguments; ``bind`` replaces
torch's dispatch of an operation by name with the C function behind it. On a GPU ``cuda_graph`` does the rest.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from common.agents.machinery import cuda_graph
from common.agents.machinery.cuda_graph import is_view

aten = torch.ops.aten


class TensorLayout(NamedTuple):
    """The properties of a tensor without its values."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        """The layout of a tensor."""
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def make_zeros(self) -> torch.Tensor:
        """A tensor of zeros."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device).zero_()


class UncompiledMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # its __init_subclass__
    """The base of a dispatch mode that does not import torch.compile; see ``UncompiledOptimizer``."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks this when a subclass is defined.


class OperationRecorder(UncompiledMode):
    """Adds each operation that is called while the recorder is entered to a graph, those of autograd too.

    torch's own ``make_fx`` would import torch.compile; see ``UncompiledOptimizer``.

    Each node has the ``TensorLayout`` of its result in ``meta["layout"]``.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.outside: dict[fx.Node, Any] = {}
        """Nodes of the tensors and generators that are neither inputs nor results, with their values."""
        # With strong references, autograd would copy gradients: it hands over only gradients with no other reference.
        self._nodes = WeakIdKeyDictionary(ref_type=WeakIdRef)
        self._generator_nodes: dict[int, fx.Node] = {}  # By id: not every torch can refer weakly to a generator.
        for i, tensor in enumerate(inputs):
            self._note(tensor, self.graph.placeholder(f"input_{i}"))

    def __torch_dispatch__(
        self, operation: torch._ops.OpOverload, _: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if operation is aten.lift_fresh.default:
            operation = aten.lift_fresh_copy.default  # Each call begins with the numbers of torch.tensor(...) again.
        result = operation(*args, **kwargs)
        if isinstance(result, (bool, int, float, complex)):
            raise TypeError(f"{operation} takes the number {result} from a tensor; another call might take another")
        if operation.namespace == "profiler" or self._does_nothing(operation, args, result):
            return result
        args, kwargs = fx.node.map_aggregate((args, kwargs), self._node_of)
        node = self.graph.call_function(operation, args, kwargs)
        if isinstance(result, torch.Tensor):
            self._note(result, node)
        elif isinstance(result, (tuple, list)):
            for i, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    self._note(part, self.graph.call_function(operator.getitem, (node, i)))
        return result

    @staticmethod
    def _does_nothing(operation: torch._ops.OpOverload, args: tuple[Any, ...], result: object) -> bool:
        """Whether an operation has returned its argument unchanged, as ``to(float32)`` of float32 does."""
        return not operation._schema.is_mutable and bool(args) and result is args[0]

    def end(self, results: Iterable[torch.Tensor]) -> None:
        """Let the graph return these tensors, as a list."""
        self.graph.output([self._node_of(result) for result in results])

    def _note(self, tensor: torch.Tensor, node: fx.Node) -> None:
        node.meta["layout"] = TensorLayout.of(tensor)
        self._nodes[tensor] = node

    def _node_of(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            if id(value) not in self._generator_nodes:
                self._generator_nodes[id(value)] = self._add_outside(value)
            return self._generator_nodes[id(value)]
        if not isinstance(value, torch.Tensor):
            return value  # A number, for example, stays as it is.
        node: fx.Node | None = self._nodes.get(value)  # type: ignore[no-untyped-call]
        if node is None:
            node = self._add_outside(value)
            self._note(value, node)
        return node

    def _add_outside(self, value: torch.Tensor | torch.Generator) -> fx.Node:
        """A node for a value that is neither an input nor a result."""
        with self.graph.inserting_before(next(iter(self.graph.nodes))):
            node = self.graph.placeholder(f"outside_{len(self.outside)}")
        self.outside[node] = value
        return node


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
    recorder = OperationRecorder(inputs)
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
                arguments[id(value)].meta["layout"] = TensorLayout.of(value)
            # The graph has autograd's operations already; detached, parameters do not start autograd again.
            constants.append(value.detach() if isinstance(value, torch.Tensor) else value)
        node.replace_all_uses_with(arguments[id(value)], lambda user: user not in known)
    for node in reversed(known):
        graph.erase_node(node)
    graph.eliminate_dead_code()  # Of a loss whose value no one asks for, only the shape was needed.
    graph.lint()
    return constants


_FILLS: Final = frozenset(
    {
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.full.default,
        aten.full_like.default,
        aten.linspace.default,
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
"""Operations whose result depends on numbers and on the shapes of tensors, but on no values of tensors."""


def simplify(graph: fx.Graph) -> None:
    """Drop detaching, transposing back and forth, and views of the same shape.

    In an update of a small network each operation costs more than its arithmetic: about 4 µs, since the products before
    it have filled the processor's caches.
    """
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


_OTHER_NAMES: Final = {"_to_copy": "to"}
"""The names of functions that are not called like the operation, by the operation's name."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def bind(graph: fx.Graph) -> None:
    """Call operations by torch's C functions of the same name, which takes half the time of torch's dispatch by name.

    A function of the same name may differ from the operation, so each is tried once (``_makes_the_same_call``); if none
    fits, the operation stays. Random operations stay too, since trying them would draw numbers.
    """
    for node in graph.nodes:
        operation = node.target
        if isinstance(operation, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded not in operation.tags:
            for function, (args, kwargs) in _candidates(operation, node):
                if _makes_the_same_call(function, args, kwargs, node):
                    node.target, node.args, node.kwargs = function, args, kwargs
                    break


def _candidates(operation: torch._ops.OpOverload, node: fx.Node) -> Iterator[tuple[object, Arguments]]:
    """The functions that may be the operation, with the arguments to call each with.

    A function may have other defaults than the operation, so each is also tried with the operation's defaults.
    """
    name = _OTHER_NAMES.get(operation._opname, operation._opname)
    given = (tuple(node.args), dict(node.kwargs))
    left = [argument for argument in operation._schema.arguments[len(node.args) :] if not argument.kwarg_only]
    with_defaults = ((*node.args, *(argument.default_value for argument in left)), given[1])
    for home in (torch, torch._C._nn, torch.Tensor):
        if (function := getattr(home, name, None)) is not None:
            yield function, given
            if left and not any(argument.name in node.kwargs for argument in left):
                yield function, with_defaults


def _makes_the_same_call(function: object, args: tuple[Any, ...], kwargs: dict[str, Any], node: fx.Node) -> bool:
    """Whether a C function with these arguments only calls the node's operation with the node's arguments.

    The function is called with tensors of zeros, since other numbers might be indices out of range; parameters stay
    unchanged.
    """
    if not isinstance(function, BuiltinFunctionType | MethodDescriptorType):
        return False
    zeros = {source: source.meta["layout"].make_zeros() for source in node.all_input_nodes}
    args, kwargs = fx.node.map_arg((args, kwargs), zeros.__getitem__)
    recorder = _CallRecorder()
    with recorder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Not the user's call, but a guess at a form of it.
        try:
            function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the function takes other arguments, or no zeros: it does not fit
            return False
    expected = fx.node.map_arg((node.args, node.kwargs), zeros.__getitem__)
    return recorder.calls == [(node.target, _identify_tensors(expected))]


class _CallRecorder(UncompiledMode):
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


def _identify_tensors(arguments: Any) -> Any:
    """Replace tensors by their ids, so that arguments compare equal if their tensors are the same objects."""
    return fx.node.map_aggregate(arguments, lambda value: id(value) if isinstance(value, torch.Tensor) else value)
