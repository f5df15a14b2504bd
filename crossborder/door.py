"""Finds what ``import crossborder`` offers, by the list of names in ``crossborder/__init__.pyi``."""

from __future__ import annotations

import ast
import importlib
import sys
from functools import cache
from pathlib import Path
from typing import Final

from crossborder.commands import LEARNER_NEEDS, PACKAGES, advise

_LIST: Final = Path(__file__).with_name("__init__.pyi")


@cache
def read_sections() -> dict[str, dict[str, str]]:
    """By heading of the list, the names below it, and the module that has each."""
    sections: dict[str, dict[str, str]] = {}
    heading = ""
    for node in ast.parse(_LIST.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            sections.setdefault(heading, {}).update({alias.name: str(node.module) for alias in node.names})
        elif isinstance(node, ast.Expr):
            heading = str(ast.literal_eval(node.value))
    return sections


@cache
def public_names() -> dict[str, str]:
    """By public name, the module that has it."""
    return {name: module for names in read_sections().values() for name, module in names.items()}


def find_public(name: str) -> object:
    """What has this public name.

    Raises:
        AttributeError: nothing has.
        ImportError: a package is missing or has the name of one of crossborder's; the message says what to do.
    """
    module = public_names().get(name)
    if module is None:
        package = sys.modules["crossborder"]
        raise AttributeError(f"module 'crossborder' has no attribute '{name}'", name=name, obj=package)
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        is_of_installation = (error.name or "").partition(".")[0] in (*PACKAGES, *LEARNER_NEEDS)
        if not is_of_installation or (advice := advise(LEARNER_NEEDS)) is None:
            raise
        raise ImportError(f"crossborder.{name}: {'; '.join(advice)}") from error
