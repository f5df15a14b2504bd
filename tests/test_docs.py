"""The pages say what the code does: every metric, key and exit code is on its page, and no other."""

from __future__ import annotations

import importlib
import operator
import re
import tomllib
from pathlib import Path

import pytest

from common import errors
from common.config.run_config import RunConfig
from common.errors import CrossborderError
from learner.records.csv_recorder import KEYS
from pages import configuration
from tests.conftest import ROOT, MakeConfig
from tests.dashboards.test_alerts import RULES
from tests.learner.scrapes import full_run, scrape_ingest, scrape_trainer

METRICS_PAGE = (ROOT / "docs" / "metrics.md").read_text()
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
SECTIONS = "|".join(RunConfig.model_fields)
ALERTS = {rule["alert"] for rule in RULES if "crossborder_" in rule["expr"]}


def test_every_exported_metric_is_on_the_page_and_the_page_names_no_other(make_config: MakeConfig) -> None:
    with full_run(make_config) as server:
        series = {**scrape_trainer(server), **scrape_ingest(server)}
    own = {name for name in (key.partition("[")[0] for key in series) if not name.startswith(("process_", "python_"))}
    exported = {re.sub("_(bucket|count|sum)$", "", name) for name in own}
    assert set(re.findall(r"`crossborder_([a-z_]+)[`{]", METRICS_PAGE)) == exported


def test_every_metric_has_a_meaning_and_a_normal_value_and_alerts_are_known_ones() -> None:
    rows = [line.strip("|").split("|") for line in METRICS_PAGE.splitlines() if line.startswith("| `crossborder_")]
    assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in rows)
    assert set(re.findall(r"[A-Z]\w+", " ".join(row[3] for row in rows))) == ALERTS


def test_every_recorded_key_is_on_the_page() -> None:
    rows = "".join(line.split("|")[1] for line in METRICS_PAGE.splitlines() if line.startswith("| `"))
    assert set(KEYS) <= set(re.findall(r"`(\w+)`", rows))


def test_every_exit_code_is_on_its_page_and_in_the_tree() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text()
    kinds = [kind for kind in CrossborderError.__subclasses__() if kind.__module__ == errors.__name__]
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes), "each has a code of its own"
    listed = re.findall(r"^\| \[(\d+)[^\]]*\]\(#exit-code-(\d+)\) \|", page, re.MULTILINE)
    assert [code for code, _ in listed] == [anchor for _, anchor in listed]
    assert {int(code) for code, _ in listed} == {0, 1, *codes, 130}
    sections = dict(re.findall(r"^## Exit code (\d+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == [code for code, _ in listed]
    for code in codes:
        assert re.search(r"\*\*What happened\.\*\*.*\*\*How to resolve\.\*\*.*\n    \S", sections[str(code)], re.DOTALL)
    for kind in kinds:
        assert re.search(rf"{kind.__name__} +{kind.exit_code} ", errors.__doc__ or "")


@pytest.mark.parametrize("name", ["own_parts.py", "own_parts.yaml"])
def test_the_page_of_own_parts_shows_the_example_as_it_is(name: str) -> None:
    assert (ROOT / "examples" / name).read_text() in PAGES["own-parts.md"]


def test_the_page_of_own_parts_shows_a_test_that_is_one_of_ours() -> None:
    (shown,) = re.findall(r"^def test_my_parts_fit.*?(?=```)", PAGES["own-parts.md"], re.MULTILINE | re.DOTALL)
    assert shown in (ROOT / "tests" / "test_conformance.py").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_page_of_own_parts_names_every_example(path: Path) -> None:
    assert f"`examples/{path.name}`" in PAGES["own-parts.md"]


def on_pages(pattern: str, *names: str) -> list[str]:
    """What stands on these pages, or on any, between backticks and looks like this."""
    texts = [PAGES[name] for name in names] or PAGES.values()
    return sorted({found for text in texts for found in re.findall(rf"`({pattern})`", text)})


@pytest.mark.parametrize("test", on_pages(r"tests/[\w/]+\.py::\w+"))
def test_a_test_on_a_page_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", on_pages(r"(?:common|actor|learner|examples)\.[\w.]+:[\w.]+"))
def test_a_part_on_a_page_exists(target: str) -> None:
    module, _, path = target.partition(":")
    operator.attrgetter(path)(importlib.import_module(module))


@pytest.mark.parametrize("path", on_pages(r"\w[\w.-]*/[\w./-]+\.(?:py|md|mjs|yaml|proto)"))
def test_a_file_on_a_page_exists(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("key", on_pages(rf"(?!metrics\.csv|env\.params\.)(?:{SECTIONS})\.[\w.]+(?:: \S+)?"))
def test_a_setting_on_a_page_is_on_the_page_of_settings(key: str) -> None:
    assert f"| `{key.partition(':')[0]}` |" in PAGES["configuration.md"]


def commands() -> list[str]:
    """Our commands in the pages' blocks of code, without their comments, and those between backticks."""
    ours = rf"(?:{'|'.join(SCRIPTS)})"
    text = "\n".join(PAGES.values()).replace("\\\n", "")
    blocks = re.findall(rf"^ {{4,}}({ours} .*?)(?:  .*)?$", text, re.MULTILINE)
    return sorted({*blocks, *on_pages(rf"{ours}(?: [^`]+)?")})


@pytest.mark.parametrize("usage", commands())
def test_a_command_on_a_page_takes_these_options(usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *words = usage.split()
    module, _, main = SCRIPTS[command].partition(":")
    with pytest.raises(SystemExit):
        getattr(importlib.import_module(module), main)(["--help"])
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))


@pytest.mark.parametrize("path", sorted({word for usage in commands() for word in re.findall(r"configs/\S+", usage)}))
def test_a_configuration_on_a_page_is_one_of_ours(path: str) -> None:
    assert (ROOT / path).is_file()


def test_every_page_is_on_the_site() -> None:
    listed = re.findall(r"[:-] (?:decisions/)?([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted([*listed, "README.md"]) == sorted(PAGES)


def test_the_page_of_settings_is_what_the_models_say() -> None:
    assert configuration.page() == PAGES["configuration.md"]
