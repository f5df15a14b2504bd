from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import gymnasium
import pytest
import torch

import common.agents
from common import parts
from common.agents import networks
from common.interfaces import Agent
from common.plugins import part_loading
from common.plugins.shipped import METHODS, OWN_PACKAGES, SHIPPED, SHORT_NAMES, Role
from crossborder import people
from crossborder.people.device import Device


def classes_in(*modules: object) -> Iterator[type]:
    """Public concrete classes that these modules define."""
    for module in modules:
        for name, found in vars(module).items():
            is_defined_there = getattr(found, "__module__", "") == getattr(module, "__name__", None)
            if inspect.isclass(found) and is_defined_there and name[0] != "_" and not inspect.isabstract(found):
                yield found


def is_step_processor(part: type) -> bool:
    return all(hasattr(part, name) for name in ("schema", "reset", "process"))


def agent_modules() -> list[object]:
    return [importlib.import_module(f"common.agents.{m.name}") for m in pkgutil.iter_modules(common.agents.__path__)]


def named(found: Iterator[type] | list[type]) -> set[str]:
    return {f"{part.__module__}:{part.__name__}" for part in found}


def targets(role: Role) -> set[str]:
    return {*SHIPPED[role].values()}


def test_every_agent_is_listed() -> None:
    assert named([part for part in classes_in(*agent_modules()) if issubclass(part, Agent)]) == {
        *SHIPPED["agent"].values()
    }


def test_every_step_processor_is_listed() -> None:
    assert named([part for part in classes_in(parts) if is_step_processor(part)]) == {
        *SHIPPED["step processor"].values()
    }


def test_every_network_that_a_configuration_can_name_is_listed() -> None:
    """Such a network is built from ``in_shape`` and ``out_dim`` alone."""

    def fits(part: type) -> bool:
        required = [p.name for p in inspect.signature(part).parameters.values() if p.default is inspect.Parameter.empty]
        return issubclass(part, torch.nn.Module) and required == ["in_shape", "out_dim"]

    fitting = {name for name in networks.__all__ if isinstance(part := getattr(networks, name), type) and fits(part)}
    assert {f"common.agents.networks:{name}" for name in fitting} == targets("network")


def test_every_device_is_listed() -> None:
    modules = [importlib.import_module(f"crossborder.people.{m.name}") for m in pkgutil.iter_modules(people.__path__)]
    devices = [part for part in classes_in(*modules) if all(hasattr(part, name) for name in METHODS["device"])]
    assert named([part for part in devices if part is not Device]) == targets("device")


@pytest.mark.parametrize("target", SHIPPED["environment"].values())
def test_every_factory_of_environments_exists(target: str) -> None:
    found = part_loading.load_part(target)
    assert inspect.isfunction(found) or (isinstance(found, type) and issubclass(found, gymnasium.Env))


def test_every_shipped_part_is_in_a_package_of_ours_or_of_gymnasium() -> None:
    packages = {target.partition(":")[0].partition(".")[0] for target in SHORT_NAMES.values()}
    assert packages <= {*OWN_PACKAGES, "gymnasium"}


@pytest.mark.parametrize(("short", "target"), SHORT_NAMES.items())
def test_every_shipped_part_exists_and_a_class_has_its_own_name_as_short_name(short: str, target: str) -> None:
    found = part_loading.load_part(target)
    assert not isinstance(found, type) or found.__name__ == short


def test_every_short_name_names_one_part() -> None:
    assert len(SHORT_NAMES) == sum(len(names) for names in SHIPPED.values())
    assert len({*SHORT_NAMES.values()}) == len(SHORT_NAMES)
