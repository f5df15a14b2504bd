"""Which library multiplies, and that a choice lasts: in a process, on a host, and in a run that is resumed."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from common.agents import products
from common.agents.dqn import DQN
from common.agents.machinery.capturing import UncompiledMode
from common.agents.machinery.update import Inference
from common.agents.networks.layers import Linear, Mlp
from common.agents.products import ChoiceFile, LibraryChoices, Product, Times, choices, choose_products
from common.agents.sac import SAC
from common.config.trainer_config import ProductChoice
from crossborder.testing import ItemMemory
from learner.loop.learner_parts import computing_in
from tests.common.agents.machinery.test_update import BOX, DISCRETE, OBS, Kind, items, learn
from tests.conftest import Command, wait_for

ONEDNN = "mkldnn._linear_pointwise.default"
SHAPE = Product(64, 128, 64, right_transposed=True, bias=True)
FASTER = {"torch": Times(torch=1.0, onednn=2.0), "onednn": Times(torch=2.0, onednn=1.0)}
"""By library: times with which it is chosen."""


@pytest.fixture(autouse=True)
def _choices_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = choices()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choose_products("measured")
    yield
    monkeypatch.setattr(products, "_OF_PROCESS", before)


class Counted(UncompiledMode):
    """Counts the operations of a block by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, _: object, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(operation)] += 1
        return operation(*args, **(kwargs or {}))


def compute(layer: nn.Module, features: torch.Tensor) -> tuple[list[torch.Tensor], Counter[str]]:
    """Outputs and all gradients of a layer, and the operations that computed them."""
    given = features.clone().requires_grad_()
    layer.zero_grad()
    with Counted() as counted:
        outputs = layer(given)
        outputs.square().sum().backward()
    found = [outputs, given.grad, *(parameter.grad for parameter in layer.parameters())]
    return [value.detach().clone() for value in found], counted.calls


