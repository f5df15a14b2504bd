"""The pages say what the code does: every metric, key and exit code is on its page, and no other."""

from __future__ import annotations

import ast
import importlib
import operator
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from common import errors
from common.config.nested import overlay
from common.config.run_config import RunConfig
from common.errors import CrossborderError
from common.plugins.shipped import OWN_PACKAGES
from common.settings import validate
from learner.commands import learner_server, sync_train
from learner.records.csv_recorder import KEYS
from pages import configuration
from tests.conftest import ROOT, MakeConfig, wait_for
from tests.dashboards.test_alerts import RULES
from tests.learner.scrapes import full_run, scrape_ingest, scrape_trainer

METRICS_PAGE = (ROOT / "docs" / "metrics.md").read_text()
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
SHELL = "#SBATCH . cp docker export git make mkdir node pip python python3 scp ssh sudo torchrun"
"""Words with which a block for the shell begins, beside our commands; the site colours such a block as one."""
SECTIONS = "|".join(RunConfig.model_fields)
SEARCHED = """
    tutorial FAQ troubleshoot hyperparameter wandb tensorboard demonstration intervention multi-gpu distributed slurm
    kubernetes docker image camera lstm recurrent resume crash reboot slow gpu memory disk windows macos ppo pettingzoo
"""
"""Words that people search for."""
UNLINKED = {
    "README.md",
    "style.md",
    "glossary.md",
    "configuration.md",
    *(name for name in PAGES if name.startswith("api")),
}
"""Pages that explain our words, and pages that are generated or short."""
NO_PROSE = re.compile(
    r"<!-- \w+(?: \S+)? -->.*?<!-- end -->|```.*?```|^ {4,}\S.*?$|^#.*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL
)
"""What is generated, code, and headings."""
ALERTS = {rule["alert"] for rule in RULES if "crossborder_" in rule["expr"]}


def test_every_exported_metric_is_on_the_page_and_the_page_names_no_other(make_config: MakeConfig) -> None:
    with full_run(make_config) as server:
        wait_for(lambda: "fleet_wait_share[1]" in scrape_ingest(server), "the first rates")
        series = {**scrape_trainer(server), **scrape_ingest(server)}
    own = {name for name in (key.partition("[")[0] for key in series) if not name.startswith(("process_", "python_"))}
    exported = {re.sub("_(bucket|count|sum)$", "", name) for name in own}
    with_tls = {"certificate_expiry_timestamp_seconds"}
    on_page = set(re.findall(r"`crossborder_([a-z_]+)[`{]", METRICS_PAGE))
    of_services = {name for name in on_page if name.startswith("serving_")}  # Its own test looks at these.
    assert on_page - of_services == exported | with_tls


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
        assert re.search(
            r"\*\*What happened\.\*\*.*\*\*How to resolve\.\*\*.*\n```text\n\S", sections[str(code)], re.DOTALL
        )
    for kind in kinds:
        assert re.search(rf"{kind.__name__} +{kind.exit_code} ", errors.__doc__ or "")


@pytest.mark.parametrize("name", ["own_parts.py", "own_parts.yaml"])
def test_the_page_of_own_parts_shows_the_example_as_it_is(name: str) -> None:
    assert (ROOT / "examples" / name).read_text() in PAGES["own-parts.md"]


def test_the_page_of_own_parts_shows_a_test_that_is_one_of_ours() -> None:
    (shown,) = re.findall(r"^def test_my_parts_fit.*?(?=```)", PAGES["own-parts.md"], re.MULTILINE | re.DOTALL)
    assert shown in (ROOT / "tests" / "test_conformance.py").read_text()


def test_the_page_of_own_parts_names_every_example() -> None:
    names = {f"`examples/{path.name}`" for path in (ROOT / "examples").glob("*.py")}
    assert {name for name in names if name not in PAGES["own-parts.md"]} == set()


def on_pages(pattern: str, *names: str) -> list[str]:
    """What stands on these pages, or on any, between backticks and looks like this."""
    texts = [PAGES[name] for name in names] or PAGES.values()
    return sorted({found for text in texts for found in re.findall(rf"`({pattern})`", text)})


def test_each_test_on_a_page_exists() -> None:
    for path, _, name in (test.partition("::") for test in on_pages(r"tests/[\w/]+\.py::\w+")):
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"


