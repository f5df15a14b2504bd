"""LeRobot's actor and learner as processes, for comparison; needs lerobot and imports nothing of crossborder.

    python hil_serl_peer.py learner PORT           stores transitions; each line on stdin publishes a policy
    python hil_serl_peer.py actor PORT EPISODES    each line on stdin, a number, pushes as many episodes

Both call the functions that LeRobot's own commands call. They write lines of JSON to stdout, with times of
``time.monotonic``, which is one clock for all processes of a host.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from lerobot.rl.actor import (
    establish_learner_connection,
    learner_service_client,
    push_transitions_to_transport_queue,
    receive_policy,
    send_transitions,
    update_policy_parameters,
)
from lerobot.rl.buffer import ReplayBuffer
from lerobot.rl.learner import process_transitions, push_actor_policy_to_queue, start_learner

WIDTH = 1300
CAPACITY = 4_000
SAID = 10
"""After every ten transitions, the learner says how many it has stored; episodes have a multiple of ten steps."""


def settings(port: int) -> Any:
    """The part of LeRobot's configuration that its transport reads; a learner may publish as often as it likes."""
    transport = SimpleNamespace(
        learner_host="127.0.0.1", learner_port=port, policy_parameters_push_frequency=0.001, queue_get_timeout=0.02
    )
    concurrency = SimpleNamespace(actor="threads", learner="threads")
    return SimpleNamespace(
        policy=SimpleNamespace(actor_learner_config=transport, concurrency=concurrency), output_dir="."
    )


def make_policy() -> Any:
    """A policy of 1.7 million parameters."""
    layers = torch.nn.Sequential(torch.nn.Linear(4, WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 2))
    return SimpleNamespace(actor=layers)


def say(**values: object) -> None:
    sys.stdout.write(json.dumps({**values, "time": time.monotonic(), "cpu": time.process_time()}) + "\n")
    sys.stdout.flush()


class Sized(Queue):  # type: ignore[type-arg] # of bytes
    """A queue that adds up the bytes that pass."""

    total = 0

    def put(self, item: bytes, block: bool = True, timeout: float | None = None) -> None:
        self.total += len(item)
        super().put(item, block, timeout)


def learn(port: int) -> None:
    """Store the transitions that arrive, and publish a policy for each line on stdin."""
    transitions, parameters, stop = Sized(), Queue(), threading.Event()  # type: ignore[var-annotated]
    policy, buffer = make_policy(), ReplayBuffer(CAPACITY, "cpu", state_keys=None, optimize_memory=False)
    arguments: tuple[Any, ...] = (parameters, transitions, Queue(), stop, settings(port))
    threading.Thread(target=start_learner, args=arguments, daemon=True).start()

    def publish() -> None:
        for _ in sys.stdin:
            began = time.monotonic()
            push_actor_policy_to_queue(parameters, policy)
            say(published=began)
        stop.set()

    threading.Thread(target=publish, daemon=True).start()
    say(ready=True)
    stored, add = 0, buffer.add

    def count(**transition: Any) -> None:
        nonlocal stored
        add(**transition)
        stored += 1
        if stored % SAID == 0:
            say(stored=stored, bytes=transitions.total)

    buffer.add = count
    while not stop.wait(0.0005):
        process_transitions(transitions, buffer, None, "cpu", None, stop)


def read_episodes(directory: Path) -> list[list[dict[str, Any]]]:
    """The transitions of each episode as LeRobot's actor makes them: pictures are floats between 0 and 1."""
    episodes = []
    for path in sorted(directory.glob("*.npz")):
        with np.load(path) as file:
            columns = {name: file[name] for name in file.files}
        states = {
            name: torch.from_numpy(column.astype(np.float32) / (255 if column.dtype == np.uint8 else 1))
            for name, column in columns.items()
            if name.startswith("obs/")
        }
        length = len(columns["reward"])
        episodes.append(
            [
                {
                    "state": {name: column[t : t + 1] for name, column in states.items()},
                    "action": torch.from_numpy(columns["action"][t : t + 1].astype(np.float32)),
                    "reward": float(columns["reward"][t]),
                    "next_state": {name: column[t + 1 : t + 2] for name, column in states.items()},
                    "done": t == length - 1,
                    "truncated": False,
                    "complementary_info": {"is_intervention": 0.0},
                }
                for t in range(length)
            ]
        )
    return episodes


def act(port: int, directory: Path) -> None:
    """Push episodes as fast as they can be serialised, and load each policy that arrives."""
    config, stop, transitions, parameters = settings(port), threading.Event(), Queue(), Queue()  # type: ignore[var-annotated]
    policy, episodes = make_policy(), read_episodes(directory)
    client, _ = learner_service_client(host="127.0.0.1", port=port)
    establish_learner_connection(client, stop)
    for target, queue in ((send_transitions, transitions), (receive_policy, parameters)):
        threading.Thread(target=target, args=(config, queue, stop), daemon=True).start()
    asked: Queue[int] = Queue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(int(line))
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    say(ready=True)
    while not stop.wait(0.0002):
        if not parameters.empty():
            update_policy_parameters(policy, parameters, "cpu")
            say(loaded=True)
        if not asked.empty():
            began, pushed = time.monotonic(), 0
            for i in range(asked.get()):
                episode = episodes[i % len(episodes)]
                push_transitions_to_transport_queue(episode, transitions)
                pushed += len(episode)
            say(pushed=pushed, began=began)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "learner":
        learn(int(sys.argv[2]))
    else:
        act(int(sys.argv[2]), Path(sys.argv[3]))
