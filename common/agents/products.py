"""Products of float32 matrices on a CPU, each by the faster of two libraries for its shape.

torch multiplies with its BLAS, which on x86 is Intel's MKL. On AMD's processors MKL has no kernels for AVX-512. oneDNN,
which is part of torch too, has such kernels for all processors, so it takes half the time of a large product there;
MKL is faster for small products. So the first product of each shape is measured with both libraries.

The choice is kept in a file of the user, ``products.jsonl``, so that all processes of a host and all later runs choose
alike: the libraries differ in the last bits of a result. Captured and eager computations ask the same function for the
choice.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import nn

from common.config.trainer_config import ProductChoice
from common.data import Snapshot
from common.home import expand_home

log = logging.getLogger(__name__)
ProductLibrary = Literal["torch", "onednn"]
LEAST: Final = 1 << 18
"""The least multiplications of a product that is measured: below, a call of oneDNN alone takes longer than MKL."""
GAIN: Final = 0.9
"""oneDNN is chosen if it takes at most this share of torch's time, so that noise does not choose between equals."""
SECONDS: Final = 0.01
"""The time after which no further turn of a measurement begins."""
TURNS: Final = (5, 50)
"""The least and the most turns of a measurement."""
MOST: Final = 1000
"""The most products that one process measures; torch multiplies further shapes."""