def test_each_fault_on_the_page_of_reliability_has_its_tests() -> None:
    without_links = {name: re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text) for name, text in PAGES.items()}
    tables = without_links["reliability.md"].split("## What happens when")[1].split("## Standby")[0]
    tests = without_links["reliability-tests.md"].split("## Faults")[1]
    faults = re.findall(r"^\| (?!fault \|)(.+?) \|", tables, re.M)
    assert len(faults) > 50
    assert sorted(faults) == sorted(re.findall(r"^\| (?!fault \|)(.+?) \| `tests/", tests, re.M))


@pytest.mark.parametrize("target", on_pages(rf"(?:{'|'.join(OWN_PACKAGES)}|examples)\.[\w.]+:[\w.]+"))
def test_a_part_on_a_page_exists(target: str) -> None:
    module, _, path = target.partition(":")
    assert callable(operator.attrgetter(path)(importlib.import_module(module)))


def test_each_file_on_a_page_exists() -> None:
    paths = on_pages(r"\w[\w.-]*/[\w./-]+\.(?:py|md|mjs|yaml|proto)")
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_each_setting_on_a_page_is_on_the_page_of_settings() -> None:
    keys = on_pages(rf"(?!metrics\.csv|env\.params\.)(?:{SECTIONS})\.[\w.]+(?:: \S+)?")
    assert [key for key in keys if f"| `{key.partition(':')[0]}` |" not in PAGES["configuration.md"]] == []


OURS = rf"(?:{'|'.join(SCRIPTS)})"


def commands_in_blocks() -> list[str]:
    """Our commands in the pages' blocks of code, without comments and what the shell does with their output."""
    text = re.sub(r"\s*\\\n\s*", " ", "\n".join(PAGES.values()))
    found = re.findall(rf"^(?: {{4,}}|\$ )({OURS} .*?)(?:  .*| [|>] .*)?$", text, re.MULTILINE)
    return sorted(set(found))


def command_of(usage: str) -> str:
    """The command, with its first word if that is a command of ``learner-server``."""
    command, *words = usage.split()
    first = [word for word in words[:1] if command == "learner-server" and word in learner_server.COMMANDS]
    return " ".join([command, *first])


@cache
def commands() -> list[str]:
    """Our commands in blocks of code, and those between backticks."""
    return sorted({*commands_in_blocks(), *on_pages(rf"{OURS}(?: [^`]+)?")})


@pytest.mark.parametrize("command", [*SCRIPTS, *(f"learner-server {name}" for name in learner_server.COMMANDS)])
def test_a_command_takes_all_options_that_pages_give_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *first = command.split()
    module, _, main = SCRIPTS[name].partition(":")
    with pytest.raises(SystemExit):
        getattr(importlib.import_module(module), main)([*first, "--help"])
    taken = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    for usage in (usage for usage in commands() if command_of(usage) == command):
        assert {word for word in usage.split() if word.startswith("--")} <= taken, usage


def test_each_configuration_on_a_page_is_one_of_ours() -> None:
    paths = {word for usage in commands() for word in re.findall(r"configs/\S+", usage)}
    assert {path for path in paths if not (ROOT / path).is_file()} == set()


def blocks(text: str) -> tuple[list[str], list[str]]:
    """The word after the opening of each fence, and the first line of each indented block."""
    fences = re.findall(r"^ *```(.*)\n(?:.*\n)*? *```$", text, re.MULTILINE)
    rest = re.sub(r"^ *```.*\n(?:.*\n)*? *```$", "", text, flags=re.MULTILINE)
    return fences, re.findall(r"(?<=\n\n) {4}(\S.*)", rest)


@pytest.mark.parametrize("page", PAGES)
def test_a_block_of_code_names_its_language_and_an_indented_one_is_for_the_shell(page: str) -> None:
    fences, indented = blocks(PAGES[page])
    assert [each for each in fences if not re.match(r"[a-z]", each)] == []
    first = {re.split(r"[ =]", line)[0] for line in indented}
    assert first - {*SCRIPTS, *SHELL.split()} == set()


