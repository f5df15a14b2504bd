"""How a configuration names parts: by their place in Python code, checked before anything is built."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Set
from typing import Annotated, Any, Final, TypedDict

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, field_validator

from common.errors import ConfigError, PluginError
from common.hints import nearest
from common.interfaces import EnvSpec
from common.plugins import part_loading
from common.settings import Settings, validate

MAX_STACK: Final = 16
"""The most frames in one observation."""


class PluginConfig(Settings):
    """A part named by its place in Python code."""

    target: str = Field(description="The class or function that builds the part, as module:attr.")
    params: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for the target.")

    def build(self, *, optional: Mapping[str, Any] | None = None, **given: Any) -> Any:
        """Call the target with ``params`` and with the arguments that the system itself provides.

        Args:
            optional: arguments only for targets that have parameters of these names; ``params`` override them.
            given: arguments for every target.
        """
        target = part_loading.load_part(self.target)
        if optional:
            named = inspect.signature(target).parameters.keys() - self.params.keys()
            given |= {name: value for name, value in optional.items() if name in named}
        return target(**given, **self.params)

    def check(
        self, where: str, given: Set[str], params_at: str | None = None, *, optional: Set[str] = frozenset()
    ) -> None:
        """Check that the target can be loaded, and takes ``params`` and the arguments that the system provides.

        A target with a ``Config`` (a ``Settings`` class) is checked by it, any other by its signature.

        Args:
            where: the place of the target in the configuration.
            given: the names of the arguments that the system provides.
            params_at: the place of the parameters, if it is not ``{where}.params``.
            optional: the names of arguments that the system provides to targets with parameters of these names.

        Raises:
            PluginError: the target cannot be loaded or does not take an argument that the system provides.
            ConfigError: a parameter is unknown, missing or has a wrong value.
        """
        params_at = params_at or f"{where}.params"
        target = part_loading.load_part(self.target)
        try:
            signature = inspect.signature(target).parameters
        except ValueError:
            return  # Some builtins have no signature to check.
        missing = given - signature.keys()
        if missing and not _takes_any(signature):
            raise PluginError(f"{where}: {self.target} must take {', '.join(sorted(missing))}, but does not")
        model = getattr(target, "Config", None)
        if isinstance(model, type) and issubclass(model, Settings):
            validate(model, self.params, params_at)
        else:
            self._check_by_signature(signature, given, params_at, optional)

    def _check_by_signature(
        self, signature: Mapping[str, inspect.Parameter], given: Set[str], params_at: str, optional: Set[str]
    ) -> None:
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        known = {name for name, parameter in signature.items() if parameter.kind in by_name} - given
        for name in self.params:
            if name not in known and not _takes_any(signature):
                raise ConfigError(f"{params_at}.{name}: unknown parameter{nearest(name, known)}")
        for name in sorted(known - optional - self.params.keys()):
            if signature[name].default is inspect.Parameter.empty:
                raise ConfigError(f"{params_at}.{name}: expected a value, found none")


def _takes_any(signature: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a callable takes keyword arguments of any name."""
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.values())


class AgentArguments(TypedDict):
    """The arguments that the system provides to every agent, besides its ``params``."""

    spec: EnvSpec
    seed: int
    epsilon: float
    device: str


class EnvConfig(PluginConfig):
    """An environment, what is recorded of it, and what actors do when it fails."""

    eval_params: dict[str, Any] = Field(
        default_factory=dict,
        description="Keyword arguments that evaluations add to params or replace there; the spaces must stay the same.",
    )
    wrappers: tuple[PluginConfig, ...] = Field(
        (), description="Wrappers around the environment, the innermost first; each is built with env and its params."
    )
    frame_stack: Annotated[int, Field(ge=1, le=MAX_STACK)] = Field(
        1,
        description="The number of frames that the agent sees in one observation, oldest first; single frames are "
        "sent and stored.",
    )
    float64: bool = Field(False, description="Records float64 values as they are, not as float32.")
    info: dict[str, str] = Field(
        default_factory=dict,
        description="Values of the environment's info that are recorded, by key, as bool, float32 or float32[3], for "
        "example; each becomes a column info/{key}.",
    )
    intervention: str | None = Field(
        None,
        description="The key of info that holds the action which a person or a safety layer had executed in the "
        "agent's place. That action is recorded, and a column intervened says so.",
    )
    spaces: str | dict[str, Any] | None = Field(
        None,
        description="The observation and the action space, described or as module:attr of a factory: then the learner "
        "does not build the environment.",
    )
    rebuilds_per_minute: NonNegativeInt = Field(
        5,
        description="How often an actor builds an environment again that has raised an exception; at the next one, the "
        "actor ends with the exception.",
    )
    timeout_seconds: PositiveFloat | None = Field(
        60.0,
        description="An actor whose environment spends more time in step or reset ends and is started again; null sets "
        "no limit.",
    )

    @field_validator("info")
    @classmethod
    def _is_typed(cls, info: dict[str, str]) -> dict[str, str]:
        for key, text in info.items():
            parse_type(text, f"env.info.{key}")
        return info

    @property
    def info_columns(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """By key of ``info``, the dtype and the shape of its column."""
        return {key: parse_type(text, f"env.info.{key}") for key, text in self.info.items()}

    def for_evaluation(self) -> EnvConfig:
        """The environment that evaluations build."""
        return self.model_copy(update={"params": {**self.params, **self.eval_params}, "eval_params": {}})

    def check(
        self, where: str, given: Set[str], params_at: str | None = None, *, optional: Set[str] = frozenset()
    ) -> None:
        super().check(where, given, params_at, optional={*optional, "seed"})
        for index, wrapper in enumerate(self.wrappers):
            wrapper.check(f"{where}.wrappers.{index}", frozenset({"env"}))


def parse_type(text: str, where: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and the shape that a text such as ``float32[3]`` names.

    Raises:
        ValueError: it names none.
    """
    found = re.fullmatch(r"(bool|u?int(?:8|16|32|64)|float(?:16|32|64))(?:\[(\d+(?:,\s*\d+)*)\])?", text)
    if found is None:
        raise ValueError(f"{where}: expected a type such as bool, float32 or float32[3], found '{text}'")
    return np.dtype(found[1]), tuple(map(int, found[2].split(","))) if found[2] else ()
