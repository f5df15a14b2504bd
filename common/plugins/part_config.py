"""How a configuration names parts: by their place in Python code, checked before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveFloat

from common.errors import ConfigError, PluginError
from common.hints import nearest
from common.plugins import importing
from common.settings import Settings, validate


class PluginConfig(Settings):
    """A part named by its place in Python code."""

    target: str = Field(description="What to build, as module:attr.")
    params: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments it is built with.")

    def build(self, *, optional: Mapping[str, Any] | None = None, **given: Any) -> Any:
        """Call the target with ``params`` and what the system itself provides.

        Args:
            optional: values for those targets only that have parameters of these names, which ``params`` do not give.
            given: values for every target.
        """
        target = importing.load(self.target)
        if optional:
            named = set(inspect.signature(target).parameters) - set(self.params)
            given |= {name: value for name, value in optional.items() if name in named}
        return target(**given, **self.params)

    def check(
        self,
        where: str,
        given: frozenset[str],
        params_at: str | None = None,
        *,
        optional: frozenset[str] = frozenset(),
    ) -> None:
        """See that the target can be loaded and takes these parameters and those in ``given``.

        A target with a ``Config`` (a ``Settings`` class) is checked by it, any other by its signature.

        Args:
            where: place of the target in the configuration.
            given: names of what the system itself provides.
            params_at: place of the parameters, if it is not ``{where}.params``.
            optional: names of what the system provides to those targets only that have such parameters.

        Raises:
            PluginError: the target cannot be loaded or does not take what the system gives it.
            ConfigError: a parameter is unknown, missing or has a wrong value.
        """
        params_at = params_at or f"{where}.params"
        target = importing.load(self.target)
        try:
            signature = inspect.signature(target).parameters
        except ValueError:
            return  # Some builtins have none to check.
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.values())
        missing = given - set(signature)
        if missing and not takes_any:
            raise PluginError(f"{where}: {self.target} must take {', '.join(sorted(missing))}, but does not")
        model = getattr(target, "Config", None)
        if isinstance(model, type) and issubclass(model, Settings):
            validate(model, self.params, params_at)
            return
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        known = {name for name, parameter in signature.items() if parameter.kind in by_name} - given
        for name in self.params:
            if name not in known and not takes_any:
                raise ConfigError(f"{params_at}.{name}: unknown parameter{nearest(name, known)}")
        for name in sorted(known - optional - set(self.params)):
            if signature[name].default is inspect.Parameter.empty:
                raise ConfigError(f"{params_at}.{name}: expected a value, found none")


class EnvConfig(PluginConfig):
    """An environment, what is different about it where the agent is evaluated, and what actors do when it fails."""

    eval_params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments that evaluations lay over params; same spaces expected."
    )

    rebuilds_per_minute: NonNegativeInt = Field(
        5, description="An actor builds environments that raise anew, so often; one more ends it with the exception."
    )
    timeout_seconds: PositiveFloat | None = Field(
        60.0, description="An actor ends, to be started again, when step or reset takes so long; null lets them."
    )

    def for_evaluation(self) -> PluginConfig:
        """The environment that evaluations build."""
        return PluginConfig(target=self.target, params={**self.params, **self.eval_params})
