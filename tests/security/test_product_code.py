"""What must never enter product code: ways in which data becomes code, or a shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from common.plugins.shipped import OWN_PACKAGES
from tests.conftest import ROOT

SOURCES = sorted(path for room in OWN_PACKAGES for path in (ROOT / room).rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "compile", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
NEEDED = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
"""Calls that are safe with this argument only."""


def dangers(source: str) -> list[str]:
    """What in this source turns data into code."""
    return [danger for node in ast.walk(ast.parse(source)) for danger in _dangers_of(node)]


def _dangers_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
    elif isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        yield from sorted(names & {*CALLS, *NEEDED} | {name for name in names if name.partition(".")[0] in MODULES})
    elif isinstance(node, ast.Call):
        yield from _dangers_of_call(ast.unparse(node.func), node.keywords)


def _dangers_of_call(name: str, keywords: list[ast.keyword]) -> Iterator[str]:
    given = {word.arg: ast.unparse(word.value) for word in keywords}
    if name in CALLS:
        yield name
    if name in NEEDED and given.get(NEEDED[name][0]) != str(NEEDED[name][1]):
        yield f"{name} without {NEEDED[name][0]}={NEEDED[name][1]}"
    if given.get("shell", "False") != "False":
        yield f"{name}(shell=…)"


def test_no_product_code_turns_data_into_code() -> None:
    assert len(SOURCES) > 80
    found = {str(path.relative_to(ROOT)): dangers(path.read_text()) for path in SOURCES}
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import joblib.memory",
        "from pickle import loads",
        "from os import system",
        "from yaml import load",
        "from torch import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=chosen)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "exec(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_each_of_these_would_be_found(source: str) -> None:
    assert dangers(source)


@pytest.mark.parametrize(
    "source",
    ["torch.load(path, weights_only=True)", "yaml.safe_load(text)", "model.eval()", "run(words, shell=False)"],
)
def test_none_of_these_is_meant(source: str) -> None:
    assert not dangers(source)
