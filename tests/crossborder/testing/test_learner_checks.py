"""Checks pass good replay buffers, evaluators and recorders, and say what is wrong with one broken in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch

from common.data import Array, Items
from common.interfaces import Agent, Callback, EnvSpec, Evaluation, Evaluator, Recorder
from crossborder.testing import ItemMemory, check_callback, check_evaluator, check_recorder, check_replay_buffer
from crossborder.testing.row_memory import transitions
from examples.own_parts import Corridor, TabularQ
from tests.crossborder.testing.parts import Broken, Walk, broken, fails_saying

# Replay buffers.


COUNT = 50


def items() -> Items:
    return {name: column[:COUNT] for name, column in transitions(Walk(), COUNT + 1).items()}


def batch_with(change: Any) -> Any:
    """A ``batch`` with its result changed."""
    return lambda self, size: change(ItemMemory.batch(self, size))


def only_once(self: ItemMemory, size: int) -> Items:
    if size > len(self):
        raise ValueError("not so many")
    return ItemMemory.batch(self, size)


def the_first(self: ItemMemory, size: int) -> Items:
    ItemMemory.batch(self, size)
    return {name: column[np.zeros(size, np.int64)] for name, column in items().items()}


def uncounted(self: ItemMemory, size: int) -> Items:
    drawn = ItemMemory.batch(self, size)
    self.sampled = 0
    return drawn


def growing(self: ItemMemory, size: int) -> Items:
    drawn = ItemMemory.batch(self, size)
    self.inserted += 1
    self._items = {name: np.concatenate([column, column[:1]]) for name, column in self._items.items()}
    return drawn


BROKEN_BUFFERS: dict[str, Broken] = {
    "nothing counted in": (
        {"inserted": property(lambda self: 0, lambda self, value: None)},
        "inserted is 0 after 50 steps: count every step, forever",
    ),
    "a length of its own": ({"__len__": lambda self: 51}, "len() is 51, expected 1 to 50"),
    "no more than it has": ({"batch": only_once}, "batch(256) failed with 50 that can be drawn: draw with replacement"),
    "a missing column": (
        {"batch": batch_with(lambda batch: {"obs": batch["obs"]})},
        "batch() lacks the columns action, next_obs, reward, terminated, truncated",
    ),
    "too few rows": (
        {"batch": batch_with(lambda batch: batch | {"reward": batch["reward"][:1]})},
        "batch(256) gave 'reward' as [1], expected [256]",
    ),
    "another dtype": (
        {"batch": batch_with(lambda batch: batch | {"reward": batch["reward"].astype(np.float64)})},
        "batch() gave 'reward' as float64, inserted was float32",
    ),
    "mixed rows": (
        {"batch": batch_with(lambda batch: batch | {"reward": batch["reward"][::-1]})},
        "batch() gave a row that was never inserted: take all columns of a row from one step",
    ),
    "the same row": ({"batch": the_first}, "batch() gave the same row 356 times: draw at random"),
    "nothing counted out": ({"batch": uncounted}, "sampled grew by 0 at batch(1), expected 1: count every step drawn"),
    "what comes in and what goes out counted together": (
        {"batch": growing},
        "inserted changed while batches were drawn",
    ),
}


def test_a_good_buffer_passes_also_with_columns_of_its_own() -> None:
    check_replay_buffer(ItemMemory(items()), items())
    check_replay_buffer(ItemMemory(items() | {"age": np.ones(50)}), items())
    check_replay_buffer(ItemMemory(items() | {"weight": np.ones(50)}), items() | {"weight": np.ones(50)})
    check_replay_buffer(PrioritizedMemory(items()), items())


@pytest.mark.parametrize("what", BROKEN_BUFFERS)
def test_a_buffer_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_BUFFERS[what]
    with fails_saying(message):
        check_replay_buffer(broken(ItemMemory, attributes)(items()), items())


class PrioritizedMemory(ItemMemory):
    """A prioritised buffer as plain as can be; batches are made by ``items_at``, so that they can be spoilt."""

    is_uniform = False

    def __init__(self, items: Items) -> None:
        super().__init__(items)
        self._priority = np.ones(len(self))

    def items_at(self, index: Array) -> Items:
        priority = self._priority[index]
        weight = (self._priority.min() / priority).astype(np.float32)
        return {**{name: column[index] for name, column in self._items.items()}, "index": index, "weight": weight}

    def batch(self, size: int) -> Items:
        self.sampled += size
        return self.items_at(self._rng.choice(len(self), size, p=self._priority / self._priority.sum()))

    def update_priority(self, index: Array, td_error: Array) -> None:
        self._priority[index] = td_error + 1e-3


def items_with(change: Any) -> Any:
    """An ``items_at`` with its result changed."""
    return lambda self, index: change(PrioritizedMemory.items_at(self, index))


BROKEN_PRIORITIES: dict[str, Broken] = {
    "weights alone": (
        {"items_at": items_with(lambda batch: {k: v for k, v in batch.items() if k != "index"})},
        "batch() gave 'weight' alone: a prioritised buffer gives both index and weight",
    ),
    "double weights": (
        {"items_at": items_with(lambda batch: batch | {"weight": batch["weight"].astype(np.float64)})},
        "batch() gave 'weight' as float64, expected float32",
    ),
    "weights in a column": (
        {"items_at": items_with(lambda batch: batch | {"weight": batch["weight"][:, None]})},
        "batch() gave 'weight' as [1, 1], expected one number for each draw",
    ),
    "weights above 1": (
        {"items_at": items_with(lambda batch: batch | {"weight": batch["weight"] * 2})},
        "batch() gave weights from 2.0 to 2.0, expected above 0 and at most 1: divide by the largest",
    ),
    "one index for all": (
        {"items_at": items_with(lambda batch: batch | {"index": batch["index"] * 0})},
        "batch() gave the index 0 for two different rows: an index names one draw for good",
    ),
    "priorities that fail": (
        {"update_priority": lambda self, index, td_error: td_error.missing},
        "update_priority() failed on the index of a batch",
    ),
    "priorities that nobody heeds": (
        {"update_priority": lambda self, index, td_error: None},
        "update_priority() changed nothing: the row with by far the largest error was drawn",
    ),
}


@pytest.mark.parametrize("what", BROKEN_PRIORITIES)
def test_a_prioritised_buffer_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_PRIORITIES[what]
    with fails_saying(message):
        check_replay_buffer(broken(PrioritizedMemory, attributes)(items()), items())


def test_a_prioritised_buffer_of_two_rows_passes_only_if_it_draws_by_priority() -> None:
    two = {name: column[:2] for name, column in items().items()}
    check_replay_buffer(PrioritizedMemory(two), two)
    attributes, message = BROKEN_PRIORITIES["priorities that nobody heeds"]
    with fails_saying(message):
        check_replay_buffer(broken(PrioritizedMemory, attributes)(two), two)


# Evaluators.


class FirstAction:
    """Scores the action at the start of a corridor."""

    def evaluate(self, agent: Agent) -> Evaluation:
        return Evaluation(float(agent.sample(np.array([[0]]))[0]), {"eval_reward": torch.tensor(1.0)})


def evaluate_in_train_mode(self: FirstAction, agent: Agent) -> Evaluation:
    agent.train()
    return FirstAction.evaluate(self, agent)


def evaluate_and_train(self: FirstAction, agent: TabularQ) -> Evaluation:
    agent.table += 1
    return FirstAction.evaluate(self, agent)


def evaluate_by_chance(self: FirstAction, agent: Agent) -> Evaluation:
    return Evaluation(np.random.default_rng().random(), {})


BROKEN_EVALUATORS: dict[str, Broken] = {
    "a score by itself": (
        {"evaluate": lambda self, agent: 1.0},
        "evaluate() gave float: return Evaluation(score, record)",
    ),
    "no score": (
        {"evaluate": lambda self, agent: Evaluation(None, {})},  # type: ignore[arg-type]
        "evaluate(): score: expected a number, found None",
    ),
    "a score that is not finite": (
        {"evaluate": lambda self, agent: Evaluation(np.nan, {})},
        "evaluate(): score: expected a finite number, found nan",
    ),
    "a record of text": (
        {"evaluate": lambda self, agent: Evaluation(1.0, {"eval_reward": "good"})},  # type: ignore[dict-item]
        "evaluate(): eval_reward: expected a number, found 'good'",
    ),
    "another mode": ({"evaluate": evaluate_in_train_mode}, "evaluate() left the agent in train mode"),
    "training": ({"evaluate": evaluate_and_train}, "evaluate() left 'table' of the agent changed"),
    "chance": ({"evaluate": evaluate_by_chance}, "start the episodes from the same seeds every time"),
}


def corridor_agent() -> TabularQ:
    env = Corridor()
    return TabularQ(EnvSpec(env.observation_space, env.action_space), seed=0, epsilon=1.0, device="cpu")


def test_a_good_evaluator_passes() -> None:
    check_evaluator(FirstAction(), corridor_agent())


@pytest.mark.parametrize("what", BROKEN_EVALUATORS)
def test_an_evaluator_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_EVALUATORS[what]
    evaluator: Evaluator = broken(FirstAction, attributes)()
    with fails_saying(message):
        check_evaluator(evaluator, corridor_agent())


def test_an_evaluator_may_say_that_its_scores_differ() -> None:
    check_evaluator(broken(FirstAction, {"evaluate": evaluate_by_chance})(), corridor_agent(), repeatable=False)


# Recorders.


class ListRecorder:
    """Keeps records in a list, and shows them when they are flushed."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.readable: Sequence[tuple[int, dict[str, float]]] = ()

    def write(self, opt_steps: int, record: dict[str, float]) -> None:
        self.rows.append((opt_steps, dict(record)))

    def flush(self) -> None:
        self.readable = tuple(self.rows)

    def close(self) -> None:
        self.flush()


