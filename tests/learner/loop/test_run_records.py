from __future__ import annotations

import errno
import json
import logging
import math
import os
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch

from common.config.run_config import RunConfig
from common.data import Snapshot
from common.errors import ConfigError, PluginError
from common.interfaces import Callback, Evaluation, Recorder
from common.plugins.part_config import PluginConfig
from crossborder.testing import ItemMemory, check_callback
from examples.own_callback import StopOnHighLoss
from learner.loop.in_turns import train_in_turns
from learner.loop.learner import Outcome
from learner.loop.offline import train_offline
from learner.loop.run_records import MAX_KEYS, Callbacks, RecordWindow, RunRecords
from learner.loop.server import train_async
from learner.records.csv_recorder import CsvRecorder
from learner.storage.training_state import Moment
from tests.conftest import MakeConfig


def growing(inserted: int = 0) -> ItemMemory:
    """A buffer that only counts."""
    buffer = ItemMemory({"x": np.zeros(1)})
    buffer.inserted = inserted
    return buffer


def test_means_are_over_every_value_since_the_last_call() -> None:
    window = RecordWindow(growing())
    for value in range(1000):
        window.add({"a": torch.tensor(float(value)), "b": 2})
    assert window.means() == {"a": 499.5, "b": 2.0}
    assert window.means() == {}
    window.add({"b": 4})
    assert window.means() == {"b": 4.0}


class AsOnAGpu(torch.Tensor):
    """A tensor that is read as those on a GPU are."""

    is_cuda = True


@pytest.mark.parametrize("kind", [torch.Tensor, AsOnAGpu])
def test_a_tensor_of_one_element_is_a_number_whatever_its_shape(kind: type[torch.Tensor]) -> None:
    window = RecordWindow(growing())
    for shape in ((), (1,), (1, 1)):
        window.add({"a": torch.full(shape, 3.0).as_subclass(kind)})
    assert window.means() == {"a": 3.0}


def test_a_tensor_that_the_agent_writes_again_counts_with_its_value_at_each_step() -> None:
    window, loss, array = RecordWindow(growing()), torch.zeros(()), np.zeros(())
    for value in (1.0, 2.0, math.nan, 4.0):
        window.add({"tensor": loss.fill_(value), "array": array})
        array += 1
    means = window.means()
    assert math.isnan(means["tensor"])
    assert means["array"] == 1.5


def test_a_tensor_on_a_gpu_that_is_written_again_is_copied_from_the_second_step_on() -> None:
    window, loss = RecordWindow(growing()), torch.zeros(()).as_subclass(AsOnAGpu)
    for value in range(600):
        window.add({"loss": loss.fill_(float(value))})
    assert window.means()["loss"] == pytest.approx(np.mean(range(600)), abs=0.01)


def test_a_tensor_on_a_gpu_does_not_keep_the_graph_of_its_gradients() -> None:
    window = RecordWindow(growing())
    loss = torch.ones((), requires_grad=True).as_subclass(AsOnAGpu) * 2
    assert isinstance(loss, AsOnAGpu)
    assert loss.grad_fn is not None
    is_freed, note = Event(), Event()
    weakref.finalize(note, is_freed.set)
    cast(dict[str, Event], loss.grad_fn.metadata)["note"] = note
    window.add({"loss": 0.5})
    window.add({"loss": loss})
    del loss, note
    assert is_freed.is_set()


