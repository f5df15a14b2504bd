"""Strict pydantic models with error messages that tell a user which key or value to write instead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from common.errors import ConfigError
from common.hints import nearest
from common.home import expand_home

_WORDS: Final = {
    "Input is not a valid path for <class 'pathlib.Path'>": "expected a path",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid dictionary": "keys and values",
    "a valid integer": "an integer",
    "a valid string": "a text",
    "a valid boolean": "true or false",
    "a valid": "a",
    "expected greater": "expected a number greater",
    "expected less": "expected a number less",
}
"""What pydantic calls the kinds of values, and what users call them."""
SettingsT = TypeVar("SettingsT", bound="Settings")


def _require_path(value: Any) -> Any:
    if value == "":  # Path would take it for the current directory.
        raise ValueError("expected a path, found ''")
    return value


HomePath = Annotated[Path, BeforeValidator(_require_path), AfterValidator(expand_home)]
"""A path of a configuration, in which ``~`` is the home of the user whose process reads it."""
MAX_SECONDS: Final = 100_000_000
"""Three years: Python's timers take no number of seconds, however large."""
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
PathElsewhere = Annotated[Path, "``~`` is kept"]
"""A path on another host, whose command replaces ``~`` when it gets the path as an option."""


_UNKNOWN: Final = object()
MOST_SHOWN: Final = 200
"""The most characters of a found value in the message of an error."""


def _is_former(value: Any, default: Any) -> bool:
    """Whether a value is the former default, one of a tuple of them, or a mapping with some keys of it."""
    if isinstance(default, tuple):
        return any(_is_former(value, each) for each in default)
    if isinstance(value, Mapping) and isinstance(default, Mapping):
        return value.items() <= default.items()
    return bool(value == default)


