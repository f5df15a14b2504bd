"""Which code a learner or a saved policy may have imported and called, decided before anything is imported or called.

A configuration names code in these places: the environment, its wrappers and its safe stop, the device by which a
person takes over, the agent, the step processor, the agent's network and its frozen encoders, the ``id`` of
``gymnasium:make``, the program of a game of ``godot``, and, where an actor evaluates, the evaluator, the ``id`` of its
environments and the spaces. Each name is checked twice:

1. as a text, before its module is imported: importing a module executes it;
2. as an object, before it is called: it must be a class of the right kind, or a function that is allowed by its whole
   name.

A user's own part may import any other text with a colon among its parameters, so the user must allow each of these
texts as a whole.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium
import torch
from gymnasium.vector import VectorEnv, VectorWrapper

from common.config.actor_config import ActorConfig
from common.errors import PluginError
from common.interfaces import Agent, RowMap
from common.plugins import part_loading
from common.plugins.shipped import GYMNASIUM_PACKAGES, METHODS, OWN_PACKAGES, SHIPPED, Role
from common.wire.trust import Trust

_BASES: Final[dict[Role, tuple[tuple[type, ...], str]]] = {
    "environment": ((gymnasium.Env, VectorEnv), "gymnasium.Env or VectorEnv"),
    "wrapper": ((gymnasium.Wrapper, VectorWrapper), "gymnasium.Wrapper or VectorWrapper"),
    "agent": ((Agent,), "crossborder.Agent"),
    "network": ((torch.nn.Module,), "torch.nn.Module"),
}
_WITHOUT_ID: Final = (
    "common.envs.goals:Reach",
    "common.envs.godot:make",
    "common.envs.masked_tasks:TakeAway",
    "common.envs.memory_tasks:Cue",
)
"""crossborder's own environments that have no ``id``."""
_GODOT: Final = "common.envs.godot:make"
"""The factory whose ``path`` and ``arguments`` are the command line of a program."""
_TELEOPERATE: Final = "crossborder.people.teleoperation:Teleoperate"
"""The wrapper whose parameter ``device`` names code."""
_PETTINGZOO: Final = "common.envs.pettingzoo:make"
"""The factory whose ``id`` may be a function."""
_MPE2: Final = re.compile(r"mpe2\.\w+:(parallel_)?env")
"""The functions of MPE2, which were part of PettingZoo and are not in its registry."""
_OF_ONE_PACKAGE: Final = ("common.envs.minatar:make", _PETTINGZOO, "common.envs.pool:make")
"""Factories of which each makes the environments of one package only, for every ``id`` without a colon."""
_MAKERS: Final = ("gymnasium:make", "gymnasium:make_vec")
"""The factories whose ``id`` names an entry of gymnasium's registry."""


@dataclass(frozen=True)
class Name:
    """A text of the configuration that names code, and its place there."""

    place: str
    text: str
    role: Role | None = None
    """The kind of part that the text must name; None if crossborder itself does not load the text."""
    by_module: bool = False
    """True if an entry of ``--allow`` for the module suffices; False if it must be the whole text."""


def check_names(config: ActorConfig, trust: Trust, *, is_own_host: bool, evaluates: bool = False) -> None:
    """Check that an actor may build the parts that its learner names, before it imports any of them.

    Args:
        config: the learner's.
        trust: says what is allowed.
        is_own_host: whether the learner is on this host, and this user's or root's.
        evaluates: whether the actor builds the evaluator too.

    Raises:
        PluginError: it may not build one of them.
    """
    if not trust.allows_anything(is_own_host=is_own_host):
        Allowance(trust.allow).check(config, evaluates=evaluates)


