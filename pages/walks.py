"""Drawings of the walks in ``docs/architecture.md``: one column for each process, one line for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

FOLDER: Final = Path("docs/images")
_COLUMN, _ROW, _TOP = 320, 54, 64
_BOX = 300
_COLOURS: Final = ("#eef3fb", "#e9f6ec", "#fdf3e3")


@dataclass(frozen=True)
class Step:
    """One step of a walk: an arrow between two columns, or a box in one.

    Args:
        start: number of the column where the step begins.
        end: number of the column where it ends.
        label: the event, in a few words.
        file: the file that holds the code.
    """

    start: int
    end: int
    label: str
    file: str


@dataclass(frozen=True)
class Walk:
    """The way of a row, a model, a setting, a stop or a resume through the processes.

    Args:
        name: of the drawing's file, without its ending.
        columns: the processes, from left to right.
        steps: in their order.
    """

    name: str
    columns: Sequence[str]
    steps: Sequence[Step]

    @property
    def path(self) -> Path:
        """The place of the drawing."""
        return FOLDER / f"{self.name}.svg"


WALKS: Final = (
    Walk(
        "walk-row",
        ("actor", "ingest", "training process"),
        (
            Step(0, 0, "the agent acts for all lanes", "actor/sampling/sampler.py"),
            Step(0, 0, "all lanes step together: a round", "common/lanes/lanes.py"),
            Step(0, 0, "the round is written into columns of rows", "actor/sampling/recorder.py"),
            Step(0, 0, "push.n_buffer rows become a batch", "actor/proxy.py"),
            Step(0, 0, "the spool keeps the batch", "actor/spool.py"),
            Step(0, 1, "PushItems: batches as one message", "actor/client/pusher.py"),
            Step(1, 1, "who calls, and within which limits?", "learner/ingest/admission.py"),
            Step(1, 1, "the message becomes columns", "common/wire/codec.py"),
            Step(1, 1, "stored already? values within bounds?", "learner/ingest/pushing.py"),
            Step(1, 1, "which row came before, in each lane?", "learner/replay/links.py"),
            Step(1, 1, "rows, record, links, then 'committed'", "learner/replay/writer.py"),
            Step(1, 0, "acknowledgement: the spool lets go", "learner/ingest/service.py"),
            Step(1, 2, "the bell wakes the trainer if it waits", "learner/shared/bell.py"),
            Step(2, 2, "does the replay ratio allow a step?", "learner/loop/intake.py"),
            Step(2, 2, "rows are drawn at which a draw can begin", "learner/replay/uniform.py"),
            Step(2, 2, "the view says which values the batch takes", "learner/views/transitions.py"),
            Step(2, 2, "they are gathered, overwritten rows redrawn", "learner/replay/reader.py"),
            Step(2, 2, "Agent.opt learns from the batch", "common/agents/dqn.py"),
        ),
    ),
    Walk(
        "walk-model",
        ("training process", "ingest", "actor"),
        (
            Step(0, 0, "a sync is due after this opt step", "learner/loop/learner.py"),
            Step(0, 0, "parameters are copied into a free slot", "learner/models/publisher.py"),
            Step(0, 1, "the slot is the newest: a version", "common/shared/slots.py"),
            Step(1, 2, "the next acknowledgement names the version", "learner/ingest/service.py"),
            Step(2, 1, "GetModel, from a thread beside acting", "actor/client/fetcher.py"),
            Step(1, 1, "serialised once for all actors", "learner/ingest/model_answers.py"),
            Step(1, 2, "a safetensors file, in chunks", "common/wire/large_field.py"),
            Step(2, 2, "checksum compared, tensors in place", "actor/client/assembly.py"),
            Step(2, 2, "Agent.sync_model before the next step", "actor/worker.py"),
        ),
    ),
    Walk(
        "walk-setting",
        ("learner host", "ingest", "actor"),
        (
            Step(0, 0, "YAML and --set, one schema, all checked", "common/config/run_config.py"),
            Step(0, 0, "config.yaml is written into the run", "learner/storage/rundir.py"),
            Step(0, 0, "parts are built from module:attr", "common/parts.py"),
            Step(0, 1, "its part as JSON, on standard input", "learner/ingest/ingest_process.py"),
            Step(2, 1, "Join: a new actor, or one that comes back", "actor/client/connector.py"),
            Step(1, 2, "the answer holds the actor's settings", "learner/ingest/core.py"),
            Step(2, 2, "the same schema checks them again", "actor/client/join_answer.py"),
            Step(2, 2, "may this learner name these parts?", "actor/allowance.py"),
            Step(2, 2, "the parts are built", "actor/worker.py"),
        ),
    ),
    Walk(
        "walk-stop",
        ("training process", "ingest", "actors"),
        (
            Step(0, 0, "Ctrl-C: a thread asks the loop to stop", "common/process/signals.py"),
            Step(0, 0, "the present opt step ends the loop", "learner/loop/loop.py"),
            Step(0, 1, "the word 'stopping', and the bell", "learner/ingest/ingest_process.py"),
            Step(1, 2, "stop, on every open stream", "learner/ingest/service.py"),
            Step(0, 0, "last model; final/; last checkpoint", "learner/storage/checkpointer.py"),
            Step(2, 1, "the spool is handed over, goodbye", "actor/client/pusher.py"),
            Step(1, 1, "ends when all left, or grace is over", "learner/ingest/service.py"),
            Step(0, 2, "actors of this host end", "actor/manager.py"),
            Step(0, 0, "evaluator process ends, records close", "learner/loop/run.py"),
            Step(0, 0, "the directory's lock is given back", "learner/storage/rundir.py"),
        ),
    ),
    Walk(
        "walk-resume",
        ("training process", "ingest", "actor"),
        (
            Step(0, 0, "the directory is locked: which run is it?", "learner/storage/rundir.py"),
            Step(0, 0, "the newest whole checkpoint is read, once", "learner/storage/resume.py"),
            Step(0, 0, "the replay is opened and, if needed, compared", "learner/replay/recovery.py"),
            Step(0, 0, "agent, buffer and generators are restored", "learner/storage/resume.py"),
            Step(0, 0, "a model with a new incarnation is published", "learner/models/publisher.py"),
            Step(0, 1, "ingest starts on the same port", "learner/ingest/ingest_process.py"),
            Step(2, 1, "Join again, with the same incarnation", "actor/client/connector.py"),
            Step(1, 2, "the answer: the last batch that is stored", "learner/ingest/joining.py"),
            Step(2, 1, "later batches are sent again", "actor/client/pusher.py"),
            Step(1, 1, "batches that are stored are not stored twice", "learner/ingest/pushing.py"),
            Step(0, 0, "opt steps go on from the checkpoint", "learner/loop/loop.py"),
        ),
    ),
)


def draw(walk: Walk) -> str:
    """The drawing as SVG."""
    width, height = _COLUMN * len(walk.columns), _TOP + _ROW * len(walk.steps) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="Helvetica, sans-serif">',
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 10 5 0 10z" fill="#334"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for i, name in enumerate(walk.columns):
        x = _centre(i)
        parts += [
            f'<path d="M{x} 50V{height - 8}" stroke="#99a" stroke-dasharray="5 4"/>',
            f'<rect x="{x - 90}" y="12" width="180" height="38" rx="8" fill="{_COLOURS[i]}" stroke="#334"/>',
            _text(x, 36, name, 15, "#112", bold=True),
        ]
    for row, step in enumerate(walk.steps):
        parts += _step(step, _TOP + _ROW * row)
    return "\n".join([*parts, "</svg>", ""])


def _step(step: Step, top: int) -> list[str]:
    start, end = _centre(step.start), _centre(step.end)
    if start == end:
        box = f'<rect x="{start - _BOX // 2}" y="{top}" width="{_BOX}" height="42" rx="6"'
        return [
            f'{box} fill="{_COLOURS[step.start]}" stroke="#99a"/>',
            _text(start, top + 18, step.label, 12, "#112"),
            _text(start, top + 34, step.file, 11, "#556"),
        ]
    # The label stands in the first gap between columns: there it crosses no column that the arrow passes.
    gap, middle = (4, start + _COLUMN // 2) if end > start else (-4, start - _COLUMN // 2)
    return [
        _text(middle, top + 16, step.label, 13, "#112"),
        f'<path d="M{start} {top + 23}H{end - gap}" stroke="#334" stroke-width="1.8" marker-end="url(#a)"/>',
        _text(middle, top + 38, step.file, 11, "#556"),
    ]


def _text(x: int, y: int, text: str, size: int, colour: str, *, bold: bool = False) -> str:
    """A centred line of text."""
    weight = ' font-weight="bold"' if bold else ""
    style = f'text-anchor="middle" font-size="{size}" fill="{colour}"{weight}'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def _centre(column: int) -> int:
    return _COLUMN * column + _COLUMN // 2
