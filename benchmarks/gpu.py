"""Opt steps per second on a GPU, beside a bare CUDA graph of the same update, and gathers from the resident replay.

The learner's own opt step draws from a replay that is resident on the GPU: ``alone`` while nothing arrives and nothing
is published, ``publishing`` with a new model for each ``sync_interval`` opt steps, ``arriving`` also while
another process pushes steps. The floor, ``bare``, is the same update on one batch that stays on the GPU, captured as
torch's documentation captures one (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs): its replay draws
nothing, copies nothing and returns nothing. Without a GPU, ``--device cpu`` runs all but the floor. With ``--python``,
sbx takes turns with ours on the same device, one update and 64 in a call, from its own replay in the host's memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.client import Client
from benchmarks.learner import arriving, rate
from benchmarks.report import add_choice, report
from benchmarks.serving import serve_learner
from benchmarks.updates import AGENTS, BURST, Turn, theirs
from benchmarks.updates_peer import ENVS
from common.agents.network_agent import NetworkAgent, find_objects
from common.data import Column, Items, Schema
from common.interfaces import ReplayBuffer
from learner.loop.learner import publish_to_nobody
from learner.loop.learner_parts import computing_in
from learner.loop.resident import ResidentReplay, ResidentRows
from learner.loop.server import LearnerServer, local_trust
from learner.replay.memory import ReplayMemory
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from learner.views.items import SelfContained

TURNS = 3
STORED = 20_000
GATHERED, ROW_FLOATS = 32_768, 900
"""Rows of a gather, and float32 numbers in each: 3.6 kB."""
HUMANOID = {"observations": 348, "actions": 17, "discrete": False}
NATURE_512 = (
    "{target: common.agents.dqn:DQN, params: {network: {target: 'common.agents.networks:NatureCnn'}, batch_size: 512}}"
)


@dataclass(frozen=True)
class Peer:
    """An update of sbx, with batches of ``batch``."""

    kind: str
    batch: int


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    Args:
        rows: the kind of rows from which the agent learns, see ``benchmarks.serving``.
        per_second: steps that arrive in a second.
        settings: of the run; they name the agent.
        peer: the update of sbx that is the same, if there is one.
        batch: the size of a batch; None: as ``settings`` say.
        least_arrived: the share of the steps that must arrive.
    """

    rows: str
    per_second: float
    settings: tuple[str, ...]
    peer: Peer | None = None
    batch: int | None = None
    least_arrived: float = 0.9

    def rehearse(self) -> Kind:
        """The same with small batches, on a machine that may be too busy for the steps that should arrive."""
        return replace(self, batch=8, least_arrived=0.0)


def agent_of(config: str, **params: Any) -> str:
    """The setting for the agent of a shipped configuration, with other values of some parameters."""
    agent = yaml.safe_load(Path("configs", config).read_text())["agent"]
    return f"agent={json.dumps({**agent, 'params': {**agent['params'], **params}})}"


def random_env(**params: Any) -> str:
    """The setting for an environment of random numbers."""
    return f"env={json.dumps({'target': 'benchmarks.updates_peer:RandomEnv', 'params': params})}"


def kinds() -> dict[str, Kind]:
    """The rows of the table, by name."""
    wide = {"units": [512, 256, 128], "critic_units": [768, 384, 192], "batch_size": 8192}
    btr = "replay.prioritized={alpha: 0.2, beta_0: 0.4}", "replay.view={params: {n: 3}}"
    dqn, sac = (f"agent={AGENTS[name] % 1}" for name in ("DQN", "SAC"))
    sac_8192 = sac.replace("batch_size: 256", "batch_size: 8192")
    rounded = "trainer.precision=rounded_products"  # As XLA, and so sbx, does unless it is told not to.
    pole, robot, humanoid = (random_env(**env) for env in (ENVS["DQN"], ENVS["SAC"], HUMANOID))
    return {
        "dqn": Kind("cartpole", 10_000, (pole, dqn), Peer("DQN", 64)),
        "sac": Kind("cartpole", 10_000, (robot, sac), Peer("SAC", 256)),
        "sac_rounded": Kind("cartpole", 10_000, (robot, sac, rounded), Peer("SAC", 256)),
        "sac_8192": Kind("cartpole", 10_000, (robot, sac_8192), Peer("SAC", 8192)),
        "nature_512": Kind("atari", 1_000, (f"agent={NATURE_512}",)),
        "nature_512_rounded": Kind("atari", 1_000, (f"agent={NATURE_512}", rounded)),
        "fastsac_8192": Kind("cartpole", 10_000, (humanoid, agent_of("fastsac_humanoid.yaml", **wide))),
        "btr": Kind("atari", 1_000, (agent_of("btr_pong.yaml"), *btr)),
    }


class SameBatch(ReplayBuffer):
    """A buffer that gives one batch again and again."""

    inserted = sampled = STORED

    def __init__(self, batch: dict[str, torch.Tensor]) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return STORED

    def batch(self, size: int) -> Items:
        raise NotImplementedError

    def tensors(self, size: int) -> dict[str, torch.Tensor]:  # noqa: ARG002 - the batch has this size
        return dict(self._batch)

    def update_priority(self, index: Any, td_error: Any) -> None:
        raise NotImplementedError


