"""DQN's opt steps per second on one thread: bare, and while steps arrive; a network of 2x256, or Nature's CNN.

Four other rates stand beside them: the floor, which is the step's matrix products and convolutions alone;
``resident``, the same update repeated on one batch that is in memory already; and the update of CleanRL's ``dqn.py``
on its own network, with uniform batches from arrays, plain and compiled (``benchmarks.cleanrl``). ``felt`` is the rate
while steps arrive over the rate of the same process with an idle server. The other ratios are of the bare rate.
The measurements take turns, and the fastest of three counts, since other programs can only slow a measurement down.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.cleanrl import Learn, make_learn, make_network
from benchmarks.client import ROWS, Client
from benchmarks.report import report
from benchmarks.serving import serve_learner
from common.agents.dqn import DQN
from common.agents.machinery.gradient_step import to_tensors
from common.data import Items
from learner.loop.server import LearnerServer, local_trust

SECONDS = 2.0
TURNS = 3
STORED = 20_000
WARM_UP = 3
# As CleanRL does it: no double Q, no clipping.
PARAMS = "double_dqn: false, max_grad_norm: null, critic_loss: mse, explorer: {{start: 0}}, batch_size: {}"
NATURE = "network: {target: 'common.agents.networks:NatureCnn'}"
KINDS = {
    "cartpole": (64, 20_000, "units: [256, 256]"),
    "atari": (32, 2_000, NATURE),
}
"""Batch size, arriving steps per second and network of each kind."""


def rate(step: Callable[[], object], seconds: float = SECONDS) -> float:
    """Steps per second of wall-clock, to the end of the last one's computation."""
    synchronize: Callable[[], None] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        step()
        steps += 1
    synchronize()
    return steps / (time.perf_counter() - started)


def cleanrl(learn: Learn, items: Items, size: int, device: torch.device) -> Callable[[], None]:
    """CleanRL's update, with CleanRL's own replay (arrays) and batches."""
    rng, rows = np.random.default_rng(0), len(items["reward"])
    action, done = items["action"].reshape(-1, 1).astype(np.int64), items["terminated"].astype(np.float32)
    columns = items["obs"], action, items["reward"], items["next_obs"], done

    def update() -> None:
        drawn = rng.integers(0, rows, size)
        learn(*(torch.tensor(column[drawn], device=device) for column in columns))

    return update


def products(net: nn.Module, obs: torch.Tensor) -> Callable[[], None]:
    """The matrix products of one step alone: two forward passes and one backward through each layer with weights."""
    calls: list[Callable[[], object]] = []

    def note(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        x, back, is_first = inputs[0].detach().clone(), torch.ones_like(output), not calls
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach()
            forward = [lambda: torch.mm(x, weight.t())] * 2
            backward = [lambda: torch.mm(back.t(), x), lambda: torch.mm(back, weight)]
            calls.extend([*forward, *backward[: 1 if is_first else 2]])
        elif isinstance(layer, nn.Conv2d):
            weight, stride = layer.weight.detach(), list(layer.stride)
            forward = [lambda: functional.conv2d(x, weight, stride=stride)] * 2
            mask = [not is_first, True, False]
            calls.extend(forward)
            calls.append(
                lambda: torch.ops.aten.convolution_backward(
                    back, x, weight, None, stride, [0, 0], [1, 1], False, [0, 0], 1, mask
                )
            )

    hooks = [layer.register_forward_hook(note) for layer in net.modules()]
    with torch.no_grad():
        net(obs)
    for hook in hooks:
        hook.remove()

    def step() -> None:
        with torch.no_grad():
            for call in calls:
                call()

    return step


@contextmanager
def arriving(server: LearnerServer, per_second: float, least: float = 0.9) -> Iterator[None]:
    """Have another process push ``per_second`` steps a second to the server."""
    before, started = server.buffer.inserted, time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.client", server.ingest.address, str(per_second)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while server.buffer.inserted == before:  # Until it has joined.
            if time.monotonic() > deadline:
                raise SystemExit("no step arrived within 30 s")
            time.sleep(0.05)
        before, started = server.buffer.inserted, time.perf_counter()
        yield
        arrived = (server.buffer.inserted - before) / (time.perf_counter() - started)
        assert process.stdin is not None
        process.stdin.close()
    if arrived < least * per_second:
        raise SystemExit(f"expected {per_second:g} steps a second, but only {arrived:.0f} arrived")


def measure(kind: str, update: str) -> dict[str, object]:
    size, per_second, network = KINDS[kind]
    params = f"agent={{target: common.agents.dqn:DQN, params: {{{PARAMS.format(size)}, {network}, update: {update}}}}}"
    with serve_learner(kind, params, f"replay.capacity={STORED}") as server:
        with Client(server.ingest.address, local_trust(server.config.server)) as client:
            for _ in range(STORED // ROWS):
                client.push(client.parts(ROWS)[0])
        agent = server.learner.agent
        assert isinstance(agent, DQN)
        server.learner.start()
        items = {name: column.copy() for name, column in server.buffer.batch(1000).items()}
        batch = to_tensors({name: column[:size] for name, column in items.items()}, agent.device)
        shape, n_actions = items["obs"].shape[1:], agent.qnet(batch["obs"]).shape[1]
        plain, compiled = (
            cleanrl(
                make_learn(make_network(shape, n_actions).to(agent.device), compiled=compiled),
                items,
                size,
                agent.device,
            )
            for compiled in (False, True)
        )
        floor = products(agent.qnet, batch["obs"])
        for _ in range(WARM_UP):
            compiled()
        turns = []
        for _ in range(TURNS):
            turn = {"opt/s": rate(server.learner.step), "CleanRL/s": rate(plain), "compiled/s": rate(compiled)}
            turn["products/s"] = rate(floor)
            turn["resident/s"] = rate(lambda: agent.learn(batch))
            with arriving(server, per_second):
                turn["opt/s meanwhile"] = rate(server.learner.step)
            turns.append(turn)
    best = {key: max(turn[key] for turn in turns) for key in turns[0]}
    return {
        "kind": kind,
        "batch": size,
        **best,
        "to CleanRL": best["opt/s"] / best["CleanRL/s"],
        "to compiled": best["opt/s"] / best["compiled/s"],
        "of the products": best["opt/s"] / best["products/s"],
        "of the resident": best["opt/s"] / best["resident/s"],
        "arriving/s": per_second,
        "felt": best["opt/s meanwhile"] / best["opt/s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.learner", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=["cartpole", "atari"])
    parser.add_argument("--update", default="captured", help="eager or captured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(kind, arguments.update) for kind in arguments.kind]
    report("learner", f"{arguments.update}, one thread; acknowledged, exactly once", rows)


if __name__ == "__main__":
    main()
