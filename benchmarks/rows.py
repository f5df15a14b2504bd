"""What steps cost, from an environment to an agent's batch, beside an older release in the same run.

    python -m benchmarks.rows --old DIRECTORY       a checkout of the older release; recordings are made first

Both releases run as users run them, by their own commands, with default settings but for the ones that a figure names.
Environments replay what was recorded beforehand and agents of acting figures do nothing, so these figures are the
system's own. They take turns of a few seconds; each figure is the median of its turns, each ratio that of the turns'
ratios. ``CPU`` is processor time of all threads of a process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import recordings
from benchmarks.floor import floor_rate
from benchmarks.report import report, run_as_actors_do
from benchmarks.trees import NOW, Tree, acting, desk, learner_host

TURNS: Final = 5
SECONDS: Final = 3.0
LANES: Final = 4096
DEFAULT_WINDOW: Final = 4
SIZES: Final = {"camera and state": (200, 20_000), "HalfCheetah": (1000, 1_000_000), "98 floats": (1000, 1_000_000)}
"""Tasks whose bytes are counted: steps of an episode, to each of which a final row is added, and rows kept."""
GAMES: Final = tuple(game.lower() for game in recordings.GAMES)
Row = dict[str, object]
Turn = Mapping[str, float]
Part = dict[str, Any]


class Releases:
    """The present release and the older one, and where the recordings are."""

    def __init__(self, old: Path, directory: Path, turns: int) -> None:
        self.old, self.now = Tree("0.1", old), Tree("now", NOW)
        self.directory, self.turns = directory, turns

    def env(self, kind: str, **params: object) -> Part:
        """An environment that replays a recording."""
        return {"target": f"recorded:{kind}", "params": {"directory": str(self.directory), **params}}


def medians(turns: Sequence[Turn]) -> dict[str, float]:
    """The median of each figure over its turns."""
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def in_turns(
    n_turns: int, measures: Mapping[str, Callable[[], Turn]], pauses: Mapping[str, Callable[[], None]]
) -> dict[str, list[Turn]]:
    """The turns of each: while one is measured, the others are paused. The first turn does not count."""
    found: dict[str, list[Turn]] = {name: [] for name in measures}
    for _ in range(1 + n_turns):
        for name, measure in measures.items():
            found[name].append(measure())
            if name in pauses:
                pauses[name]()
    return {name: turns[1:] for name, turns in found.items()}


def ratio(now: Sequence[Turn], old: Sequence[Turn], name: str) -> float:
    """The median of the turns' ratios."""
    return statistics.median(new[name] / former[name] for new, former in zip(now, old, strict=True))


# Bytes