def capture_bare(agent: NetworkAgent, batch: dict[str, torch.Tensor]) -> tuple[Callable[[], None], int]:
    """The agent's updates as one CUDA graph, and how many opt steps it has: as many as come before they repeat."""
    buffer = SameBatch({name: column for name, column in batch.items() if name != "index"})
    updates = getattr(vars(agent)["config"], "policy_delay", 1)
    agent.train()
    agent.compute_eagerly()
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(2 * updates):
            agent.opt(buffer)
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    for _, generator in find_objects(torch.Generator, vars(agent).items()):
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        for _ in range(updates):
            agent.opt(buffer)
    return graph.replay, updates


def fill(server: LearnerServer) -> None:
    """Push ``STORED`` steps, and wait until all are stored."""
    with Client(server.ingest.address, local_trust(server.config.server)) as client:
        part = client.parts(256)[0]
        for _ in range(STORED // 256 + 1):
            client.push(part)


def measure(name: str, kind: Kind, device: str, seconds: float, python: str | None = None) -> dict[str, object]:
    """One row of the table; ``python`` is an interpreter with sbx, which takes turns with ours on the same device."""
    batch_size = () if kind.batch is None else (f"agent.params.batch_size={kind.batch}",)
    ours = (
        f"replay.capacity={STORED}",
        f"trainer.device={device}",
        "replay.resident=true",
        "trainer.eval_interval=1000000000",
    )
    with ExitStack() as stack:
        server = stack.enter_context(serve_learner(kind.rows, *ours, *kind.settings, *batch_size))
        peers: dict[str, Turn] = {}
        if python is not None and kind.peer is not None:
            of_sbx = partial(theirs, python, "sbx", kind.peer.kind, batch=kind.peer.batch)
            peers = {f"sbx, {burst} in a call": stack.enter_context(of_sbx(burst=burst)) for burst in (1, BURST)}
        fill(server)
        learner, publish = server.learner, server.learner.publish
        learner.start()

        def step() -> None:
            learner.step()
            server.publisher.settle()

        for _ in range(20):
            step()
        works: dict[str, tuple[Callable[[], object], int]] = {}
        if device != "cpu":
            batch = learner.buffer.tensors(server.config.agent.params["batch_size"])
            assert batch is not None
            other = server.config.agent.build(spec=server.run.parts.spec, seed=1, epsilon=0.0, device=device)
            assert isinstance(other, NetworkAgent)
            with computing_in(server.config.trainer.precision, device):
                works["bare"] = capture_bare(other, batch)
        works |= {"alone": (step, 1), "publishing": (step, 1)}
        turns: dict[str, list[float]] = {key: [] for key in [*works, "arriving", *peers]}
        for _ in range(TURNS):
            for key, (work, updates) in works.items():
                learner.publish = publish_to_nobody if key == "alone" else publish
                turns[key].append(updates * rate(work, seconds))
            with arriving(server, kind.per_second, kind.least_arrived):
                turns["arriving"].append(rate(step, seconds))
            for key, turn in peers.items():
                turns[key].append(turn(seconds)["updates"])
    found = {key: statistics.median(rates) for key, rates in turns.items()}
    to_bare = {f"{key} to bare": found[key] / found["bare"] for key in ("alone", "arriving") if "bare" in found}
    return {
        "kind": name,
        **{f"{key}/s": value for key, value in found.items()},
        **to_bare,
        "publishing to alone": found["publishing"] / found["alone"],
    }


def measure_gather(device: torch.device) -> dict[str, object]:
    """The milliseconds of gathering rows on the device alone, and of a whole draw of them."""
    schema = Schema((Column("many", "<f4", (ROW_FLOATS,)),))
    with tempfile.TemporaryDirectory() as directory:
        memory = ReplayMemory(Path(directory) / "replay", schema, 4 * GATHERED, create=True)
        writer, rng = ReplayWriter(memory), np.random.default_rng(0)
        for seq in range(1, 65):
            rows = {"many": rng.standard_normal((GATHERED // 16, ROW_FLOATS), np.float32)}
            writer.append(rows, GATHERED // 16, incarnation=1, seq=seq)
        copied = ResidentRows(memory, device)
        copied.catch_up()
        resident = ResidentReplay(UniformReplay(memory, SelfContained(schema), seed=0), device)
        resident.tensors(GATHERED)
        slots = [torch.from_numpy(rng.integers(0, len(memory), GATHERED)).to(device) for _ in range(8)]

        def gather() -> None:
            for each in slots:
                copied.columns["many"].take(each)

        whole = statistics.median(1e3 / rate(lambda: resident.tensors(GATHERED), 0.5) for _ in range(TURNS))
        alone = statistics.median(1e3 / rate(gather, 0.5) / len(slots) for _ in range(TURNS))
    return {"rows": GATHERED, "kB each": ROW_FLOATS * 4 / 1000, "gather ms": alone, "whole draw ms": whole}


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    parser.add_argument("--python", help="an interpreter with sbx, beside which ours takes turns")
    known = kinds()
    add_choice(parser, "kind", [*known, "gather"])
    arguments = parser.parse_args()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    chosen = [name for name in arguments.kind if name != "gather"]
    rows = []
    for name in chosen:
        rows.append(measure(name, known[name], arguments.device, arguments.seconds, arguments.python))
        report("gpu", f"{where}, torch {torch.__version__}", rows[-1:], TURNS)
    if "gather" in arguments.kind:
        report("gather", where, [measure_gather(torch.device(arguments.device))], TURNS)


if __name__ == "__main__":
    main()
