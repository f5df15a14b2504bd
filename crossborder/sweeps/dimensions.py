"""The values from which a sweep chooses a setting: a range of numbers, or a list."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from common.hints import nearest

if TYPE_CHECKING:
    from optuna.trial import Trial

KINDS: Final = ("uniform", "log", "int", "log_int")


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; ``log``: each power of ten is as likely as the next one."""

    low: float
    high: float
    log: bool
    integer: bool

    def first(self) -> float:
        """A value of the range, to check a configuration with."""
        return int(self.low) if self.integer else self.low

    def suggest(self, trial: Trial, key: str) -> float:
        """The trial's value of this setting; Optuna chooses it when it is asked first."""
        if self.integer:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)

    def decode(self, param: Any) -> Any:
        """The value of a setting, from the form in which Optuna keeps it."""
        return param


@dataclass(frozen=True)
class Choices:
    """The values of a list: numbers, texts, lists or sections."""

    values: tuple[Any, ...]

    def first(self) -> Any:
        return self.values[0]

    def suggest(self, trial: Trial, key: str) -> Any:
        # As JSON, since Optuna knows no lists and sections.
        return self.decode(trial.suggest_categorical(key, [json.dumps(value) for value in self.values]))

    def decode(self, param: Any) -> Any:
        return json.loads(param)


Dimension = Range | Choices


def parse_dimension(value: object) -> Dimension:
    """Parse the values of a setting, as YAML gives them.

    >>> parse_dimension({"log": [1e-5, 1e-2]})
    Range(low=1e-05, high=0.01, log=True, integer=False)
    >>> parse_dimension([[64, 64], [256, 256]])
    Choices(values=([64, 64], [256, 256]))

    Raises:
        ValueError: it is neither a list nor one of the ranges.
    """
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("expected values in the list, found none")
        for each in value:
            _require_json(each)
        return Choices(tuple(value))
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError(f"expected a list of values or one of {', '.join(KINDS)} with [LOW, HIGH], found {value!r}")
    ((kind, ends),) = value.items()
    if kind not in KINDS:
        raise ValueError(f"unknown range '{kind}'{nearest(str(kind), KINDS)}")
    low, high = _ends(kind, ends)
    return Range(low, high, log=kind.startswith("log"), integer=kind.endswith("int"))


def _require_json(value: object) -> None:
    try:
        json.dumps(value)
    except TypeError:
        expected = "numbers, texts, truth values, lists and mappings"
        raise ValueError(f"expected {expected}, found {value!r}; put a date in quotes") from None


def _ends(kind: str, ends: object) -> tuple[float, float]:
    is_integer = kind.endswith("int")
    try:
        if not isinstance(ends, Sequence) or isinstance(ends, str):
            raise ValueError
        low, high = map(float, ends)  # YAML takes 1e-5 for a text.
        if not -math.inf < low < high < math.inf or (is_integer and not (low.is_integer() and high.is_integer())):
            raise ValueError
    except (TypeError, ValueError):
        numbers = "integers" if is_integer else "numbers"
        raise ValueError(f"{kind}: expected [LOW, HIGH], two {numbers} in order, found {ends!r}") from None
    if kind.startswith("log") and low <= 0:
        raise ValueError(f"{kind}: expected numbers above 0, found {ends!r}")
    return low, high
