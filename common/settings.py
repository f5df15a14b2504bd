"""Strict pydantic models whose errors tell a user what to write instead."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import ConfigError
from common.plugins import nearest

SettingsT = TypeVar("SettingsT", bound="Settings")


class Settings(BaseModel):
    """Immutable, knows no unknown keys; every field carries a sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The settings model an annotation names, also as ``Model | None``."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _model_at(model: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel] | None:
    for key in path:
        field = model.model_fields.get(str(key))
        inner = _model_in(field.annotation) if field else None
        if inner is None:
            return None
        model = inner
    return model


def validate(model: type[SettingsT], values: object, where: str = "") -> SettingsT:
    """Build ``model`` from plain values.

    Raises:
        ConfigError: one line per problem: where, what was expected, what was found.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = []
        for item in error.errors():
            place = ".".join(str(key) for key in ((where,) if where else ()) + item["loc"])
            if item["type"] == "extra_forbidden":
                owner = _model_at(model, item["loc"][:-1])
                hint = nearest(str(item["loc"][-1]), owner.model_fields) if owner else ""
                problems.append(f"{place}: unknown key{hint}")
            elif item["type"] == "missing":
                problems.append(f"{place}: expected a value, found none")
            else:
                problems.append(f"{place or 'config'}: {item['msg']}, found {item['input']!r}")
        raise ConfigError("\n".join(problems)) from None
