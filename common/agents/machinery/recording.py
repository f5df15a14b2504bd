"""Records the operations that a function of tensors calls, as a graph."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

aten = torch.ops.aten
_UNDECLARED_VIEWS: Final = frozenset({aten._unsafe_view.default})
"""Operations whose result has the memory of their argument, although their schema does not say it."""


def is_view(node: fx.Node) -> bool:
    """Whether a node makes another tensor of the same memory, or takes one of several tensors, without computing."""
    if node.target is operator.getitem or node.target in _UNDECLARED_VIEWS:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


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
    """The base of a dispatch mode that does not import torch.compile; see ``optimizers``."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks this when a subclass is defined.


class OperationRecorder(UncompiledMode):
    """Adds each operation that is called while the recorder is entered to a graph, those of autograd too.

    torch's own ``make_fx`` would import torch.compile; see ``optimizers``.

    Each node has the ``TensorLayout`` of its result in ``meta["layout"]``.

    Args:
        inputs: the arguments of the function that is recorded.
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
        args, kwargs = tree_map_only((torch.Tensor, torch.Generator), self._node_of, (args, kwargs))
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

    def _node_of(self, value: torch.Tensor | torch.Generator) -> fx.Node:
        if isinstance(value, torch.Generator):
            if id(value) not in self._generator_nodes:
                self._generator_nodes[id(value)] = self._add_outside(value)
            return self._generator_nodes[id(value)]
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
