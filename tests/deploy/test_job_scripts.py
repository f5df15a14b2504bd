"""SLURM's job scripts start programs with options that these take; ``tests/clusters`` runs the scripts."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from actor.commands.actor_worker import parser as actor_parser
from crossborder.launching.hosts_config import load_hosts
from crossborder.launching.launcher import actor_words, health_words, learner_words
from learner.commands.learner_server import parser as learner_parser
from tests.conftest import ROOT

SCRIPTS = sorted((ROOT / "deploy/slurm").glob("*.sbatch"))
PARSERS = {"learner-server": learner_parser, "actor-worker": actor_parser}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_job_script_is_good_bash_and_its_program_takes_the_options(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)  # noqa: S607
    text = script.read_text().replace("\\\n", "")
    ((program, words),) = re.findall(r'"\$BIN/([a-z-]+)" (.*?)(?: &)?$', text, re.MULTILINE)
    for variable, value in {"$PORT": "50051", "$ACTORS": "4", "${OPTIONS:-}": "", "${found#* }": "node"}.items():
        words = words.replace(variable, value)
    PARSERS[program]().parse_args(shlex.split(words))


def test_the_programs_take_the_options_that_the_launcher_gives_them() -> None:
    config = load_hosts(ROOT / "deploy/ssh/hosts.yaml")
    learner_parser().parse_args(learner_words(config))
    actor_parser().parse_args(actor_words(config, config.actors[0]))
    assert "--ca" in health_words(config)