@pytest.mark.parametrize("shape", [(64, 128), (4, 16, 128)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_onednn_computes_outputs_and_all_gradients(shape: tuple[int, ...], has_bias: bool) -> None:
    features, layer = torch.randn(shape), Linear(128, 64, bias=has_bias)
    choose_products("torch")
    expected, calls = compute(layer, features)
    assert ONEDNN not in calls
    choose_products("onednn")
    found, calls = compute(layer, features)
    assert calls[ONEDNN] == 3
    assert not {"aten.mm.default", "aten.addmm.default"} & calls.keys()
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-3, rtol=1e-4)


def test_each_product_of_a_layer_has_its_own_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(product: Product) -> Times:
        return FASTER["onednn" if product.left_transposed else "torch"]

    monkeypatch.setattr(products, "measure_product", measure)
    _, calls = compute(Linear(128, 64), torch.randn(64, 128))
    assert (calls[ONEDNN], calls["aten.mm.default"], calls["aten.addmm.default"]) == (1, 1, 1)
    described = choices().describe()
    assert described["onednn"] == ["64x64^T by 64x128"]
    assert described["torch"] == ["64x64 by 64x128", "64x128 by 128x64^T plus bias"]


@pytest.mark.parametrize("found", ["torch", "onednn"])
def test_the_faster_library_computes(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "measure_product", lambda _: FASTER[found])
    _, calls = compute(Linear(128, 64), torch.randn(64, 128))
    assert calls[ONEDNN] == (3 if found == "onednn" else 0)


def test_nothing_is_measured_for_a_small_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(products, "measure_product")
    _, calls = compute(Linear(128, 64), torch.randn(8, 128))
    assert ONEDNN not in calls


def test_a_real_measurement_takes_part_in_no_computation_around_it() -> None:
    """The first call of a shape may be traced, and must not move the random generators of a run."""
    net = Mlp((128,), 2, (64,))
    state = torch.get_rng_state()
    act = Inference(net, torch.device("cpu"), captured=True)
    obs = np.ones((64, 128), np.float32)
    first = act(obs).copy()
    assert torch.equal(torch.get_rng_state(), state)
    assert act.captured
    np.testing.assert_array_equal(act(obs), first)
    assert choices().describe()["torch"] + choices().describe()["onednn"] == ["64x128 by 128x64^T plus bias"]


KINDS: dict[str, Kind] = {
    "DQN": (partial(DQN, units=(256, 256), batch_size=32), DISCRETE, OBS),
    "SAC": (partial(SAC, units=(256, 256), batch_size=32), BOX, OBS),
}


@pytest.mark.parametrize("name", KINDS)
def test_captured_updates_by_onednn_are_the_eager_ones_bit_for_bit(name: str) -> None:
    """Those by torch are shown in test_update.py."""
    kind = KINDS[name]
    choose_products("onednn")
    columns = items(*kind[1:])
    learnt = learn(kind, ItemMemory(columns), "captured")
    with Counted() as counted:  # On some processors both libraries compute the same bits.
        assert learnt == learn(kind, ItemMemory(columns), "eager")
    assert ONEDNN in counted.calls
    assert learnt == learn(kind, ItemMemory(columns), "captured"), "the next run"


def test_results_of_onednn_do_not_depend_on_where_memory_begins() -> None:
    left, right, bias = torch.randn(64, 96), torch.randn(80, 96).t(), torch.randn(80)
    expected = products._multiply_by_onednn(left, right, bias)
    for offset in range(1, 17):
        moved = torch.empty(64 * 96 + offset)[offset:].view(64, 96)
        moved.copy_(left)
        assert torch.equal(products._multiply_by_onednn(moved, right, bias), expected)


def test_torch_computes_what_onednn_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_products("onednn")
    monkeypatch.setattr(products, "_multiply", None)
    layer, features = Linear(128, 64), torch.randn(64, 128)
    assert layer.double()(features.double()).dtype == torch.float64
    layer.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(features).dtype == torch.bfloat16
    params: dict[str, torch.Tensor] = dict(layer.named_parameters())
    per_row = torch.func.vmap(lambda row: torch.func.functional_call(layer, params, row[None])[0])
    assert per_row(torch.randn(4096, 128)).shape == (4096, 64)
    exported = torch.export.export(layer, (features,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)
    assert exported.module()(torch.randn(3, 128)).shape == (3, 64)


def test_a_bias_learns_alone() -> None:
    choose_products("onednn")
    layer = Linear(128, 64)
    layer.weight.requires_grad_(False)
    layer(torch.randn(64, 128)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    assert layer.bias.grad.tolist() == [64.0] * 64


def test_the_dtype_that_a_user_has_made_the_default_changes_nothing() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        choose_products("onednn")
        _, calls = compute(Linear(128, 64).float(), torch.randn(64, 128, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)
    assert calls[ONEDNN] == 3


def test_rounded_products_stay_with_torch() -> None:
    choose_products("onednn")
    with computing_in("rounded_products", "cpu"):
        _, calls = compute(Linear(128, 64), torch.randn(64, 128))
    assert ONEDNN not in calls


def test_a_gradient_has_a_gradient() -> None:
    features, layer = torch.randn(64, 128), Linear(128, 64)
    penalties = []
    for setting in ("torch", "onednn"):
        choose_products(setting)
        given = features.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(given).pow(3).sum(), given, create_graph=True)
        layer.zero_grad()
        gradient.square().sum().backward()  # type: ignore[no-untyped-call]
        assert layer.weight.grad is not None
        penalties.append(layer.weight.grad.clone())
    torch.testing.assert_close(*penalties, atol=0.1, rtol=1e-3)


@pytest.mark.parametrize("setting", ["measured", "onednn"])
def test_a_build_of_torch_without_onednn_multiplies_and_says_so(
    setting: ProductChoice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object) -> torch.Tensor:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    monkeypatch.setattr(products, "_multiply_by_onednn", missing)
    choose_products(setting)
    _, calls = compute(Linear(128, 64), torch.randn(64, 128))
    assert calls["aten.addmm.default"] == 1
    assert [record.message for record in caplog.records] == [
        "products: this build of torch cannot multiply by oneDNN (AttributeError: '_OpNamespace' 'mkldnn' object has "
        "no attribute '_linear_pointwise'): torch does it"
    ]
    assert "has no oneDNN (AttributeError" in products.describe_products()


def test_the_host_is_named_with_all_that_decides_which_library_is_faster() -> None:
    host = products.describe_host()
    assert host.endswith(f", torch {torch.__version__}, 1 thread")
    assert torch.backends.cpu.get_cpu_capability() in host


def test_the_next_process_reads_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "measure_product", lambda _: FASTER["onednn"])
    assert LibraryChoices().library_of(SHAPE) == "onednn"
    monkeypatch.setattr(products, "measure_product", lambda _: FASTER["torch"])
    assert LibraryChoices().library_of(SHAPE) == "onednn", "measured again"
    assert LibraryChoices(file=None).library_of(SHAPE) == "torch"


RACES = """
import sys
from pathlib import Path
from common.agents.products import ChoiceFile, Product, Times
file, times = ChoiceFile(Path("new/products.jsonl")), Times(*map(float, sys.argv[1:]))
print("ready", flush=True)
open("gate").close()  # It waits until the test opens the other end.
print(*(file.add("here", Product(m, 2, 3), times) for m in range(50)))
"""


def test_processes_that_measure_at_the_same_time_choose_alike(start: Callable[..., Command], tmp_path: Path) -> None:
    """Each process measures other times, and finds out which library the first of them has chosen."""
    (tmp_path / "races.py").write_text(RACES)
    os.mkfifo(tmp_path / "gate")
    racing = [start("races", *map(str, FASTER[by]), cwd=tmp_path) for by in ("torch", "onednn")]
    wait_for(lambda: all("ready" in process.output() for process in racing), "both are ready")
    with (tmp_path / "gate").open("w"):
        assert [process.wait() for process in racing] == [0, 0]
    one, other = (process.output().split()[1:] for process in racing)
    assert one == other
    assert len(one) == 50
    assert len(ChoiceFile(tmp_path / "new" / "products.jsonl").read("here")) == 50


def test_other_hosts_and_damaged_lines_do_not_count(tmp_path: Path) -> None:
    file = ChoiceFile(tmp_path / "products.jsonl")
    assert file.read("here") == {}
    shape = json.dumps(SHAPE._asdict())
    lines = [
        f'{{"host": "there", "product": {shape}, "by": "torch"}}',
        f'{{"host": "here", "product": {shape}, "by": "cublas"}}',
        '{"host": "here", "product": {"m": 1}, "by": "torch"}',
        '{"host": "he',
        "[1]",
        f'{{"host": "here", "product": {shape}, "by": "onednn"}}',
        f'{{"host": "here", "product": {shape}, "by": "torch"}}',
    ]
    file.path.write_text("\n".join(lines))
    assert file.read("here") == {SHAPE: "onednn"}


def test_without_a_file_the_process_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(products, "measure_product", lambda _: FASTER["onednn"])
    (tmp_path / "crossborder").write_text("a file where the directory would be")
    made = LibraryChoices()
    assert made.library_of(SHAPE) == "onednn"
    assert made.library_of(SHAPE._replace(m=4096)) == "onednn"
    (warning,) = caplog.records
    assert warning.message.endswith("each process measures anew, and may choose otherwise")
    assert str(tmp_path / "crossborder") in warning.message


def test_a_user_without_a_home_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> Path:
        raise ValueError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(products, "expand_home", unknown)
    assert ChoiceFile.of_user() is None


def test_a_resumed_run_keeps_its_choices_on_a_host_of_the_same_kind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(products, "measure_product", lambda _: FASTER["onednn"])
    before = LibraryChoices(file=None)
    before.library_of(SHAPE)
    state = before.state()
    monkeypatch.setattr(products, "measure_product", lambda _: FASTER["torch"])
    resumed = LibraryChoices(file=None)
    assert resumed.library_of(SHAPE) == "torch", "the trial opt step of the start"
    resumed.restore(type(state)(json.loads(json.dumps(state.values))))
    assert resumed.library_of(SHAPE) == "onednn"
    assert not caplog.records


def test_a_resumed_run_warns_of_other_choices(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(products, "measure_product", lambda _: FASTER["onednn"])
    monkeypatch.setattr(products, "describe_host", lambda: "an older host")
    before = LibraryChoices(file=None)
    before.library_of(SHAPE)
    before.library_of(SHAPE._replace(m=4096))
    monkeypatch.setattr(products, "describe_host", lambda: "a newer host")
    LibraryChoices(file=None).restore(before.state())
    assert not caplog.records, "both hosts choose alike"
    monkeypatch.setattr(products, "measure_product", lambda p: FASTER["onednn" if p.m == 64 else "torch"])
    LibraryChoices(file=None).restore(before.state())
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.message == (
        "products: 1 of 2 products are computed by another library than before, such as 4096x128 by 128x64^T plus "
        "bias, now by torch (before: an older host, trainer.products: measured): results differ from those of the run "
        "before in their last bits"
    )


def test_a_process_measures_no_endless_number_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "measure_product", lambda _: FASTER["onednn"])
    monkeypatch.setattr(products, "MOST", 3)
    made = LibraryChoices(file=None)
    libraries = [made.library_of(SHAPE._replace(m=1000 + i)) for i in range(5)]
    assert libraries == ["onednn"] * 3 + ["torch"] * 2


def test_a_product_that_cannot_be_measured_is_computed_by_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: Product) -> Times:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(products, "measure_product", fails)
    assert LibraryChoices(file=None).library_of(SHAPE) == "torch"
    assert "could not create a primitive" in caplog.text