class Product(NamedTuple):
    """The shape of a product of matrices ``[m, k]`` and ``[k, n]``, on which the time of a library depends."""

    m: int
    k: int
    n: int
    left_transposed: bool = False
    """Whether the left matrix lies in memory column by column."""
    right_transposed: bool = False
    bias: bool = False
    """Whether a vector ``[n]`` is added."""

    @classmethod
    def of(cls, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """The shape of a product of two matrices."""
        (m, k), n = left.shape, right.shape[1]
        return cls(m, k, n, not left.is_contiguous(), not right.is_contiguous(), bias is not None)

    def __str__(self) -> str:
        left, right = ("^T" if turned else "" for turned in (self.left_transposed, self.right_transposed))
        return f"{self.m}x{self.k}{left} by {self.k}x{self.n}{right}{' plus bias' if self.bias else ''}"

    def make_arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Matrices of this shape, and the bias; no random generator is used."""
        # The user's defaults may be others.
        make = functools.partial(torch.full, fill_value=0.5, dtype=torch.float32, device="cpu")
        left = make((self.k, self.m)).t() if self.left_transposed else make((self.m, self.k))
        right = make((self.n, self.k)).t() if self.right_transposed else make((self.k, self.n))
        return left, right, make((self.n,)) if self.bias else None


class Times(NamedTuple):
    """Seconds that a product takes with each library."""

    torch: float
    onednn: float

    @property
    def faster(self) -> ProductLibrary:
        """The library that is chosen."""
        return "onednn" if self.onednn <= GAIN * self.torch else "torch"

    def __str__(self) -> str:
        return f"{self.torch * 1e6:.0f} µs by torch, {self.onednn * 1e6:.0f} µs by oneDNN"


def _multiply_by_torch(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)


def _multiply_by_onednn(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(left, right.t(), bias, "none", [], "")
    return product


_MULTIPLY: Final[Mapping[ProductLibrary, Callable[..., torch.Tensor]]] = {
    "torch": _multiply_by_torch,
    "onednn": _multiply_by_onednn,
}


@torch.no_grad()
def _find_fault() -> str | None:
    """Why this build of torch cannot multiply by oneDNN, whose function torch does not document; None if it can."""
    left, right, bias = Product(8, 3, 5, right_transposed=True, bias=True).make_arguments()
    try:
        found = _multiply_by_onednn(left, right, bias)
    except Exception as error:  # noqa: BLE001 - the function is missing, or takes other arguments
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None if torch.allclose(found, _multiply_by_torch(left, right, bias)) else "its result is wrong"


def describe_host() -> str:
    """Everything but the shape on which the faster library depends: processor, release of torch, threads."""
    threads = torch.get_num_threads()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{_find_processor()}, {capability}, torch {torch.__version__}, {threads} thread{'s' * (threads > 1)}"


def _find_processor() -> str:
    """The processor's name and model, as Linux tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    told = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    if "model name" not in told:
        return platform.processor() or platform.machine()
    return f"{told['model name'].strip()} family {told.get('cpu family', '?')} model {told.get('model', '?')}"


@torch.inference_mode()
def measure_product(product: Product) -> Times:
    """Measure both libraries in turns; the least time of each counts, as other work on the host only adds to it."""
    arguments = product.make_arguments()
    for multiply in _MULTIPLY.values():
        multiply(*arguments)
    least = dict.fromkeys(_MULTIPLY, float("inf"))
    began = time.perf_counter()
    for turn in range(TURNS[1]):
        for library, multiply in _MULTIPLY.items():
            start = time.perf_counter()
            multiply(*arguments)
            least[library] = min(least[library], time.perf_counter() - start)
        if turn + 1 >= TURNS[0] and time.perf_counter() - began > SECONDS:
            break
    return Times(**least)


def describe_products() -> str:
    """This host and the times of a product of 256x256x256, as a layer of 256 units has it with a batch of 256."""
    fault = _find_fault()
    if fault is not None:
        return f"torch multiplies, as this build of it has no oneDNN ({fault}), on {describe_host()}"
    product = Product(256, 256, 256, right_transposed=True, bias=True)
    return f"{product} takes {measure_product(product)}, on {describe_host()}"


class ChoiceFile:
    """A file of JSON lines with the choices of a user, on all hosts that share it.

    Several processes may measure a product at the same time, and each adds a line. The first line about a product
    counts. Each process reads the file after it has written, so all of them find the same line.

    Args:
        path: of the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_user(cls) -> ChoiceFile | None:
        """The file of this user; None if the user has no home."""
        try:
            caches = Path(os.environ.get("XDG_CACHE_HOME") or expand_home("~/.cache"))
        except ValueError:
            return None
        return cls(caches / "crossborder" / "products.jsonl")

    def read(self, host: str) -> dict[Product, ProductLibrary]:
        """Read the choices for a host; none if there is no file. A line that another program wrote is skipped.

        Raises:
            OSError: there is a file, but it cannot be read.
        """
        found: dict[Product, ProductLibrary] = {}
        for line in self.path.read_text(errors="replace").splitlines() if self.path.exists() else ():
            try:
                entry = json.loads(line)
                if entry["host"] == host and entry["by"] in _MULTIPLY:
                    found.setdefault(Product(**entry["product"]), entry["by"])
            except (ValueError, TypeError, LookupError):
                continue
        return found

    def add(self, host: str, product: Product, times: Times) -> ProductLibrary:
        """Add a measurement; return the choice of the first measurement of this product.

        Raises:
            OSError: the file cannot be written or read.
        """
        entry = {
            "host": host,
            "product": product._asdict(),
            "by": times.faster,
            "microseconds": {library: round(seconds * 1e6, 1) for library, seconds in times._asdict().items()},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:  # One write at the end of the file: lines of other processes stay whole.
            file.write(f"{json.dumps(entry)}\n")
        return self.read(host).get(product, times.faster)


@dataclass
class LibraryChoices:
    """Which library computes which product in this process; a part of a run, which checkpoints keep.

    Args:
        setting: ``measured``, or the library of all products that are large enough.
        file: keeps measurements; None: they end with the process.
    """

    setting: ProductChoice = "measured"
    file: ChoiceFile | None = field(default_factory=ChoiceFile.of_user)
    made: dict[Product, ProductLibrary] = field(default_factory=dict)
    _host: str = ""
    _kept: dict[Product, ProductLibrary] = field(default_factory=dict)
    """The choices that were made before: in the file, or by the run that is resumed."""
    _fault: str | None = None

    def library_of(self, product: Product) -> ProductLibrary:
        """The library that computes a product no smaller than ``LEAST``.

        A product that nobody has measured on this host is measured now.
        """
        made = self.made.get(product)
        if made is None:
            made = self.made[product] = self._choose(product)
        return made

    def _choose(self, product: Product) -> ProductLibrary:
        if self.setting == "torch" or len(self.made) >= MOST:
            return "torch"
        # The caller's operations may be recorded, or computed in autocast's precision. Those of another thread are not.
        with ThreadPoolExecutor(1) as other:
            other.submit(self._begin).result()
            if self._fault is not None:
                return "torch"
            if self.setting == "onednn":
                return "onednn"
            return self._kept.get(product) or other.submit(self._measure, product).result()

    def _begin(self) -> None:
        """Look at the host and read the file, before the first choice."""
        if self._host:
            return
        self._host = describe_host()
        if self.setting != "torch":
            self._fault = _find_fault()
            if self._fault is not None:
                log.warning("products: this build of torch cannot multiply by oneDNN (%s): torch does it", self._fault)
            self._kept |= self._with_file(lambda file: file.read(self._host)) or {}

    def _measure(self, product: Product) -> ProductLibrary:
        try:
            times = measure_product(product)
        except RuntimeError as error:
            log.warning("products: %s cannot be measured, so torch computes it: %s", product, error)
            return "torch"
        chosen = self._with_file(lambda file: file.add(self._host, product, times)) or times.faster
        log.debug("products: %s takes %s: %s computes it", product, times, chosen)
        return chosen

    def _with_file(self, use: Callable[[ChoiceFile], Any]) -> Any:
        """Use the file; None without one. After an error the process goes on without it."""
        if self.file is None:
            return None
        try:
            return use(self.file)
        except OSError as error:
            log.warning("products: %s; each process measures anew, and may choose otherwise", error)
            self.file = None
            return None

    def describe(self) -> dict[str, Any]:
        """The choices of this process so far, as values that JSON can hold."""
        self._begin()
        by: dict[str, list[str]] = {"torch": [], "onednn": []}
        for product, library in sorted(self.made.items()):
            by[library].append(str(product))
        return {"setting": self.setting, "host": self._host, **by}

    def __str__(self) -> str:
        libraries = list(self.made.values())
        if not libraries:
            return f"none is large so far (trainer.products: {self.setting})"
        found = f"oneDNN computes {libraries.count('onednn')} of {len(libraries)} large products, torch the others"
        return f"{found} (trainer.products: {self.setting})"

    def state(self) -> Snapshot:
        """The choices, for a checkpoint."""
        self._begin()
        made = [[*product, by] for product, by in sorted(self.made.items())]
        return Snapshot({"host": self._host, "setting": self.setting, "made": made})

    def restore(self, state: Snapshot) -> None:
        """Go on with the choices of a checkpoint on a host of the same kind; on others, warn of different choices."""
        self._begin()
        before: dict[Product, ProductLibrary] = {Product(*entry[:-1]): entry[-1] for entry in state.values["made"]}
        if (state.values["host"], state.values["setting"]) == (self._host, self.setting):
            self._kept |= before
            self.made.clear()
            return
        differing = [product for product, by in before.items() if self.library_of(product) != by]
        if differing:
            log.warning(
                "products: %d of %d products are computed by another library than before, such as %s, now by %s "
                "(before: %s, trainer.products: %s): results differ from those of the run before in their last bits",
                *(len(differing), len(before), differing[0], self.library_of(differing[0])),
                *(state.values["host"], state.values["setting"]),
            )


_OF_PROCESS = LibraryChoices()


def choices() -> LibraryChoices:
    """The choices of this process."""
    return _OF_PROCESS


def choose_products(setting: ProductChoice) -> LibraryChoices:
    """From now on, choose the libraries of this process by ``setting``, whatever was chosen; return the choices.

    Call it before the first update: one that was captured earlier keeps its libraries.
    """
    global _OF_PROCESS  # noqa: PLW0603 - as for torch's number of threads, there is one for a process
    _OF_PROCESS = LibraryChoices(setting)
    return _OF_PROCESS


def _multiply(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The product of matrices ``[m, k]`` and ``[k, n]`` by the library that was chosen for it, plus a bias ``[n]``."""
    return _MULTIPLY[_OF_PROCESS.library_of(Product.of(left, right, bias))](left, right, bias)


class _Linear(torch.autograd.Function):
    """``nn.functional.linear`` of rows ``[m, k]``; its gradients are products by the chosen libraries too."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        return _multiply(rows, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        rows, weight = ctx.saved_tensors
        # A gradient of this gradient is asked for; torch cannot differentiate oneDNN's function.
        multiply = torch.mm if torch.is_grad_enabled() else _multiply
        for_rows, for_weight, for_bias = ctx.needs_input_grad
        return (
            multiply(gradient, weight) if for_rows else None,
            multiply(gradient.t(), rows) if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )


def linear(features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``nn.functional.linear`` by the faster library, from ``[..., k]`` and ``[n, k]`` to ``[..., n]``.

    torch computes other dtypes, on a GPU, and while a function is transformed: exported, compiled, or by torch.func.
    """
    plain = nn.functional.linear
    is_for_torch = torch.compiler.is_compiling() or not features.is_cpu or features.numel() * weight.shape[0] < LEAST
    if is_for_torch or not _is_plain(features, weight):
        return plain(features, weight, bias)
    rows = features if features.dim() == 2 else features.flatten(0, -2)
    (m, k), n = rows.shape, weight.shape[0]
    needed = [Product.of(rows, weight.t(), bias)]
    given = (features, weight) if bias is None else (features, weight, bias)
    is_learning = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    if is_learning:
        needed.append(Product(n, m, k, left_transposed=min(m, n) > 1))
        if features.requires_grad:
            needed.append(Product(m, n, k))
    if all(_OF_PROCESS.library_of(product) == "torch" for product in needed):
        return plain(features, weight, bias)
    if is_learning:
        outputs: torch.Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        outputs = _multiply(rows, weight.t(), bias)
    return outputs if features.dim() == 2 else outputs.view(*features.shape[:-1], n)


def _is_plain(features: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether both are float32, in torch's usual precision, and nothing transforms the computation."""
    return (
        features.dtype is weight.dtype is torch.float32
        and type(features) in (torch.Tensor, nn.Parameter)
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        # trainer.precision: rounded_products rounds their inputs; torch 2.8 may not know of it.
        and getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", "none") in ("none", "ieee")
    )