class Allowance:
    """The parts that come with crossborder, and others that the user of this actor allows.

    Args:
        entries: each is ``module:attr``, or a module, which allows the classes in it and in the modules below it.
        namer: what names the parts, a noun for messages.
    """

    def __init__(self, entries: Sequence[str], namer: str = "the learner") -> None:
        self._entries, self._namer = tuple(entries), namer

    def check(self, config: ActorConfig, *, evaluates: bool = False) -> None:
        """Check that every name in ``config`` is allowed and is a part of the right kind. Nothing is called.

        Raises:
            PluginError: naming the place, the text, and the entry to add to ``--allow``.
        """
        names = [*_part_names(config, evaluates), *_other_names(config, evaluates)]
        refused = [name for name in names if not self._covers(name)]
        if refused:
            raise self._refusal(refused)
        for name in names:
            if name.role is not None and not self._is_shipped(name):
                self._check_kind(name, name.role)
        for place, env_id in _env_ids(config, evaluates):
            self._check_gymnasium_id(place, env_id, config.env.target)

    def _covers(self, name: Name) -> bool:
        if self._is_shipped(name):
            return True
        if _is_ours(name.text):
            return False
        module = name.text.partition(":")[0]
        return name.text in self._entries or (name.by_module and any(_within(module, entry) for entry in self._entries))

    def _is_shipped(self, name: Name) -> bool:
        return name.role is not None and name.text in SHIPPED[name.role].values()

    def _check_kind(self, name: Name, role: Role) -> None:
        """Check that a target is a class of its role, or a function that is allowed by its whole name."""
        try:
            target = part_loading.load_part(name.text)
        except PluginError:
            return  # It cannot be called either. The code that needs it says why; a policy may be used without its env.
        if isinstance(target, type):
            _check_class(name, role, target)
        elif name.text not in self._entries:
            raise PluginError(
                f"{name.place}: '{name.text}' is no class, and functions are allowed by their whole names only; "
                f"if you trust it, say --allow {name.text}"
            )

    def _check_gymnasium_id(self, place: str, env_id: object, target: str) -> None:
        """Check that the id names an environment of gymnasium itself or of an allowed package."""
        if target not in SHIPPED["environment"].values() or target in _WITHOUT_ID or env_id in self._entries:
            return
        if not isinstance(env_id, str):
            raise PluginError(f"{place}: expected the id of an environment as text, found {env_id!r}")
        if target in _OF_ONE_PACKAGE:
            return
        if target not in _MAKERS:
            if not env_id.startswith("ALE/"):
                raise PluginError(f"{place}: expected an Atari game such as ALE/Pong-v5, found '{env_id}'")
            return
        module, colon, name = env_id.rpartition(":")
        if colon:
            part_loading.load_module(module)  # It is allowed; importing it enters its environments into the registry.
        specs = [spec for known, spec in gymnasium.registry.items() if name in (known, known.rpartition("-v")[0])]
        if not specs:
            raise PluginError(f"{place}: gymnasium has no environment '{env_id}' on this host")
        for spec in specs:
            home = _module_of(spec)
            if not any(_within(home, package) for package in (*GYMNASIUM_PACKAGES, *self._entries)):
                raise PluginError(
                    f"{place}: '{env_id}' is an environment of {home}, which is not allowed; if you trust it, say "
                    f"--allow {home}"
                )

    def _refusal(self, refused: Sequence[Name]) -> PluginError:
        """The error that names all texts that are not allowed, and the option that would allow them."""
        found = "; ".join(f"{name.place}: {name.text!r}" for name in refused)
        ours = [name.text for name in refused if _is_ours(name.text)]
        if ours:
            return PluginError(
                f"{self._namer} names code that cannot be a part of a configuration: {found}; "
                f"{', '.join(ours)} belongs to crossborder itself and is none of its environments, agents, networks or "
                "evaluators, so --allow cannot cover it"
            )
        # Quoted, so that the user can copy a stranger's text into a shell without harm.
        wanted = " ".join(dict.fromkeys(shlex.quote(repr(name.text)[1:-1]) for name in refused))
        return PluginError(
            f"{self._namer} names code that is not allowed: {found}; if you trust it, say --allow {wanted} "
            f"(or --allow any, if you trust {self._namer} with everything)"
        )


