"""The device on which an agent computes, and the dtype of the tensors that it makes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from common.errors import ConfigError


def require_device(name: str | torch.device, setting: str = "trainer.device") -> torch.device:
    """The device of this name.

    Raises:
        ConfigError: it names no device, or one that torch cannot use here.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"{setting}: expected a device such as cpu, cuda or cuda:1, found {name!r}") from error
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"{setting}: expected one of {count} GPUs that torch finds here, found {device}")
    try:
        torch.zeros(1, device=device).add_(1).item()  # A GPU may hold tensors for which this torch has no kernels.
    except (AssertionError, ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{setting}: expected a device that torch can use here, found {device}: {reason}") from error
    return device


class _Contexts:
    """The contexts that are entered now, and the default dtype of the program, which the last one puts back."""

    lock, entered, before = threading.Lock(), 0, torch.float32


@contextmanager
def making_float32() -> Iterator[None]:
    """A context in which torch has its own default dtype, as agents expect, whatever the program has set.

    All threads have one default dtype, and several may be in such a context at a time: an environment may load the
    policy of an opponent while it is built, even in a thread of its own.
    """
    with _Contexts.lock:
        if not _Contexts.entered:
            _Contexts.before = torch.get_default_dtype()
        _Contexts.entered += 1
        torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with _Contexts.lock:
            _Contexts.entered -= 1
            if not _Contexts.entered:
                torch.set_default_dtype(_Contexts.before)
