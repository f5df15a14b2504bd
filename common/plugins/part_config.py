"""How a configuration names parts: by their place in Python code, checked before anything is built."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Set
from typing import Annotated, Any, ClassVar, Final, TypedDict

import numpy as np
from pydantic import Field, NonNegativeInt, field_validator, model_validator

from common.errors import ConfigError, PluginError
from common.hints import nearest
from common.home import naming_missing_home
from common.interfaces import Callback, EnvSpec
from common.plugins import part_loading
from common.plugins.part_loading import keeping_globals
from common.plugins.shipped import METHODS, Role
from common.settings import Seconds, Settings, validate

MAX_STACK: Final = 16
"""The most frames in one observation."""
_CHECKED: Final = frozenset({"bool", "int", "float", "str", "None"})
"""The types whose values are compared with the annotations of a target that has no ``Config``."""
_NO_MEMORY: Final = "allocate memory|out of memory|Storage size calculation overflowed"
"""What torch's errors say, which are RuntimeErrors."""
_KINDS: Final[dict[Role, str]] = {
    "step processor": "a crossborder.RowMap or StepProcessor",
    "device": "a device",
    "evaluator": "a crossborder.Evaluator",
    "recorder": "a crossborder.Recorder",
    "callback": "a crossborder.Callback",
}
"""By role, what ``require_role`` says that it expected."""
_MAKERS: Final = ("gymnasium:make", "gymnasium:make_vec")
_MAKERS_PARAMS: Final = {"id": str, "render_mode": str | None}
"""The kinds of parameters of gymnasium's functions, which fail in their midst for others."""
MAX_RATE_HZ: Final = 1000.0
"""The highest rate of an actor: the system wakes a process a tenth of a millisecond late."""