class Settings(BaseModel):
    """Base of all settings: immutable, refuses unknown keys. Every field has a sentence as its description."""

    GONE: ClassVar[Mapping[str, Any]] = {}
    """Settings that are constants or derived now, with their former defaults, or a tuple of values. A key with such a
    value is ignored, since it asks for nothing else: runs of the previous release name all keys, and its learners send
    them to actors."""

    INSTEAD: ClassVar[Mapping[str, str]] = {}
    """What a user writes in the place of settings that are gone, for the error that refuses another value of them."""

    LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields of actors' settings that actors of the previous release do not know; see ``unknown_before``."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",  # By default pydantic writes null for infinite parameters and bounds of spaces.
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_constants(cls, values: Any) -> Any:
        if not cls.GONE or not isinstance(values, Mapping):
            return values
        return {key: value for key, value in values.items() if not _is_former(value, cls.GONE.get(key, _UNKNOWN))}

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_truth(cls, values: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse a truth value where a number is expected: pydantic takes true for 1, and YAML reads yes as true."""
        found = read(values)
        for key, value in values.items() if isinstance(values, Mapping) else ():
            number = getattr(found, key, None)
            if isinstance(value, bool) and isinstance(number, int | float) and not isinstance(number, bool):
                raise ValueError(f"{key}: expected a number, found {str(value).lower()}")
        return found

    def refuse_beside(self, setting: str, *keys: str, reason: str) -> None:
        """Refuse fields that are given although they have no effect beside another setting.

        Args:
            setting: the other setting, as a user writes it, such as ``targets: false``.
            keys: the fields; one that is null counts as not given.
            reason: why they have no effect.

        Raises:
            ValueError: one of them is given.
        """
        for key in keys:
            if key in self.model_fields_set and getattr(self, key) is not None:
                raise ValueError(f"give {setting} or {key}, not both: {reason}")


def unknown_before(settings: Settings) -> dict[str, Any]:
    """The fields that are in ``LATER`` and have their default, in the form that pydantic's ``exclude`` takes.

    The learner must not send these fields to an actor of the previous release, which refuses unknown keys. It does send
    a field with another value than the default: an actor that ignored the field would not act as its user configured.
    """
    excluded: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if name in settings.LATER and value == field.get_default(call_default_factory=True):
            excluded[name] = True
        elif isinstance(value, Settings) and (inner := unknown_before(value)):
            excluded[name] = inner
        elif isinstance(value, tuple):
            parts = {i: unknown_before(part) for i, part in enumerate(value) if isinstance(part, Settings)}
            if any(parts.values()):
                excluded[name] = {i: part for i, part in parts.items() if part}
    return excluded


def models_in(annotation: Any) -> list[type[Settings]]:
    """The settings models in an annotation: one (``Model``, ``Model | None``), or several that differ by ``kind``."""
    named = (annotation, *get_args(annotation))
    return [model for model in named if isinstance(model, type) and issubclass(model, Settings)]


def _locate(model: type[Settings], path: tuple[int | str, ...]) -> tuple[list[str], type[Settings] | None]:
    """The keys of a path in pydantic's error as a user wrote them, and the model that has the last key.

    If several models differ by their ``kind``, pydantic's path also holds the kind, which the user wrote as a value.
    If a value may have several kinds, such as a text or a mapping, it also holds the kind that was tried.
    """
    keys: list[str] = []
    owner, models, is_mapping, is_union = None, [model], False, False
    for key in path:
        if is_union:  # The kind of value that was tried, such as str, which the user has not written.
            is_union = False
            continue
        if len(models) > 1:
            models = [m for m in models if m.model_fields["kind"].default == key]
            continue
        keys.append(str(key))
        if isinstance(key, int) or is_mapping:
            is_mapping = False
            continue  # The place in a list, or a name in a mapping: the models of its entries are those of the field.
        owner = models[0] if models else None
        field = owner.model_fields.get(str(key)) if owner else None
        models = models_in(field.annotation) if field else []
        is_mapping = field is not None and get_origin(field.annotation) is dict
        is_union = field is not None and not models and _is_union(field.annotation)
    return keys, owner


def _is_union(annotation: Any) -> bool:
    """Whether a value may have several kinds, besides null."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else ()
    return len({*kinds} - {NoneType}) > 1


def _explain_unknown(key: str, owner: type[Settings] | None) -> str:
    if owner is None:
        return "unknown key"
    if key in owner.INSTEAD:
        return f"unknown key ({owner.INSTEAD[key]})"
    return f"unknown key{nearest(key, owner.model_fields)}"


def _say_plainly(message: str) -> str:
    """A message of pydantic's in the words of YAML: "Input should be a valid tuple" is "expected a list"."""
    expected = re.sub("^(Input should be|[A-Z][a-z]+ should have) ", "expected ", message)
    expected = re.sub("(, unable to|, got a| or instance of| or object to| after validation).*", "", expected)
    expected = re.sub("^Unable to parse input string as an integer.*", "expected a smaller integer", expected)
    expected = re.sub("^String should match pattern", "expected a text that matches", expected)
    for theirs, ours in _WORDS.items():
        expected = expected.replace(theirs, ours)
    return expected


@contextmanager
def naming_setting(place: str) -> Iterator[None]:
    """A context that looks at what a setting names, such as a file.

    Raises:
        ConfigError: begins with ``place``, unless this is empty: then nobody has written the setting.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}" if place else str(error)) from error


def _show(value: object) -> str:
    """A value that was found, as Python writes it; a long one is cut off."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _explain(item: Mapping[str, Any], keys: list[str], owner: type[Settings] | None, place: str) -> str | None:
    """The line about a problem that has words of its own here; None: the value is of another kind than expected."""
    given: Mapping[str, Any] = item.get("ctx", {})
    match item["type"]:
        case "invalid_key":
            at = place.rpartition(".")[0] or "config"
            return f"{at}: expected texts as keys, found {_show(item['input'])}"
        case "union_tag_invalid":
            tag = item["input"]["kind"] if isinstance(item["input"], Mapping) else given["tag"]
            return f"{place}.kind: expected one of {given['expected_tags']}, found {_show(tag)}"
        case "extra_forbidden":
            return f"{place}: {_explain_unknown(keys[-1], owner)}"
        case "missing" | "union_tag_not_found" as kind:
            return f"{place}{'' if kind == 'missing' else '.kind'}: expected a value, found none"
        case "value_error":  # A validator of crossborder raised it; its text names the found value.
            problem = str(given["error"])
            if isinstance(item["input"], str) and len(item["input"]) > MOST_SHOWN:
                problem = problem.replace(item["input"], f"{item['input'][:MOST_SHOWN]}…")
            return f"{place}: {problem}" if place and not problem.startswith(place) else problem
    return None


def validate(model: type[SettingsT], values: object, where: str = "") -> SettingsT:
    """Build ``model`` from plain values.

    Raises:
        ConfigError: with one line per problem, which names the place, the expected and the found value.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems, kinds = list[str](), Counter[str]()
        for item in error.errors():
            keys, owner = _locate(model, item["loc"])
            place = ".".join([where, *keys] if where else keys).removesuffix(".[key]")
            if (problem := _explain(item, keys, owner, place)) is not None:
                problems.append(problem)
                continue
            is_word = type(item["input"]) is bool and item["type"] in ("literal_error", "path_type", "string_type")
            hint = is_word * "; YAML takes on, off, yes and no for truth values: put quotes around such a text"
            expected, found = _say_plainly(item["msg"]), f", found {_show(item['input'])}{hint}"
            if kinds[place] and problems[-1].endswith(found):  # The value may have several kinds.
                problems[-1] = f"{problems[-1].removesuffix(found)} or {expected.removeprefix('expected ')}{found}"
            else:
                problems.append(f"{place or 'config'}: {expected}{found}")
            kinds[place] += 1
        raise ConfigError("\n".join(problems)) from None
