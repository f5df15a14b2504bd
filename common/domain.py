"""The values that a column may hold, as its space declares them, and how to find values outside of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

ROUNDINGS: Final = 64
"""A finite bound of floats is widened by this many roundings of float32. A policy that scales its output to the bounds
may exceed them by a few roundings, above all a policy in another language."""
TILE: Final = 4096
"""Where the elements of a row have different bounds, about this many values are compared with their bounds at once."""
_count, _most, _least = np.count_nonzero, np.maximum.reduce, np.minimum.reduce


class Domain:
    """All values from ``low`` to ``high``, both included.

    Args:
        low: the least values, of the column's dtype: ``[1]`` for all elements of a row, or ``[k]`` for each of its k
            elements. Minus infinity and the least integer exclude nothing.
        high: the greatest values, in the same shape. Infinity and the largest integer exclude nothing.
    """

    def __init__(self, low: NDArray[Any], high: NDArray[Any]) -> None:
        self.low, self.high = low, high
        slack = _slack(low, high)
        width = len(low) * max(1, TILE // len(low)) if len(low) > 1 else 1
        self._low, self._high = (np.tile(bound, width // len(low)) for bound in (low - slack, high + slack))
        self._width = width

    @classmethod
    def between(cls, low: ArrayLike, high: ArrayLike, dtype: DTypeLike) -> Domain | None:
        """The domain between bounds of the same shape; None if it holds every finite value of the dtype.

        Booleans have no domain: ``codec.decode`` checks that they are 0 or 1.
        """
        kind = np.dtype(dtype)
        if kind.kind == "b":
            return None
        least, most = _ends(kind)
        bounds = [np.asarray(bound).reshape(-1) for bound in (low, high)]
        if (bounds[0] <= least).all() and (bounds[1] >= most).all():
            return None
        if all((bound == bound[0]).all() for bound in bounds):
            bounds = [bound[:1] for bound in bounds]
        made = [bound.astype(kind) for bound in bounds]
        if kind.kind == "f":
            made = [np.where(np.abs(bound) >= most, np.copysign(np.inf, bound), bound) for bound in made]
        return cls(*made)

    @staticmethod
    def shared(domains: Sequence[Domain | None]) -> Domain | None:
        """The domain that all ``domains`` equal, if its bounds are the same for every element; otherwise None."""
        first = domains[0]
        if first is None or len(first.low) > 1:
            return None
        return first if all(d is not None and d.to_json() == first.to_json() for d in domains) else None

    def holds(self, values: NDArray[Any]) -> bool:
        """Whether no value is outside.

        Args:
            values: the values of one or more whole rows, flat. NaN counts as inside.
        """
        if self._width == 1:
            return not (_most(values) > self._high[0] or _least(values) < self._low[0])
        whole = len(values) - len(values) % self._width
        if whole:
            rows = values[:whole].reshape(-1, self._width)
            if _count(_most(rows, axis=0) > self._high) or _count(_least(rows, axis=0) < self._low):
                return False
            values = values[whole:]
        n = len(values)
        return not (_count(values > self._high[:n]) or _count(values < self._low[:n]))

    def outside(self, values: NDArray[Any]) -> NDArray[Any]:
        """For each of the flat values of whole rows, whether it is outside, ``[n]`` bool."""
        k = len(self.low)
        rows = values.reshape(-1, k)
        found: NDArray[Any] = (rows > self._high[:k]) | (rows < self._low[:k])
        return found.reshape(-1)

    def text(self, element: int = 0) -> str:
        """The bounds of one element, in words; ``element`` is its index in the flat values of whole rows."""
        element %= len(self.low)
        low, high = self.low[element].item(), self.high[element].item()
        least, most = _ends(self.low.dtype)
        if low <= least:
            return f"at most {format_value(high)}"
        return f"at least {format_value(low)}" if high >= most else f"{format_value(low)} to {format_value(high)}"

    def __str__(self) -> str:
        return self.text() if len(self.low) == 1 else f"bounds for each of {len(self.low)} elements"

    def to_json(self) -> dict[str, list[float | None]]:
        """The bounds as JSON can hold them; None stands for infinity."""
        return {"low": _finite_or_none(self.low), "high": _finite_or_none(self.high)}

    @classmethod
    def from_json(cls, found: dict[str, list[float | None]], dtype: DTypeLike) -> Domain:
        """The domain that ``to_json`` wrote, for a column of this dtype."""
        low = [-np.inf if bound is None else bound for bound in found["low"]]
        high = [np.inf if bound is None else bound for bound in found["high"]]
        return cls(np.array(low, dtype), np.array(high, dtype))


def format_value(value: float) -> str:
    """A value of a column for messages; integers have all their digits."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def _ends(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The least and the largest finite value of a dtype."""
    info = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return info.min, info.max


def _slack(low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """The amount by which bounds are widened, in their dtype and shape."""
    if low.dtype.kind != "f":
        return np.zeros_like(low)
    ends = np.abs([low, high]).astype(np.float64)  # [2, k]
    reach = np.where(np.isfinite(ends), ends, 0.0).max(axis=0)
    eps = max(np.finfo(low.dtype).eps, np.finfo(np.float32).eps)
    slack: NDArray[Any] = (ROUNDINGS * eps * reach).astype(low.dtype)
    return slack


def _finite_or_none(bounds: NDArray[Any]) -> list[float | None]:
    return [bound if np.isfinite(bound) else None for bound in bounds.tolist()]
