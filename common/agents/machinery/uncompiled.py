"""Classes of torch without the import of torch.compile, which takes a second and 73 MB in each process.

torch excludes some methods from torch.compile, and for this imports torch.compile at their first call. crossborder
compiles nothing, and an actor would pay for the import when it builds its optimiser and when it captures its actions.
"""

from __future__ import annotations

import inspect

from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode


class UncompiledOptimizer:
    """The first base of an optimiser, before one of torch's."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class UncompiledMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # its __init_subclass__
    """The base of a dispatch mode."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks this when a subclass is defined.