def test_every_page_is_on_the_site() -> None:
    listed = re.findall(r"[:-] (?:decisions/)?([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted([*listed, "README.md"]) == sorted(PAGES)


def test_the_page_of_settings_is_what_the_models_say() -> None:
    assert configuration.page() == PAGES["configuration.md"]


def listed_words(name: str) -> list[str]:
    """A list of words on the page of style."""
    listed = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", PAGES["style.md"], re.DOTALL)
    assert listed is not None
    return re.split(r",\s+", listed[1])


def test_each_word_that_needs_the_glossary_is_explained_there() -> None:
    explained = set(re.findall(r"\*\*([^*]+)\*\*", PAGES["glossary.md"]))
    assert {*listed_words("words"), *listed_words("ours")} - explained == set()


@pytest.mark.parametrize("page", sorted(set(PAGES) - UNLINKED))
def test_a_page_links_each_of_our_words_where_it_uses_it_first(page: str) -> None:
    prose = NO_PROSE.sub("", PAGES[page])
    for word in listed_words("ours"):
        spaced = word.replace(" ", r"\s+")
        first = re.search(rf"\b{spaced}s?\b(?P<rest>[^\[\]]*(?:\]\(|$)?)", prose, re.IGNORECASE)
        assert first is None or first["rest"].endswith("]("), f"{page}: link {word!r} to its place in glossary.md"


def test_no_page_uses_a_word_that_is_gone() -> None:
    table = re.search(r"<!-- gone -->\n(.*?)\n<!-- end -->", PAGES["style.md"], re.DOTALL)
    assert table is not None
    gone = [line.split("|")[1].strip() for line in table[1].splitlines()[2:]]
    assert len(gone) > 2
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, gone))})s?\b", re.IGNORECASE)
    found = {(page, word[1]) for page, text in PAGES.items() if page != "style.md" for word in pattern.finditer(text)}
    assert found == set()


def configurations() -> list[Any]:
    """The YAML of the pages that is a run's configuration, or a part of one."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", "\n".join(PAGES.values()), re.MULTILINE | re.DOTALL)
    values = [yaml.load(block, yaml.CSafeLoader) for block in blocks]
    return [each for each in values if isinstance(each, dict) and set(each) <= set(RunConfig.model_fields)]


@pytest.mark.parametrize("values", configurations(), ids=" ".join)
def test_a_configuration_on_a_page_can_be_trained_with(values: dict[str, Any]) -> None:
    base: dict[str, Any] = {
        "env": {"target": "gymnasium:make", "params": {"id": "Pendulum-v1"}},
        "agent": {"target": "common.agents.sac:SAC"},
        "trainer": {"max_opts": 1},
    }
    config = validate(RunConfig, {**values, **{name: {**each, **values.get(name, {})} for name, each in base.items()}})
    module, _, name = config.agent.target.partition(":")
    agent = getattr(importlib.import_module(module), name)
    if hasattr(agent, "Config"):
        validate(agent.Config, config.agent.params, "agent.params")


def test_a_configuration_that_a_page_calls_by_a_files_name_is_whole() -> None:
    named = re.findall(r"^```yaml\n# \w+\.yaml\n(.*?)^```", "\n".join(PAGES.values()), re.MULTILINE | re.DOTALL)
    assert named
    for each in named:
        validate(RunConfig, yaml.safe_load(each))


def test_each_search_leads_to_an_answer() -> None:
    answers = PAGES["faq.md"] + PAGES["troubleshooting.md"]
    assert [word for word in SEARCHED.split() if not re.search(rf"\b{word}", answers, re.IGNORECASE)] == []


@pytest.mark.parametrize("code", re.findall(r"^```python\n(.*?)^```", "\n".join(PAGES.values()), re.M | re.S))
def test_python_on_a_page_can_be_parsed_and_imports_names_that_exist(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OWN_PACKAGES:
            module = importlib.import_module(node.module or "")
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


def test_the_changes_of_the_first_contribution_make_a_configuration_that_passes_its_check(tmp_path: Path) -> None:
    (changes,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    plain = yaml.safe_load((ROOT / "configs" / "acrobot.yaml").read_text())
    path = tmp_path / "mountaincar.yaml"
    path.write_text(yaml.safe_dump(overlay(plain, yaml.safe_load(changes))))
    assert sync_train.main(["--config", str(path), "--check"]) == 0
