"""Replaces torch's dispatch of an operation by name with the C function behind it, which takes half the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, Final

import torch
from torch import fx
from torch.utils._pytree import tree_map_only

from common.agents.machinery.uncompiled import UncompiledMode

_OTHER_NAMES: Final = {"_to_copy": "to"}
"""The names of functions that are not called like the operation, by the operation's name."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def bind(graph: fx.Graph) -> None:
    """Call operations by torch's C functions of the same name.

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
    with recorder:
        try:
            function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the function takes other arguments, or no zeros: it does not fit
            return False
    return recorder.calls == [
        (node.target, _identify_tensors(fx.node.map_arg((node.args, node.kwargs), zeros.__getitem__)))
    ]


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


def _identify_tensors(arguments: object) -> object:
    """Replace tensors by their ids, so that arguments compare equal if their tensors are the same objects."""
    return tree_map_only(torch.Tensor, id, arguments)