def _part_names(config: ActorConfig, evaluates: bool) -> Iterator[Name]:
    """The places that name code."""
    # Parts that this process builds; an actor that does not evaluate builds no evaluator.
    yield Name("env.target", config.env.target, "environment", by_module=True)
    for index, wrapper in enumerate(config.env.wrappers):
        yield Name(f"env.wrappers.{index}.target", wrapper.target, "wrapper", by_module=True)
        named = wrapper.params.get("device")
        if wrapper.target == _TELEOPERATE and isinstance(named, dict) and isinstance(named.get("target"), str):
            yield Name(f"env.wrappers.{index}.params.device.target", named["target"], "device", by_module=True)
    yield Name("agent.target", config.agent.target, "agent", by_module=True)
    if config.step_processor is not None:
        yield Name("step_processor.target", config.step_processor.target, "step processor", by_module=True)
    if evaluates:
        yield Name("evaluator.target", config.evaluator.target, "evaluator", by_module=True)
    # Parts of parts. Only an agent knows what its params mean, so these are the keys of our own agents.
    networks, frozen = {"network": config.agent.params.get("network")}, config.agent.params.get("frozen_encoders")
    if isinstance(frozen, dict):
        networks |= {f"frozen_encoders.{path}": encoder for path, encoder in frozen.items()}
    for key, network in networks.items():
        if isinstance(network, dict) and isinstance(network.get("target"), str):
            yield Name(f"agent.params.{key}.target", network["target"], "network", by_module=True)
    # Texts that make another library import a module, or start a program.
    for place, env_id in _env_ids(config, evaluates):
        if config.env.target in _MAKERS and isinstance(env_id, str) and ":" in env_id:
            yield Name(place, env_id, by_module=True)
    for place, params in _games(config, evaluates):
        yield Name(place, shlex.join(map(str, [params.get("path"), *(params.get("arguments") or [])])))
    if evaluates and isinstance(config.env.spaces, str):
        yield Name("env.spaces", config.env.spaces)
    if isinstance(config.env.safe_stop, str) and ":" in config.env.safe_stop:
        yield Name("env.safe_stop", config.env.safe_stop)


def _env_ids(config: ActorConfig, evaluates: bool) -> Iterator[tuple[str, object]]:
    """The ids of the environments in which an actor acts and, if it evaluates, evaluates: their places and values."""
    yield "env.params.id", config.env.params.get("id")
    if evaluates and "id" in config.env.eval_params:
        yield "env.eval_params.id", config.env.eval_params["id"]


def _games(config: ActorConfig, evaluates: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The places that name a game's program, and the parameters there."""
    places = {"env.params": config.env.params}
    if evaluates and config.env.eval_params:
        places["env.eval_params"] = {**config.env.params, **config.env.eval_params}
    for place, params in places.items():
        if config.env.target == _GODOT and params.get("path") is not None:
            yield f"{place}.path", params


def _other_names(config: ActorConfig, evaluates: bool) -> Iterator[Name]:
    """All other texts with a colon, among the parameters of those parts."""
    known = {(name.place, name.text) for name in _part_names(config, evaluates)}
    if config.env.target == _PETTINGZOO:
        known |= {(at, str(env_id)) for at, env_id in _env_ids(config, evaluates) if _MPE2.fullmatch(str(env_id))}
    for place, params in _params(config, evaluates):
        for found, text in _find_texts(params, place):
            if ":" in text and (found, text) not in known:
                yield Name(found, text)


def _params(config: ActorConfig, evaluates: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parameters of the parts that an actor builds; ``env.eval_params`` are only those of one that evaluates."""
    yield "env.params", config.env.params
    for index, wrapper in enumerate(config.env.wrappers):
        yield f"env.wrappers.{index}.params", wrapper.params
    yield "agent.params", config.agent.params
    if config.step_processor is not None:
        yield "step_processor.params", config.step_processor.params
    if evaluates:
        yield "env.eval_params", config.env.eval_params
        yield "evaluator.params", config.evaluator.params


def _find_texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every text in plain values, keys included: its place and the text."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield place, str(key)
            yield from _find_texts(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _find_texts(inner, f"{place}.{index}")


def _check_class(name: Name, role: Role, target: type) -> None:
    if role in METHODS:
        missing = [method for method in METHODS[role] if not callable(getattr(target, method, None))]
        if missing and not (role == "step processor" and issubclass(target, RowMap)):
            raise PluginError(f"{name.place}: '{name.text}' is no {role}: it has no {', '.join(missing)}")
        return
    bases, names = _BASES[role]
    if not issubclass(target, bases):
        raise PluginError(f"{name.place}: expected a subclass of {names}, found '{name.text}'")


def _within(module: str, allowed: str) -> bool:
    """Whether a module is the allowed module or lies below it."""
    return module == allowed or module.startswith(f"{allowed}.")


def _is_ours(text: str) -> bool:
    return any(_within(text.partition(":")[0], package) for package in OWN_PACKAGES)


def _module_of(spec: Any) -> str:
    """The module that an environment of gymnasium's registry comes from."""
    entry = spec.entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else str(getattr(entry, "__module__", entry))
