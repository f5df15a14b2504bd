"""``docs/configuration.md``: every field with its key, type, default and sentence, from the pydantic models."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_origin

from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from common.agents.awac import AWACConfig
from common.agents.bc import BCConfig
from common.agents.c51 import C51Config
from common.agents.discrete_sac import DiscreteSACConfig
from common.agents.dqn import DQNConfig
from common.agents.impala import IMPALAConfig
from common.agents.iql import IQLConfig
from common.agents.iqn import IQNConfig
from common.agents.ppo import PPOConfig
from common.agents.qr_dqn import QRDQNConfig
from common.agents.r2d2 import R2D2Config
from common.agents.recurrent_ppo import RecurrentPPOConfig
from common.agents.recurrent_sac import RecurrentSACConfig
from common.agents.sac import SACConfig
from common.agents.td3 import TD3Config
from common.config.run_config import RunConfig
from common.plugins.part_config import PluginConfig
from common.plugins.shipped import SHIPPED, SHORT_NAMES
from common.settings import Settings, models_in
from learner.replay.view import View
from learner.views.hindsight import Hindsight
from learner.views.rollouts import Rollouts
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions

AGENTS: tuple[type[Settings], ...] = (
    DQNConfig,
    IQNConfig,
    C51Config,
    QRDQNConfig,
    R2D2Config,
    SACConfig,
    TD3Config,
    DiscreteSACConfig,
    RecurrentSACConfig,
    BCConfig,
    AWACConfig,
    IQLConfig,
    IMPALAConfig,
    PPOConfig,
    RecurrentPPOConfig,
)
VIEWS: tuple[type[View], ...] = (Transitions, Sequences, Rollouts, Hindsight)
HEAD = """\
# Configuration

<!-- Written by `make pages` from the models in common/: change it there. -->

One YAML file describes a run. `learner-server`, `sync-train` and `offline-train` read the same file, and actors get
their part of it from the learner. `--show-config` prints the file with all defaults, `--set KEY=VALUE` changes single
values, and `--check` builds everything once without training. If a key is unknown, the error names the nearest known
key; if a value is wrong, it names the values that are expected. Times are in seconds. In a path, `~` is the home of the
user who runs the command.

A key `target` names a part. Your own part is `module:attr`, such as `my_parts:MyAgent`. A part of crossborder has a
[short name](#short-names) too: `DQN` is `common.agents.dqn:DQN`. What a run records has the whole name.
"""
AGENTS_HEAD = """\
## Agents

The settings under `agent.params`, for each agent. Your own agent has the parameters of its constructor.
"""
VIEWS_HEAD = """\
## Views

The settings under `replay.view.params`, for each view ([what an agent draws](rows-and-views.md#what-an-agent-draws)).
"""
NAMES_HEAD = """\
## Short names

The parts of crossborder that a `target` may name shortly.
"""
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
NAMES = {
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "string": "string",
    "object": "mapping",
    "null": "null",
}


def page() -> str:
    """The whole page."""
    fields = RunConfig.model_fields
    alone = [name for name, field in fields.items() if not models_in(field.annotation)]
    parts = [HEAD, _section("## The run", "Keys at the top of the file.", rows_of(RunConfig, "", alone))]
    for name, field in fields.items():
        for model in models_in(field.annotation):
            about = field.description if model is PluginConfig else _summary(model)
            default = field.get_default()
            rows = rows_of(model, _prefix(name, field), given=default if isinstance(default, model) else None)
            if default is None:  # The section may be left out.
                rows = rows_of(RunConfig, "", [name])
            parts.append(_section(f"## `{name}`", about or "", rows))
    parts.append(AGENTS_HEAD)
    for model in AGENTS:
        name = model.__name__.removesuffix("Config")
        parts.append(_section(f"### `{name}`", _summary(model), rows_of(model, "agent.params.")))
    parts.append(VIEWS_HEAD)
    parts += [_section(f"### `{view.__name__}`", _summary(view), _parameters(view)) for view in VIEWS]
    parts.append("\n".join((NAMES_HEAD, "| part | short name | whole name |", "|---|---|---|", *_short_names(), "")))
    return "\n".join(parts)


def _short_names() -> Iterator[str]:
    for role, names in SHIPPED.items():
        for short, target in names.items():
            yield f"| {role} | `{short}` | `{target}` |"


def _parameters(view: type[View]) -> Iterator[str]:
    """A row for each parameter of a view; the sentences are those of its docstring."""
    text = re.search(r"Args:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(view) or "", re.DOTALL)
    sentences = dict(re.findall(r"^    (\w+): (.*(?:\n     .*)*)", text[1] if text else "", re.MULTILINE))
    for name, parameter in inspect.signature(view).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            default = PydanticUndefined if parameter.default is parameter.empty else parameter.default
            about = " ".join(sentences[name].split()).replace("``", "`")
            kind = parameter.annotation.replace("str", "string").replace(" | None", " or null")
            yield f"| `replay.view.params.{name}` | {kind} | {_default(default)} | {about[0].upper()}{about[1:]} |"


def _summary(model: type[Settings | View]) -> str:
    return (model.__doc__ or "").splitlines()[0].replace("``", "`")


def _section(heading: str, about: str, rows: Iterator[str]) -> str:
    return "\n".join((heading, "", about, "", "| key | type | default | |", "|---|---|---|---|", *rows, ""))


def rows_of(
    model: type[Settings], prefix: str, names: Sequence[str] = (), given: Settings | None = None
) -> Iterator[str]:
    """A row for each field, followed by the rows of the models in that field.

    Args:
        model: has the fields.
        prefix: the beginning of their keys.
        names: of the fields to list; empty lists all.
        given: an instance that has the defaults; None takes the defaults of the fields.
    """
    schemas = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        if names and name not in names:
            continue
        default = field.get_default(call_default_factory=True) if given is None else getattr(given, name)
        yield f"| `{prefix}{name}` | {_type(schemas[name])} | {_default(default)} | {_sentence(field)} |"
        for inner in models_in(field.annotation):
            beginning = default if isinstance(default, inner) else None
            yield from rows_of(inner, prefix + _prefix(name, field), given=beginning)


def _prefix(name: str, field: FieldInfo) -> str:
    """The beginning of the keys in a field that holds a model, a tuple of models, or models by name."""
    origin = get_origin(field.annotation)
    return f"{name}[]." if origin is tuple else f"{name}.NAME." if origin is dict else f"{name}."


def _sentence(field: FieldInfo) -> str:
    alias = field.validation_alias
    others = alias.choices[1:] if isinstance(alias, AliasChoices) else []
    return (field.description or "") + "".join(f" Also `{other}`." for other in others)


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, str):
        value = next((short for short, target in SHORT_NAMES.items() if target == value), value)
    return "see below" if isinstance(value, Settings) else f"`{json.dumps(to_jsonable_python(value))}`"


def _type(schema: dict[str, Any]) -> str:
    """A field's JSON Schema in a few words."""
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(each) for each in several))
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return "mapping"
    if "format" in schema:
        return str(schema["format"])
    if schema["type"] == "array":
        entries = schema.get("prefixItems") or [schema["items"]]
        kinds = ", ".join(dict.fromkeys(_type(entry) for entry in entries if entry))  # {} is any value.
        return f"list of {kinds}" if kinds else "list"
    bounds = [text.format(schema[key]) for key, text in BOUNDS.items() if key in schema]
    return " ".join([NAMES.get(schema["type"], schema["type"]), ", ".join(bounds)]).strip()