def write_known_keys(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    ListRecorder.write(self, opt_steps, {name: {"loss": value}[name] for name, value in record.items()})


def write_finite(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    if not np.isfinite(list(record.values())).all():
        raise ValueError("not finite")
    ListRecorder.write(self, opt_steps, record)


def write_into(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    record["opt_steps"] = opt_steps
    ListRecorder.write(self, opt_steps, record)


def write_32_bits(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    ListRecorder.write(self, opt_steps % 2**32, record)


def write_forwards(self: ListRecorder, opt_steps: int, record: dict[str, float]) -> None:
    if self.rows and opt_steps < self.rows[-1][0]:
        raise ValueError("backwards")
    ListRecorder.write(self, opt_steps, record)


BROKEN_RECORDERS: dict[str, Broken] = {
    "known keys only": (
        {"write": write_known_keys},
        "failed: keys come and go, opt_steps takes 64 bits and may go back (KeyError: 'eval_reward')",
    ),
    "rising steps only": ({"write": write_forwards}, "opt_steps takes 64 bits and may go back (ValueError: backwards)"),
    "finite values only": ({"write": write_finite}, "write() failed on a value that is not finite"),
    "what it adds": ({"write": write_into}, "write() changed the record it was given"),
    "few bits": ({"write": write_32_bits}, "after flush() others can read"),
    "no flush": ({"flush": lambda self: None}, "after flush() others can read [], expected"),
    "no flush at the end": ({"close": lambda self: None}, "after close() others can read"),
}


def test_a_good_recorder_passes() -> None:
    recorder = ListRecorder()
    check_recorder(cast("Recorder", recorder), lambda: recorder.readable)
    assert len(recorder.readable) == 5


@pytest.mark.parametrize("what", BROKEN_RECORDERS)
def test_a_recorder_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_RECORDERS[what]
    recorder = broken(ListRecorder, attributes)()
    with fails_saying(message):
        check_recorder(recorder, lambda: recorder.readable)


class Best(Callback):
    """A callback as it should be: keeps the best score."""

    def __init__(self) -> None:
        self.best: float | None = None

    def on_evaluation(self, opt_steps: int, evaluation: Evaluation) -> str | None:
        self.best = max(evaluation.score, evaluation.score if self.best is None else self.best)
        return "done" if self.best > 1e9 else None

    def state(self) -> Mapping[str, Any]:
        return {"best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best = state["best"]


class Forgetful(Best):
    """Does not restore what it saved."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Forget to do it."""


class Lacking(Callback):
    """Answers by a count that is not part of its state."""

    n = 0

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:
        self.n += 1
        return f"{self.n} records"


class Unsaveable(Callback):
    """Has a state that JSON cannot hold."""

    def state(self) -> Mapping[str, Any]:
        return {"seen": {1, 2}}


class Picky(Callback):
    """Needs a key that not every record has."""

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:
        return "no losses" if record["loss_critic"] < 0 else None


class Flag(Callback):
    """Answers by a flag and gives no reason."""

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> Any:
        return True


def test_a_callback_that_fits_passes() -> None:
    check_callback(Best)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (Forgetful, r"restore\(\) did not bring back what state\(\) returned"),
        (Lacking, r"state\(\) lacks a part"),
        (Unsaveable, r"state\(\) must return values that JSON can hold"),
        (Picky, r"on_record\(\) failed: keys come and go"),
        (Flag, r"expected a reason as text, or None, found \[True\]"),
    ],
)
def test_a_callback_that_does_not_fit_is_told_what_to_do(make: Callable[[], Callback], advice: str) -> None:
    with pytest.raises(AssertionError, match=advice):
        check_callback(make)
