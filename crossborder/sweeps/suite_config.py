"""A suite: agents that are compared in the same tasks with the same seeds, which one YAML file describes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, model_validator

from common.errors import ConfigError
from common.hints import nearest
from common.settings import HomePath, Settings, validate
from crossborder.crossborder_files import find_sources
from crossborder.sweeps.sweep_config import ScoreConfig, SweepConfig

Name = Annotated[str, Field(pattern=r"^\w[\w .,+-]*$")]
"""The name of an agent or a task, which is the name of a directory too."""


class CaseConfig(Settings):
    """An agent in a task."""

    agent: Name = Field(description="The name of the agent.")
    task: Name = Field(description="The name of the task, one of tasks.")
    config: HomePath = Field(description="The YAML file of a run, from the directory of the suite's file.")
    fixed: dict[str, Any] = Field(default_factory=dict, description="Values in place of those in the file, by path.")
    command: Literal["sync-train", "learner-server"] = Field("sync-train", description="The command of each run.")
    arguments: tuple[str, ...] = Field(
        (), description="Further arguments of the command, such as --local-actors and 2."
    )


class SuiteConfig(Settings):
    """A suite: a run for each case and seed."""

    seeds: tuple[NonNegativeInt, ...] = Field(min_length=1, description="The seeds of the runs of each case.")
    tasks: dict[Name, tuple[float, float]] = Field(
        min_length=1,
        description="By task, the scores that count as 0 and as 1, such as that of random actions and the best one.",
    )
    cases: tuple[CaseConfig, ...] = Field(
        min_length=1,
        description="The agents in their tasks: agent, task, config, fixed, command and arguments of each.",
    )
    fixed: dict[str, Any] = Field(
        default_factory=dict, description="Values that all runs have, by path, unless fixed of a case has others."
    )
    score: ScoreConfig = Field(ScoreConfig(), description="The number by which runs are compared.")
    published: tuple[HomePath, ...] = Field(
        (),
        description="Files with runs of other programs, in the form of results.jsonl, from the directory of the "
        "suite's file.",
    )

    @model_validator(mode="after")
    def _has_each_case_once_and_its_task(self) -> SuiteConfig:
        for case in self.cases:
            if case.task not in self.tasks:
                raise ValueError(f"cases: expected one of tasks, found {case.task}{nearest(case.task, self.tasks)}")
            if sum((each.agent, each.task) == (case.agent, case.task) for each in self.cases) > 1:
                raise ValueError(f"cases: expected {case.agent} in {case.task} once, found it twice")
        for task, (low, high) in self.tasks.items():
            if low == high:
                raise ValueError(f"tasks.{task}: expected two different scores, found {low:g} twice")
        return self

    def sweeps(self, home: Path) -> dict[tuple[str, str], SweepConfig]:
        """By agent and task, the runs of a case: a sweep over seeds alone.

        Raises:
            ConfigError: a seed stands twice.
        """
        found = {}
        for case in self.cases:
            own = {"config": home / case.config, "fixed": {**self.fixed, **case.fixed}}
            same = {"seeds": self.seeds, "score": self.score, "command": case.command, "arguments": case.arguments}
            found[case.agent, case.task] = validate(SweepConfig, {**own, **same})
        return found


def find_suite(name: str) -> Path:
    """The file of a suite: ``name`` itself if it ends with .yaml, or else the shipped suite of this name.

    Raises:
        ConfigError: no suite of this name is shipped.
    """
    if name.endswith(".yaml"):
        return Path(name)
    shipped = {path.stem: path for path in (find_sources()["configs"] / "suites").glob("*.yaml")}
    if name not in shipped:
        names = ", ".join(sorted(shipped))
        raise ConfigError(f"expected a .yaml file or one of {names}, found '{name}'{nearest(name, shipped)}")
    return shipped[name]