def test_a_key_that_comes_now_and_then_is_averaged_over_the_times_it_came() -> None:
    window = RecordWindow(growing())
    window.add({"a": 1.0})
    window.add({"a": 3.0, "rare": 10.0})
    assert window.means() == {"a": 2.0, "rare": 10.0}


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ([1.0], "expected a dict of names and numbers, found list"),
        ({"loss": "small"}, "loss: expected a number, found 'small'"),
        ({"loss": torch.zeros(3)}, "loss: expected a number, found tensor"),
        ({"loss": np.zeros((2, 3))}, r"loss: expected a number, found array\(\[\[0., 0., 0.\], \[0., 0., 0.\]\]\)$"),
        ({"loss": 10**400}, "loss: expected a number, found 10{79}$"),
        ({1: 2.0}, "as key, found 1$"),
        ({"": 2.0}, "as key, found ''$"),
        ({"loss": 0.5, "opt_steps": 7}, "as key, found 'opt_steps'$"),
        ({"eval_reward": 500.0}, "as key, found 'eval_reward'$"),
    ],
)
def test_a_record_that_would_not_join_those_of_the_learner_is_refused(record: Any, found: str) -> None:
    with pytest.raises(PluginError, match=f"^agent.opt: .*{found}"):
        RecordWindow(growing()).add(record)


@pytest.mark.parametrize(
    "value", [None, {"a": 1.0}, "small", np.zeros(3), torch.zeros(2), torch.zeros(2).as_subclass(AsOnAGpu), 10**400]
)
def test_a_value_that_is_no_number_later_is_refused_by_its_name(value: Any) -> None:
    window = RecordWindow(growing())
    window.add({"loss": 0.5, "other": 1.0})
    with pytest.raises(PluginError, match=r"^agent\.opt: loss: expected a number, found "):
        window.add({"loss": value, "other": 1.0})


class FullDisk(Recorder):
    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        """Nothing was written."""

    def close(self) -> None:
        """Nothing is open."""


def test_of_many_records_that_cannot_be_written_the_log_names_the_first(caplog: pytest.LogCaptureFixture) -> None:
    records = RunRecords([FullDisk()], RecordWindow(growing()))
    for opt_steps in range(3):
        records.write(Moment(opt_steps, 0, 0.0), {"new": 1.0})
    assert caplog.messages == ["training goes on without this record: [Errno 28] No space left on device"]


def test_training_goes_on_if_another_program_has_saved_the_csv_file_as_something_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = CsvRecorder(tmp_path / "metrics.csv")
    (tmp_path / "metrics.csv").write_text("opt_steps,loss", encoding="utf-16")
    RunRecords([recorder], RecordWindow(growing())).write(Moment(10, 100, 1.0), {"a_new_key": 1.0})
    recorder.close()
    assert "training goes on without this record" in caplog.text
    assert "expected a CSV file" in caplog.text


def test_keys_beyond_the_bound_are_left_out_with_one_warning_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    window = RecordWindow(growing())
    for step in range(3 * MAX_KEYS):
        window.add({"loss": float(step), f"of_step_{step}": 1.0})
    means = window.means()
    assert (len(means), means["loss"]) == (MAX_KEYS, (3 * MAX_KEYS - 1) / 2)
    (told,) = [said for said in caplog.messages if "left out" in said]
    assert f"records have {MAX_KEYS} keys" in told
    assert f"of_step_{MAX_KEYS - 1}" in told


def test_an_evaluator_that_invents_keys_takes_no_key_from_the_learner() -> None:
    taken = list[Mapping[str, float]]()
    recorder = mock.create_autospec(Recorder, instance=True)
    recorder.write.side_effect = lambda _, record: taken.append(record)
    records = RunRecords([recorder], RecordWindow(growing()))
    for step in range(3 * MAX_KEYS):
        records.write(Moment(step, 0, 0.0), {f"of_step_{step}": 1.0})
    records.write(Moment(step + 1, 0, 0.0), {"eval_reward": 5.0, "of_another_step": 1.0})
    assert taken[-1] == {"seconds": 0.0, "samples_total": 0.0, "eval_reward": 5.0}
    assert MAX_KEYS < len(records.newest) < 2 * MAX_KEYS


def test_all_evaluations_since_the_last_record_are_left_out_of_opt_steps_per_second() -> None:
    now = 0.0
    window = RecordWindow(growing(), lambda: now)
    for _ in range(6):
        window.add({})
    window.leave_out(3.0)
    window.leave_out(5.0)
    now = 10.0
    assert window.rates()["opt_steps_per_sec"] == 3.0, "six in two seconds"


