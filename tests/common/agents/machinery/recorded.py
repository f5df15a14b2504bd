"""Graphs of functions, as tests use them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from common.agents.machinery.capturing import OperationRecorder


def record(function: Callable[[torch.Tensor], list[torch.Tensor]], x: torch.Tensor) -> OperationRecorder:
    """The operations of a function."""
    recorder = OperationRecorder([x])
    with recorder:
        results = function(x)
    recorder.end(results)
    return recorder


def record_module(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> fx.GraphModule:
    """The operations of a function with one result and without values from outside, as a module."""
    recorder = record(lambda x: [function(x)], x)
    assert not recorder.outside
    return fx.GraphModule({}, recorder.graph)


def names(graph: fx.Graph) -> list[str]:
    """The names of its operations."""
    return [node.target._opname for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
