"""What a learner may have this actor import and call, decided before anything is imported or called.

A configuration names code in five places: the environment, the agent, the step processor, the agent's network, and the
``id`` of ``gymnasium:make``. Each name is checked twice:

1. as a text, before its module is imported: importing a module executes it;
2. as an object, before it is called: a class of the right kind, or a function that is allowed by its whole name.

Any other text with a colon might be imported by somebody later, so it must be allowed by its whole text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium
import torch

from common.config.run_config import ActorConfig
from common.errors import PluginError
from common.interfaces import Agent, StepProcessor
from common.plugins import loading
from common.plugins.shipped import GYMNASIUM_PACKAGES, OWN_PACKAGES, SHIPPED, Role
from common.wire.trust import Trust

_BASES: Final[dict[Role, tuple[type, str]]] = {
    "environment": (gymnasium.Env, "gymnasium.Env"),
    "agent": (Agent, "common.interfaces.Agent"),
    "network": (torch.nn.Module, "torch.nn.Module"),
}
_PROCESSOR_METHODS: Final = tuple(name for name in vars(StepProcessor) if not name.startswith("_"))


@dataclass(frozen=True)
class Name:
    """A text of the configuration that leads to code, and where it stands."""

    place: str
    text: str
    role: Role | None = None
    """The kind of part that the text must lead to; None if crossborder itself does not load the text."""
    by_module: bool = False
    """True if an entry of ``--allow`` for the module suffices; False if it must be the whole text."""


def check_names(config: ActorConfig, trust: Trust, host: str) -> None:
    """Check that an actor may build the parts that a learner on ``host`` names, before it imports any of them.

    Raises:
        PluginError: it may not.
    """
    if not trust.allows_anything(host):
        Allowance(trust.allow).check(config)


class Allowance:
    """The parts that come with crossborder, and what the user of this actor allows besides.

    Args:
        entries: each is ``module:attr``, or a module, which allows the classes in it and in the modules below it.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._entries = tuple(entries)

    def check(self, config: ActorConfig) -> None:
        """See that all that ``config`` names is allowed and is what it should be. Nothing is called.

        Raises:
            PluginError: naming place and text, and what to add to ``--allow``.
        """
        names = [*_parts(config), *_other_texts(config)]
        self._require([name for name in names if not self._covers(name)])
        for name in names:
            if name.role is not None and not self._is_shipped(name):
                self._check_kind(name, name.role)
        self._check_gymnasium_id(config)

    def _require(self, refused: Sequence[Name]) -> None:
        if not refused:
            return
        found = "; ".join(f"{name.place}: {name.text!r}" for name in refused)
        ours = [name.text for name in refused if _is_ours(name.text)]
        if ours:
            raise PluginError(
                f"the learner names code that no part of a configuration is made of: {found}; "
                f"{', '.join(ours)} belongs to crossborder itself and is none of its environments, agents, step "
                "processors or networks, so --allow cannot cover it"
            )
        wanted = " ".join(dict.fromkeys(_as_argument(name.text) for name in refused))
        raise PluginError(
            f"the learner names code that this actor does not allow: {found}; if you trust it, start the actor with "
            f"--allow {wanted} (or with --allow any, if you trust the learner with everything)"
        )

    def _covers(self, name: Name) -> bool:
        if self._is_shipped(name):
            return True
        if _is_ours(name.text):
            return False
        return name.text in self._entries or (name.by_module and self._has_module(name.text.partition(":")[0]))

    def _is_shipped(self, name: Name) -> bool:
        return name.role is not None and name.text in SHIPPED[name.role]

    def _has_module(self, module: str) -> bool:
        return any(_within(module, entry) for entry in self._entries)

    def _check_kind(self, name: Name, role: Role) -> None:
        """See that a target is a class of its role, or a function that is allowed by its whole name."""
        target = loading.load_part(name.text)
        if isinstance(target, type):
            _check_class(name, role, target)
        elif name.text not in self._entries:
            raise PluginError(
                f"{name.place}: '{name.text}' is no class, and functions are allowed by their whole names only; "
                f"if you trust it, start the actor with --allow {name.text}"
            )

    def _check_gymnasium_id(self, config: ActorConfig) -> None:
        """Check that the id names an environment of gymnasium itself or of an allowed package."""
        target, env_id = config.env.target, config.env.params.get("id")
        if target not in SHIPPED["environment"] or env_id in self._entries:
            return
        if not isinstance(env_id, str):
            raise PluginError(f"env.params.id: expected the id of an environment as text, found {env_id!r}")
        if target != "gymnasium:make":
            if not env_id.startswith("ALE/"):
                raise PluginError(f"env.params.id: expected an Atari game such as ALE/Pong-v5, found '{env_id}'")
            return
        module, colon, name = env_id.rpartition(":")
        if colon:
            loading.load_module(module)  # Allowed already; it enters its environments into the registry.
        specs = [spec for known, spec in gymnasium.registry.items() if name in (known, known.rpartition("-v")[0])]
        if not specs:
            raise PluginError(f"env.params.id: gymnasium has no environment '{env_id}' on this host")
        for spec in specs:
            home = _home(spec)
            if not any(_within(home, package) for package in (*GYMNASIUM_PACKAGES, *self._entries)):
                raise PluginError(
                    f"env.params.id: '{env_id}' is an environment of {home}, which this actor does not allow; if you "
                    f"trust it, start the actor with --allow {home}"
                )