def stored_bytes(tree: Tree, task: str, capacity: int) -> float:
    """Bytes in the replay for each item or row, links and all that grows with it included: by two capacities."""
    sizes = []
    for rows in (capacity, capacity // 2):
        part = {"env": {"target": "recorded:Spaces", "params": {"task": task}}, "replay": {"capacity": rows}}
        with learner_host(tree, part) as (run_dir, _):
            sizes.append(sum(path.stat().st_size for path in (run_dir / "shared").rglob("*") if path.is_file()))
    return (sizes[0] - sizes[1]) / (capacity - capacity // 2)


def replay_bytes(releases: Releases) -> Iterator[Row]:
    """Bytes in the replay for each step, final rows included."""
    for task, (steps, capacity) in SIZES.items():
        old, row = stored_bytes(releases.old, task, capacity), stored_bytes(releases.now, task, capacity)
        now = row * (steps + 1) / steps
        yield {"task": task, "0.1 B/step": old, "now B/row": row, "now B/step": now, "to 0.1": now / old}


# Acting


def beside(releases: Releases, old: Part, now: Part) -> Row:
    """Steps per second that one actor of each release has acknowledged, by the learner's /metrics."""
    with ExitStack() as stack:
        pairs = {
            "0.1": stack.enter_context(acting(releases.old, old)),
            "now": stack.enter_context(acting(releases.now, now)),
        }
        for pair in pairs.values():
            pair.pause()
        measures = {name: partial(pair.measure, SECONDS) for name, pair in pairs.items()}
        turns = in_turns(releases.turns, measures, {name: pair.pause for name, pair in pairs.items()})
    found = {name: medians(each) for name, each in turns.items()}
    figures = {f"{name} {figure}": each[figure] for figure in found["now"] for name, each in found.items()}
    return {**figures, "to 0.1": ratio(turns["now"], turns["0.1"], "steps/s")}


def cartpole(releases: Releases) -> Iterator[Row]:
    """One recorded CartPole, default settings."""
    part = {"env": releases.env("Recorded", name="cartpole"), "replay": {"capacity": 1_000_000}}
    yield {"task": "CartPole, 1 environment", **beside(releases, part, part)}


def atari(releases: Releases) -> Iterator[Row]:
    """Recorded Atari games: one environment, and 64 of them; both releases' agents see stacks of four frames."""
    replay = {"capacity": 50_000}
    for game in GAMES:
        old = {"env": releases.env("Recorded", name=game, stack=4), "replay": replay}
        now = {"env": {**releases.env("Recorded", name=game), "frame_stack": 4}, "replay": replay}
        yield {"task": f"{game}, 1 environment", **beside(releases, old, now)}
        lanes = {"env": {**releases.env("lanes_of", name=game, lanes=64), "frame_stack": 4}, "replay": replay}
        yield {"task": f"{game}, 64", **beside(releases, {**old, "envs_per_actor": 64}, lanes)}


def many_lanes(releases: Releases) -> Iterator[Row]:
    """A vector environment of ``LANES`` robots, beside a bare gRPC stream with messages of the same size."""
    part = {
        "env": {"target": "recorded:physics", "params": {"lanes": LANES}},
        "replay": {"capacity": 1_000_000},
    }
    with acting(releases.now, part) as pair:
        size = int(pair.measure(SECONDS)["bytes/message"])
        pair.pause()
        measures: dict[str, Callable[[], Turn]] = {
            "now": partial(pair.measure, SECONDS),
            "stream": lambda: {"messages/s": floor_rate(size, DEFAULT_WINDOW)},
        }
        turns = in_turns(releases.turns, measures, {"now": pair.pause})
    now, stream = medians(turns["now"]), medians(turns["stream"])["messages/s"]
    bare = stream * size / now["bytes/step"]
    shares = [
        system["steps/s"] * system["bytes/step"] / (floor["messages/s"] * size)
        for system, floor in zip(turns["now"], turns["stream"], strict=True)
    ]
    task = f"{LANES} lanes, f4[98] and f4[29]"
    yield {"task": task, **now, "bare stream steps/s": bare, "of the stream": statistics.median(shares)}


def actor_ratio(releases: Releases) -> Iterator[Row]:
    """An actor with eight CartPoles that acts with DQN's network, beside the bare loop: ``benchmarks.actor``."""
    arguments = ("--kind", "cartpole", "--envs", "1", "8")
    turns = [
        {(tree.name, row["envs"]): row for row in read_rows(tree, "benchmarks.actor", *arguments)}
        for _ in range(3)
        for tree in (releases.old, releases.now)
    ]
    for name, envs in [(tree.name, n) for n in (1, 8) for tree in (releases.old, releases.now)]:
        found = [turn[name, envs] for turn in turns if (name, envs) in turn]
        columns = ("steps/s", "floor steps/s", "ratio", "of the processor")
        yield {
            "release": name,
            "CartPoles": envs,
            **{column: statistics.median(row[column] for row in found) for column in columns},
        }


def read_rows(tree: Tree, module: str, *arguments: str) -> list[dict[str, Any]]:
    """The table that a benchmark of a tree prints."""
    found: list[dict[str, Any]] = json.loads(tree.run_module(module, *arguments).splitlines()[-1])["rows"]
    return found


# Learning and drawing


def learning(releases: Releases, name: str, params: Part, capacity: int, old_stack: int = 1) -> tuple[Part, Part]:
    """The configurations of both releases for learning with DQN from a recording."""
    plain = {"double_dqn": False, "max_grad_norm": None, "critic_loss": "mse"}
    explorer = {"explorer": {"start": 1.0, "final_step": 10**9}}
    both: Part = {
        "agent": {"target": "common.agents.dqn:DQN", "params": {**plain, **explorer, **params}},
        "trainer": {"max_opts": 10**9, "eval_interval": None, "checkpoint_seconds": None, "warmup_period": 1000},
        "replay": {"capacity": capacity},
        "envs_per_actor": 32,
    }
    old = {**both, "env": releases.env("Recorded", name=name, stack=old_stack)}
    now = {**both, "env": releases.env("Recorded", name=name)}
    if old_stack > 1:
        now["env"]["frame_stack"] = old_stack
    return old, now


def asked(releases: Releases, parts: tuple[Part, Part], stored: int, questions: Mapping[str, Part]) -> Iterator[Row]:
    """What the learner hosts of both releases answer to the same questions, in turns."""
    old, now = parts
    with ExitStack() as stack:
        desks = {
            "0.1": stack.enter_context(desk(releases.old, old, stored)),
            "now": stack.enter_context(desk(releases.now, now, stored)),
        }
        for task, question in questions.items():
            asks = {name: partial(host.ask, **question, seconds=SECONDS) for name, host in desks.items()}
            turns = in_turns(releases.turns, asks, {})
            found = {name: medians(each) for name, each in turns.items()}
            yield {
                "task": task,
                **{f"{name} /s": each["rate"] for name, each in found.items()},
                "ratio": ratio(turns["now"], turns["0.1"], "rate"),
                **{f"{name} CPU µs": each["microseconds"] for name, each in found.items()},
            }


def opt_steps(releases: Releases) -> Iterator[Row]:
    """Opt steps per second of DQN with one-step transitions, on one thread."""
    small = learning(releases, "cartpole", {"units": [256, 256], "batch_size": 64}, 200_000)
    yield from asked(releases, small, 100_000, {"DQN 2x256, batch 64": {"do": "opt"}})
    network = {"network": {"target": "common.agents.networks:NatureCnn"}, "batch_size": 32}
    pictures = learning(releases, "pong", network, 20_000, old_stack=4)
    yield from asked(releases, pictures, 10_000, {"Nature CNN, batch 32": {"do": "opt"}})


def draws(releases: Releases) -> Iterator[Row]:
    """One-step draws, uniform and prioritised."""
    sizes = {f"{{}}, draw of {size}": {"do": "draw", "size": size} for size in (64, 256, 2048)}
    floats: Part = {
        "env": {"target": "recorded:Floats"},
        "replay": {"capacity": 1_000_000},
        "envs_per_actor": 32,
    }
    poles = {**floats, "env": releases.env("Recorded", name="cartpole")}
    for name, part in (("CartPole", poles), ("98 floats", floats)):
        for how, prioritized in (("", None), (", prioritised", {})):
            whole = {**part, "replay": {**part["replay"], "prioritized": prioritized}}
            questions = {task.format(name + how): question for task, question in sizes.items()}
            yield from asked(releases, (whole, whole), 300_000, questions)


def sequences(releases: Releases) -> Iterator[Row]:
    """64 sequences of 80 steps of 98 floats, and 256 of 20."""
    for draws_, length in ((64, 80), (256, 20)):
        view = {"target": "learner.views.sequences:Sequences", "params": {"length": length}}
        part = {
            "env": {"target": "recorded:physics", "params": {"lanes": 256}},
            "replay": {"capacity": 1_000_000, "view": view},
        }
        with desk(releases.now, part, 500_000) as host:
            turns = [host.ask("draw", size=draws_, seconds=SECONDS) for _ in range(1 + releases.turns)][1:]
        found = medians(turns)
        task = f"{draws_} sequences of {length} rows of 98 floats"
        yield {"task": task, "ms": 1e3 / found["rate"], "CPU ms": found["microseconds"] / 1e3}


def small_messages(releases: Releases) -> Iterator[Row]:
    """CartPole steps in batches of 64 and 256, as ``benchmarks.ingest`` pushes them in each release."""
    for tree in (releases.old, releases.now):
        for row in read_rows(tree, "benchmarks.ingest"):
            if row["batch"] == row["rows per push"]:
                yield {
                    "release": tree.name,
                    "batch": row["batch"],
                    "steps/s": row.get("steps/s", row.get("transitions/s")),
                    **{key: row[key] for key in ("ingest CPU s/million", "client CPU s/million")},
                }


FIGURES: dict[str, Callable[[Releases], Iterator[Row]]] = {
    "bytes": replay_bytes,
    "lanes": many_lanes,
    "atari": atari,
    "cartpole": cartpole,
    "actor": actor_ratio,
    "opt": opt_steps,
    "draws": draws,
    "sequences": sequences,
    "ingest": small_messages,
}


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.rows", description=__doc__)
    parser.add_argument("figures", nargs="*", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--old", type=Path, required=True, help="a checkout of the older release")
    parser.add_argument("--recordings", type=Path, default=Path("/tmp/recordings"), help="where they are or are made")  # noqa: S108
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args()
    recordings.ensure(given.recordings)
    releases = Releases(given.old.resolve(), given.recordings.resolve(), given.turns)
    for name in given.figures:
        began = time.perf_counter()
        rows = list(FIGURES[name](releases))
        report(f"rows {name}", f"in turns with {releases.old.name}", rows, given.turns)
        sys.stderr.write(f"{name}: {time.perf_counter() - began:.0f} s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run_as_actors_do("benchmarks.rows")
    main()
