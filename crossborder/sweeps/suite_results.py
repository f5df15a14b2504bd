"""The results of a suite: a line of JSON for each run, and a table of all agents in all tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from common.data import Array
from common.depth import parse_json
from common.errors import ConfigError
from common.settings import Settings, validate
from crossborder.curves.learning_curve import read_points
from crossborder.curves.statistics import interquartile_mean, summarize
from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.results import rank
from crossborder.sweeps.study import SweepStudy
from crossborder.sweeps.suite_config import SuiteConfig


class SuiteRun(Settings):
    """A line of ``results.jsonl``: a run, or the mean of several runs that somebody has published."""

    agent: str = Field(description="The agent.")
    task: str = Field(description="The task.")
    seed: NonNegativeInt | None = Field(None, description="The seed.")
    curve: tuple[tuple[float, float], ...] = Field(description="Environment steps and score of each evaluation.")
    has_diverged: bool = Field(False, description="Whether the run ended since its numbers were no longer finite.")
    opt_steps: int | None = Field(None, description="The number of opt steps.")
    seconds: float | None = Field(None, description="The seconds of training.")
    runs: PositiveInt = Field(1, description="The number of runs of which the curve is the mean.")
    deviation: NonNegativeFloat | None = Field(None, description="The standard deviation of these runs at the end.")
    source: str | None = Field(None, description="Where the numbers were published.")

    def score(self, suite: SuiteConfig) -> float:
        """The score that counts; a run that diverged counts as 0 of its range."""
        if self.has_diverged or not self.curve:
            return suite.tasks[self.task][0]
        return suite.score.of([score for _, score in self.curve])


Group = Mapping[str, Sequence[SuiteRun]]
"""By task, the runs of an agent; each task of the suite is there."""


def read_runs(path: Path) -> list[SuiteRun]:
    """The runs in a file of lines of JSON.

    Raises:
        ConfigError: the file cannot be read, or a line is no run.
    """
    try:
        return [validate(SuiteRun, parse_json(line)) for line in path.read_text().splitlines()]
    except (OSError, ValueError, ConfigError) as error:
        raise ConfigError(f"{path}: expected a run in each line: {error}") from error


def collect_runs(agent: str, task: str, directory: SweepDirectory, study: SweepStudy) -> list[SuiteRun]:
    """The runs of an agent in a task that have ended with a score or diverged, by their seeds."""
    runs = []
    for row in rank(study, directory.sweep):
        if row.state == "fail":
            continue
        seed = int(row.values["seed"])
        run = directory.place_of(row.number) / f"seed-{seed}"
        points = read_points(run, "env-steps", directory.sweep.score.record)
        opt_steps, seconds = max(read_points(run, record="seconds").items(), default=(0.0, 0.0))
        found = {
            "curve": [(steps, score) for steps, score in points.items() if math.isfinite(score)],
            "has_diverged": row.state == "pruned",
            "opt_steps": int(opt_steps),
            "seconds": round(seconds, 1),
        }
        runs.append(validate(SuiteRun, {"agent": agent, "task": task, "seed": seed, **found}))
    return sorted(runs, key=lambda run: run.seed or 0)


def to_lines(runs: Iterable[SuiteRun]) -> str:
    """The runs as lines of JSON."""
    return "".join(f"{run.model_dump_json(exclude_defaults=True)}\n" for run in runs)


def group_runs(suite: SuiteConfig, runs: Sequence[SuiteRun]) -> dict[str, Group]:
    """The runs in the tasks of the suite by agent: first the suite's agents, then those of published runs."""
    agents = dict.fromkeys(
        [*(case.agent for case in suite.cases), *(run.agent for run in runs if run.task in suite.tasks)]
    )
    return {
        agent: {task: [run for run in runs if (run.agent, run.task) == (agent, task)] for task in suite.tasks}
        for agent in agents
    }


def shares(suite: SuiteConfig, group: Group) -> list[Array] | None:
    """Of each task the scores of its runs as shares of its range, ``[runs]``; None if a task has no single runs."""
    found = []
    for task, runs in group.items():
        low, high = suite.tasks[task]
        if not runs or any(run.runs > 1 for run in runs):
            return None
        found.append((np.array([run.score(suite) for run in runs]) - low) / (high - low))
    return found


def write_table(suite: SuiteConfig, groups: Mapping[str, Group]) -> str:
    """The table in Markdown, with the sources of published runs below it."""
    lines = [f"| agent | all tasks | {' | '.join(suite.tasks)} | runs |", "|---|" + "--:|" * (len(suite.tasks) + 2)]
    for agent, group in groups.items():
        scores = shares(suite, group)
        total = "-"
        if scores is not None:
            middle, low, high = summarize(scores)
            has_spread = any(len(each) > 1 for each in scores)  # One run of each task says nothing about their spread.
            total = f"{middle:.2f} [{low:.2f}, {high:.2f}]" if has_spread else f"{middle:.2f}"
        runs = sum(run.runs for each in group.values() for run in each)
        wanted = len(suite.seeds) * sum(case.agent == agent for case in suite.cases)
        count = f"{runs} of {wanted}" if wanted else f"{runs}"
        cells = [agent, total, *(_cell(suite, each) for each in group.values()), count]
        lines.append(f"| {' | '.join(cells)} |")
    sources = dict.fromkeys(
        (agent, run.source) for agent, group in groups.items() for each in group.values() for run in each if run.source
    )
    return "\n".join([*lines, "", *(f"- {agent}: {source}" for agent, source in sources), ""]).rstrip() + "\n"


def _cell(suite: SuiteConfig, runs: Sequence[SuiteRun]) -> str:
    if not runs:
        return "-"
    scores = [run.score(suite) for run in runs]
    if runs[0].runs > 1:
        spread = f" ± {_score(runs[0].deviation)}" if runs[0].deviation is not None else ""
        return f"{_score(scores[0])}{spread} (mean of {runs[0].runs})"
    return f"{_score(float(interquartile_mean(np.array(scores))))} ({_score(min(scores))} to {_score(max(scores))})"


def _score(score: float) -> str:
    return f"{score:,.0f}" if abs(score) >= 100 else f"{score:.3g}"
