"""Spans reach a collector over HTTP, or cost nothing."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from common.process.tracing import ENDPOINT, PARENT_BYTES, is_trace_parent, open_tracing
from tests.collector import collecting


def test_the_spans_of_a_batch_are_one_trace_at_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch) as collector:
        actor, trainer = open_tracing("actor"), open_tracing("trainer")
        assert actor is not None
        assert trainer is not None
        now, unix = time.monotonic(), time.time()
        parent = actor.begin_trace("act", now - 2.0, rows=64)
        assert len(parent) == PARENT_BYTES
        trainer.record("opt", parent, now, now + 1.0, opt_steps=7)
        actor.flush()
        trainer.flush()
        trace = collector.wait_for("act", "opt")
    assert (trace["act"].service, trace["opt"].service) == ("crossborder-actor", "crossborder-trainer")
    assert (trace["act"].attributes, trace["opt"].attributes) == ({"rows": 64}, {"opt_steps": 7})
    assert trace["opt"].began / 1e9 == pytest.approx(unix, abs=0.1)
    assert trace["opt"].ended - trace["opt"].began == pytest.approx(1e9, abs=1e6)


def test_the_sampler_of_the_environment_decides_which_traces_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with collecting(monkeypatch):
        tracing = open_tracing("actor")
        assert tracing is not None
        assert not tracing.begin_trace("act", time.monotonic())


def test_without_a_collector_nothing_of_opentelemetry_is_imported() -> None:
    code = """if True:
        import sys
        import learner.ingest.core
        from common.process.tracing import open_tracing
        assert open_tracing("actor") is None
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
    """
    subprocess.run([sys.executable, "-c", code], check=True, env={})


def test_a_host_without_the_packages_goes_on_without_traces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    open_tracing.cache_clear()
    assert open_tracing("actor") is None
    open_tracing.cache_clear()
    assert "crossborder[otel]" in caplog.text


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n", False),
        ("0" * PARENT_BYTES, False),
        ("", False),
    ],
)
def test_a_text_of_a_stranger_is_a_trace_parent_or_not(text: str, is_one: bool) -> None:
    assert is_trace_parent(text) is is_one
