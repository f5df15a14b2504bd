"""A batch is traced through a run: actor, ingest and trainer each tell the collector of their part."""

from __future__ import annotations

import pytest

from tests.collector import collecting
from tests.conftest import MakeConfig
from tests.e2e.test_counting import train_in_thread

ORDER = ("act", "wait in the spool", "store", "opt", "publish", "fetch")


def test_a_trace_leads_from_the_steps_of_a_batch_to_the_model_that_has_learnt_from_it(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(replay={"samples_per_insert": 1.6}, trainer={"max_opts": 1_000_000})
    with collecting(monkeypatch) as collector, train_in_thread(config, local_actors=1):
        trace = collector.wait_for(*ORDER, "send")
    assert [trace[name].service.removeprefix("crossborder-") for name in ORDER] == [
        *("actor", "actor", "ingest", "trainer", "trainer", "actor")
    ]
    began = [trace[name].began for name in ORDER if name != "fetch"]
    assert began == sorted(began), "they follow each other"
    assert trace["send"].began <= trace["store"].began <= trace["store"].ended <= trace["send"].ended
    assert trace["store"].attributes["rows"] >= trace["act"].attributes["rows"]
    assert trace["publish"].attributes["opt_steps"] >= trace["opt"].attributes["opt_steps"]
    assert trace["fetch"].began >= trace["opt"].ended