@pytest.mark.parametrize("cut", [0, 1, 300, 599])
def test_a_window_that_another_process_goes_on_with_gives_the_same_to_the_last_bit(cut: int) -> None:
    values = np.random.default_rng(0).normal(size=600).tolist()
    now = 0.0

    def collect(window: RecordWindow, buffer: ItemMemory, some: list[float]) -> None:
        nonlocal now
        for value in some:
            window.add({"loss": value})
            buffer.inserted += 3
            now += 0.5

    whole_buffer = growing()
    whole = RecordWindow(whole_buffer, lambda: now)
    collect(whole, whole_buffer, values)
    expected = whole.means(), whole.rates()

    first_buffer = growing()
    first = RecordWindow(first_buffer, lambda: now)
    collect(first, first_buffer, values[:cut])
    kept = json.loads(json.dumps(first.state().values))
    collect(first, first_buffer, values[cut:])
    assert (first.means(), first.rates()) == expected, "keeping it changes nothing"

    now += 1000.0  # Nobody trains, but items come.
    second_buffer = growing(first_buffer.inserted)
    second = RecordWindow(second_buffer, lambda: now)
    second.restore(Snapshot(kept))
    second.start()
    collect(second, second_buffer, values[cut:])
    assert (second.means(), second.rates()) == expected


HERE = "tests.learner.loop.test_run_records"