def _as_argument(text: str) -> str:
    """A text as it is written in a shell; what the learner sent can be copied without harm."""
    return shlex.quote(repr(text)[1:-1])


def _parts(config: ActorConfig) -> Iterator[Name]:
    """The five places that name code."""
    yield Name("env.target", config.env.target, "environment", by_module=True)
    yield Name("agent.target", config.agent.target, "agent", by_module=True)
    yield Name("step_processor.target", config.step_processor.target, "step processor", by_module=True)
    network = config.agent.params.get("network")
    if isinstance(network, dict) and isinstance(network.get("target"), str):
        yield Name("agent.params.network.target", network["target"], "network", by_module=True)
    env_id = config.env.params.get("id")
    if config.env.target == "gymnasium:make" and isinstance(env_id, str) and ":" in env_id:
        yield Name("env.params.id", env_id, by_module=True)


def _other_texts(config: ActorConfig) -> Iterator[Name]:
    """All other texts with a colon, among the parameters of those parts. An actor builds nothing of env.eval_params."""
    known = {(name.place, name.text) for name in _parts(config)}
    for section in ("env", "agent", "step_processor"):
        for place, text in _texts(getattr(config, section).params, f"{section}.params"):
            if ":" in text and (place, text) not in known:
                yield Name(place, text)


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every text in plain values, keys included, and where it stands."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield place, str(key)
            yield from _texts(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{place}.{index}")


def _check_class(name: Name, role: Role, target: type) -> None:
    if role == "step processor":
        missing = [method for method in _PROCESSOR_METHODS if not callable(getattr(target, method, None))]
        if missing:
            raise PluginError(f"{name.place}: '{name.text}' is no step processor: it has no {', '.join(missing)}")
        return
    base, called = _BASES[role]
    if not issubclass(target, base):
        raise PluginError(f"{name.place}: expected a subclass of {called}, found '{name.text}'")


def _within(module: str, allowed: str) -> bool:
    """A module allows itself and the modules below it."""
    return module == allowed or module.startswith(f"{allowed}.")


def _is_ours(text: str) -> bool:
    return any(_within(text.partition(":")[0], package) for package in OWN_PACKAGES)


def _home(spec: Any) -> str:
    """The module that an environment of gymnasium's registry comes from."""
    entry = spec.entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else str(getattr(entry, "__module__", entry))