class PluginConfig(Settings):
    """A part named by its place in Python code."""

    target: str = Field(
        description="The class or function that builds the part: module:attr, or the short name of a shipped part."
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for the target.")

    def build(self, *, optional: Mapping[str, Any] | None = None, **given: Any) -> Any:
        """Call the target with ``params`` and with the arguments that the system itself provides.

        Globals that it changes are put back, see ``keeping_globals``.

        Args:
            optional: arguments only for targets that have parameters of these names; ``params`` override them.
            given: arguments for every target.

        Raises:
            PluginError: it needs the home of a user that has none, or too much memory. It may raise any other error.
        """
        target = part_loading.load_part(self.target)
        if optional:
            named = _signature(target).keys() - self.params.keys()
            given |= {name: value for name, value in optional.items() if name in named}
        try:
            with keeping_globals(self.target), naming_missing_home(self.target):
                return target(**given, **self.params)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not re.search(_NO_MEMORY, str(error)):
                raise
            reason = str(error).partition("\n")[0]
            raise PluginError(f"{self.target}: expected params for which there is memory here: {reason}") from error

    def check(
        self,
        where: str,
        given: Set[str],
        params_at: str | None = None,
        *,
        optional: Set[str] = frozenset(),
        role: Role | None = None,
    ) -> None:
        """Check that the target can be loaded, and takes ``params`` and the arguments that the system provides.

        A target with a ``Config`` (a ``Settings`` class) is checked by it, any other by its signature.

        Args:
            where: the place of the target in the configuration.
            given: the names of the arguments that the system provides.
            params_at: the place of the parameters, if it is not ``{where}.params``.
            optional: the names of arguments that the system provides to targets with parameters of these names.
            role: of the part; a class is refused if it is of another kind. What a function makes is not known yet.

        Raises:
            PluginError: the target cannot be loaded, is of another kind, or does not take an argument that the system
                provides.
            ConfigError: a parameter is unknown, missing or has a wrong value.
        """
        params_at = params_at or f"{where}.params"
        try:
            target = part_loading.load_part(self.target)
        except PluginError as error:
            raise type(error)(f"{where}.target: {error}") from error.__cause__
        if lacking := sorted(getattr(target, "__abstractmethods__", ())):
            raise PluginError(f"{where}: {self.target} must have {', '.join(lacking)}")
        if role is not None and isinstance(target, type):
            require_role(target, role, f"{where}.target")
        signature = _signature(target)
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
        for name, value in self.params.items():
            if name in known:
                expected = inspect.formatannotation(signature[name].annotation).strip("'")
                if not _fits(value, expected):
                    raise ConfigError(f"{params_at}.{name}: expected {expected}, found {value!r}")
            elif name in given or not _takes_any(signature):
                raise ConfigError(f"{params_at}.{name}: unknown parameter{nearest(name, known)}")
        for name in sorted(known - optional - self.params.keys()):
            if signature[name].default is inspect.Parameter.empty:
                raise ConfigError(f"{params_at}.{name}: expected a value, found none")


def _fits(value: object, annotation: str) -> bool:
    """Whether a value fits an annotation made of ``_CHECKED`` types, such as ``int | None``; others are not checked."""
    types = set(annotation.split(" | "))
    if not types <= _CHECKED:
        return True
    if type(value) is int and "float" in types:
        return True
    return type(value).__name__.removesuffix("Type") in types


def require_role(part: object, role: Role, where: str) -> None:
    """Check that a part, or the class of one, is what its role needs.

    Args:
        part: the part, or its class.
        role: of the part.
        where: the place in the configuration.

    Raises:
        PluginError: it has not the base class of the role, or lacks one of its methods.
    """
    kind = part if isinstance(part, type) else type(part)
    missing = [name for name in METHODS.get(role, ()) if not callable(getattr(part, name, None))]
    if part is kind and hasattr(kind, "__getattr__"):
        missing = []  # The part may hand its calls to another one, which only the part itself knows.
    if missing or (role == "callback" and not issubclass(kind, Callback)):
        lacks = f" without {', '.join(missing)}" if missing else ""
        raise PluginError(f"{where}: expected {_KINDS[role]}, found {kind.__name__}{lacks}")


def _signature(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a target; those of any name if it is a builtin whose parameters Python does not know."""
    try:
        return inspect.signature(target).parameters
    except ValueError:
        return {"params": inspect.Parameter("params", inspect.Parameter.VAR_KEYWORD)}


def _takes_any(signature: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a callable takes keyword arguments of any name."""
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.values())


class AgentArguments(TypedDict):
    """The arguments that the system provides to every agent, besides its ``params``."""

    spec: EnvSpec
    seed: int
    epsilon: float
    device: str


class WrapperConfig(PluginConfig):
    """A wrapper around the environment."""

    LATER = frozenset({"actors"})

    in_evaluations: bool = Field(
        True,
        description="Whether evaluations have the wrapper too. Set false for a wrapper that belongs to training "
        "only, such as one that clips rewards or lets a person intervene.",
    )
    actors: tuple[NonNegativeInt, ...] | None = Field(
        None,
        description="The ids of the actors that have the wrapper, such as those robots beside which a person stands; "
        "null: all actors have it.",
    )


class EnvConfig(PluginConfig):
    """An environment, what is recorded of it, and what actors do when it fails."""

    GONE: ClassVar = {"float64": False}
    INSTEAD: ClassVar = {"float64": "remove it, and begin another run: float64 is recorded as float32"}

    eval_params: dict[str, Any] = Field(
        default_factory=dict,
        description="Keyword arguments for the environment in evaluations only: they are added to params, or replace "
        "values there. The spaces must stay the same.",
    )
    wrappers: tuple[WrapperConfig, ...] = Field(
        (),
        description="Wrappers around the environment, the innermost first. Each is called with env, the environment "
        "inside it, and its params.",
    )
    frame_stack: Annotated[int, Field(ge=1, le=MAX_STACK)] = Field(
        1,
        description="The number of consecutive frames that the agent sees in one observation, the oldest first. "
        "Actors still send, and the replay stores, each frame once.",
    )
    info: dict[str, str] = Field(
        default_factory=dict,
        description="Records values of the environment's info: a mapping from the key in info to its type, such as "
        "bool, float32 or float32[3]. Each becomes a column info/{key}.",
    )
    intervention: str | None = Field(
        None,
        description="Records interventions: the key of info under which the environment reports the action that a "
        "person or a safety layer executed in the agent's place. That action is recorded, and the column intervened "
        "is true in its row.",
    )
    rate_hz: Annotated[float, Field(gt=0, le=MAX_RATE_HZ)] | None = Field(
        None,
        description="Steps per second that an actor keeps, for environments in real time; evaluations keep them too. "
        "An actor with a rate has one lane. null: each step begins as soon as the last one has ended.",
    )
    eval_at_rate: bool = Field(
        True, description="Whether evaluations keep rate_hz. Set false only if they play in a simulation."
    )
    safe_stop: str | float | list[Any] | dict[str, Any] | None = Field(
        None,
        description="What an actor does with the environment before it ends and, with rate_hz, before it waits: an "
        "action, the name of a method of the environment, or a function as module:attr, which is called with the "
        "environment.",
    )
    max_model_age_seconds: Seconds | None = Field(
        None,
        description="Seconds that an actor acts on while the learner does not confirm that its model is current. "
        "Afterwards it makes a safe stop and waits. It needs rate_hz. null: the actor goes on with the model that it "
        "has.",
    )
    spaces: str | dict[str, Any] | None = Field(
        None,
        description="The observation and the action space, for a learner host on which the environment cannot be "
        "built: a description, or a function that makes them, as module:attr. null: the learner builds the "
        "environment to see its spaces.",
    )
    rebuilds_per_minute: NonNegativeInt = Field(
        5,
        description="The number of times per minute that an actor builds its environment again after it has raised "
        "an exception. At the next exception, the actor ends with it.",
    )
    timeout_seconds: Seconds | None = Field(
        60.0,
        description="Seconds that one step or reset of the environment may take. An actor whose environment hangs "
        "for longer ends and is started again; null sets no limit.",
    )

    @field_validator("info")
    @classmethod
    def _is_typed(cls, info: dict[str, str]) -> dict[str, str]:
        for key, text in info.items():
            if not key:
                raise ValueError("env.info: expected a key of info, found ''")
            parse_type(text, f"env.info.{key}")
        return info

    @model_validator(mode="after")
    def _has_rate(self) -> EnvConfig:
        if self.max_model_age_seconds is not None and self.rate_hz is None:
            raise ValueError("env.max_model_age_seconds needs env.rate_hz")
        return self

    @property
    def info_columns(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """By key of ``info``, the dtype and the shape of its column."""
        return {key: parse_type(text, f"env.info.{key}") for key, text in self.info.items()}

    def for_evaluation(self) -> EnvConfig:
        """The environment that evaluations build."""
        wrappers = tuple(wrapper for wrapper in self.wrappers if wrapper.in_evaluations)
        params = {**self.params, **self.eval_params}
        return self.model_copy(update={"params": params, "eval_params": {}, "wrappers": wrappers})

    def for_actor(self, actor_id: int) -> EnvConfig:
        """The environment that this actor builds: without the wrappers of other actors."""
        wrappers = tuple(each for each in self.wrappers if each.actors is None or actor_id in each.actors)
        return self.model_copy(update={"wrappers": wrappers})

    def check(
        self,
        where: str,
        given: Set[str],
        params_at: str | None = None,
        *,
        optional: Set[str] = frozenset(),
        role: Role | None = None,
    ) -> None:
        super().check(where, given, params_at, optional={*optional, "seed"}, role=role)
        if self.target in _MAKERS:
            for name, kinds in _MAKERS_PARAMS.items():
                found = self.params.get(name, "")
                if not isinstance(found, kinds):
                    raise ConfigError(f"{params_at or f'{where}.params'}.{name}: expected a text, found {found!r}")
        for index, wrapper in enumerate(self.wrappers):
            wrapper.check(f"{where}.wrappers.{index}", frozenset({"env"}))


MAX_VALUES: Final = 1 << 20
"""The most values that a column of ``env.info`` may have in a row."""


def parse_type(text: str, where: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and the shape that a text such as ``float32[3]`` names.

    Raises:
        ValueError: ``text`` names no type.
    """
    found = re.fullmatch(r"(bool|u?int(?:8|16|32|64)|float(?:16|32|64))(?:\[(\d+(?:,\s*\d+)*)\])?", text)
    if found is None:
        raise ValueError(f"{where}: expected a type such as bool, float32 or float32[3], found '{text}'")
    shape = tuple(map(int, found[2].split(","))) if found[2] else ()
    if not 1 <= math.prod(shape) <= MAX_VALUES:
        raise ValueError(f"{where}: expected a type of 1 to {MAX_VALUES} values, found '{text}'")
    return np.dtype(found[1]), shape