class Counting(Callback):
    """Counts records, and wants to end the run at the n-th one."""

    def __init__(self, n: int, identity: str = "nobody") -> None:
        self.n, self.count, self.identity = n, 0, identity

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:
        self.count += 1
        return f"{self.count} records" if self.count >= self.n else None

    def state(self) -> Mapping[str, Any]:
        return {"count": self.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class Spoiling(Callback):
    """Changes the record that it is given."""

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:
        assert isinstance(record, dict)
        record.clear()
        return None

    def on_evaluation(self, opt_steps: int, evaluation: Evaluation) -> str | None:
        evaluation.record.clear()
        return None


def test_the_first_reason_counts_and_the_log_names_its_callback(caplog: pytest.LogCaptureFixture) -> None:
    config = [PluginConfig(target=f"{HERE}:Counting", params={"n": n}) for n in (3, 2)]
    callbacks = Callbacks.build(config, {})
    callbacks.on_evaluation(1, Evaluation(1.0, {}))
    with caplog.at_level(logging.INFO):
        for opt_steps in range(10, 60, 10):
            callbacks.on_record(opt_steps, {})
    assert callbacks.ended_because == "2 records"
    assert [record.getMessage() for record in caplog.records] == [
        f"opt step 20: {HERE}:Counting ends the run: 2 records"
    ]


def test_a_part_that_is_no_callback_and_a_reason_that_is_no_text_are_refused() -> None:
    with pytest.raises(PluginError, match=r"^callbacks\.0\.target: expected a crossborder\.Callback, found dict$"):
        Callbacks.build([PluginConfig(target="builtins:dict")], {})
    callback = Callback()
    callback.on_record = lambda opt_steps, record: True  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(PluginError, match="callbacks: mine: expected a reason as text, or None, found True"):
        Callbacks({"mine 0": callback}).on_record(1, {})


@pytest.mark.parametrize("state", [{"seen": {1, 2}}, {(1, 2): 3}, {"value": np.float32(1)}])
def test_a_state_that_json_cannot_hold_is_refused_at_the_first_record(state: Mapping[str, Any]) -> None:
    callback = Callback()
    callback.state = lambda: state  # type: ignore[method-assign]
    with pytest.raises(PluginError, match=r"^callbacks: mine: state: expected values that JSON can hold: "):
        Callbacks({"mine 0": callback}).on_record(1, {})


def test_a_callback_is_told_of_the_run_if_it_asks() -> None:
    callbacks = Callbacks.build([PluginConfig(target=f"{HERE}:Counting", params={"n": 1})], {"identity": "me", "x": 1})
    (counting,) = callbacks._callbacks.values()
    assert isinstance(counting, Counting)
    assert counting.identity == "me"


def test_each_callback_gets_its_own_state_back_and_a_new_callback_gets_none() -> None:
    config = [PluginConfig(target=f"{HERE}:Counting", params={"n": n}) for n in (5, 4)]
    first = Callbacks.build(config, {})
    for _ in range(3):
        first.on_record(1, {})
    saved = Snapshot(json.loads(json.dumps(first.state().values)))
    resumed = Callbacks.build([*config, PluginConfig(target=f"{HERE}:Spoiling")], {})
    resumed.restore(saved)
    resumed.on_record(2, {})
    assert resumed.ended_because == "4 records"


def test_a_callback_changes_the_record_of_no_other() -> None:
    record, evaluation = {"loss": 1.0}, Evaluation(1.0, {"loss": 1.0})
    Callbacks({"a": Spoiling()}).on_record(1, record)
    Callbacks({"a": Spoiling()}).on_evaluation(1, evaluation)
    assert record == evaluation.record == {"loss": 1.0}


def test_the_example_ends_a_run_after_patience_high_losses_in_a_row() -> None:
    check_callback(partial(StopOnHighLoss, limit=0.1, patience=2))
    callback = StopOnHighLoss(limit=10.0, patience=2)
    losses = [20.0, 5.0, 20.0, 20.0]
    answers = [callback.on_record(i, {"loss": loss}) for i, loss in enumerate(losses)]
    assert answers == [None, None, None, "the loss was above 10 in 2 records"]


# Real runs. Each evaluation of this environment has the same score, so the second one is no better than the first.


def stopping_early(make_config: MakeConfig, max_opts: int, patience: int = 3) -> RunConfig:
    return make_config(
        env={"target": "tests.learner.loop.test_in_turns:Paying", "params": {"pay": 3.0}},
        agent={"target": "common.agents.dqn:DQN", "params": {"units": [4], "batch_size": 4}},
        trainer={"max_opts": max_opts, "warmup_period": 8, "eval_interval": 10},
        evaluator={"episodes": 1},
        callbacks=[{"target": "learner.callbacks.early_stopping:EarlyStopping", "params": {"patience": patience}}],
    )


def test_a_run_in_turns_ends_early(make_config: MakeConfig) -> None:
    result = train_in_turns(stopping_early(make_config, 1000))
    assert (result.outcome, result.opt_steps) == (Outcome.CALLBACK, 40)
    assert (result.run_dir / "final" / "meta.json").exists()


def test_a_resumed_run_remembers_the_evaluations_of_the_life_before(make_config: MakeConfig) -> None:
    assert train_in_turns(stopping_early(make_config, 30)).outcome is Outcome.MAX_OPTS
    result = train_in_turns(stopping_early(make_config, 1000), resume=True)
    assert (result.outcome, result.opt_steps) == (Outcome.CALLBACK, 40)


def test_a_run_that_was_ended_early_goes_on_with_more_patience(make_config: MakeConfig) -> None:
    train_in_turns(stopping_early(make_config, 1000))
    result = train_in_turns(stopping_early(make_config, 1000, patience=5), resume=True)
    assert (result.outcome, result.opt_steps) == (Outcome.CALLBACK, 60)


def test_a_run_with_actors_and_one_from_a_dataset_end_early(make_config: MakeConfig, tmp_path: Path) -> None:
    config = stopping_early(make_config, 100_000)
    result = train_async(config, 1)
    assert (result.outcome, result.opt_steps) == (Outcome.CALLBACK, 40)
    offline = train_offline(config.model_copy(update={"run_dir": tmp_path / "offline"}), str(result.run_dir))
    assert (offline.outcome, offline.opt_steps) == (Outcome.CALLBACK, 40)


def test_parameters_of_callbacks_are_checked_before_the_run(make_config: MakeConfig) -> None:
    config = make_config(
        callbacks=[{"target": "learner.callbacks.early_stopping:EarlyStopping", "params": {"patients": 1}}]
    )
    with pytest.raises(ConfigError, match=r"callbacks\.0\.params\.patients: unknown parameter \(did you mean"):
        config.check()
