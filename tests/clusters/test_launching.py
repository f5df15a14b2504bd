"""``crossborder-launch`` over the system's ssh, to hosts that are network namespaces with an sshd each."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from crossborder.certificates.crossborder_certs import main as certs
from tests.clusters.namespace import why_impossible
from tests.clusters.ssh_hosts import PROGRAMS, SshHosts
from tests.conftest import ROOT, Command, counting_values, merged, signal_each, wait_for

WHY_NOT = why_impossible(*PROGRAMS)
pytestmark = [pytest.mark.clusters, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]
GONE = "10.78.0.99"
"""An address that no host has."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    with SshHosts(tmp_path, 3) as made:
        yield made


def write_hosts(hosts: SshHosts, folder: Path, actors: dict[str, int], max_opts: int) -> str:
    """The path of a hosts file: the learner on the first host, with TLS and a token, and actors on others."""
    learner = hosts.addresses[0]
    made = folder / "certs"
    assert certs(["--out", str(made), "--host", learner]) == 0
    changes = {"trainer": {"max_opts": max_opts}, "push": {"flush_seconds": 0.1}, "server": {"grace_seconds": 5.0}}
    (folder / "run.yaml").write_text(yaml.safe_dump(merged(counting_values(folder / "run"), changes)))
    files = {"--certificate": "server.pem", "--key": "server.key", "--token-file": "actor.token"}
    values: dict[str, Any] = {
        "learner": {
            "host": learner,
            "config": str(folder / "run.yaml"),
            "run_dir": str(folder / "run"),
            "listen": f"{learner}:50051",
            "arguments": [word for option, name in files.items() for word in (option, str(made / name))],
        },
        "actors": [{"host": host, "num_actors": number} for host, number in actors.items()],
        "trust": {"ca": str(made / "ca.pem"), "token_file": str(made / "actor.token"), "allow": ["tests.parts"]},
        "python": str(ROOT / ".venv/bin/python"),
        "directory": str(ROOT),
        "ssh": {"options": hosts.ssh_options, "connect_seconds": 2},
    }
    path = folder / "hosts.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def test_a_run_over_three_hosts_ends_with_its_learner(
    hosts: SshHosts, start: Callable[..., Command], tmp_path: Path
) -> None:
    _, one, two = hosts.addresses
    file = write_hosts(hosts, tmp_path, {one: 2, two: 1}, max_opts=300)
    launch = start("crossborder-launch", file, prefix=hosts.prefix)
    assert launch.wait() == 0
    assert "300 opt steps" in launch.output()
    assert not any(hosts.processes(address, "python") for address in hosts.addresses)


def test_faults_of_hosts_are_named_and_nothing_is_left_when_the_launcher_is_killed(
    hosts: SshHosts, start: Callable[..., Command], tmp_path: Path
) -> None:
    _, one, two = hosts.addresses
    file = write_hosts(hosts, tmp_path, {one: 1, two: 2, GONE: 1}, max_opts=10**8)
    launch = start("crossborder-launch", file, prefix=hosts.prefix)
    wait_for(lambda: launch.output().count(": joined run ") == 3, "three actors")
    wait_for(lambda: f"{GONE}: actor-worker: ssh: connect to host" in launch.output(), "the host that is not there")
    signal_each(hosts.processes(two, "sshd"), signal.SIGKILL)
    wait_for(lambda: f"{two}: actor-worker: Connection to {two} closed" in launch.output(), "the broken connection")
    wait_for(lambda: not hosts.processes(two, "python"), "the end of the actors without a connection")
    wait_for(lambda: launch.output().count(" left\n") == 2, "goodbye of actors whose rows the learner has")
    assert hosts.processes(one, "actor-worker")
    launch.signal(signal.SIGKILL)
    wait_for(lambda: not any(hosts.processes(each, "python") for each in hosts.addresses), "the end of all processes")
    assert (tmp_path / "run/final").is_dir()
    resumed = start("crossborder-launch", file, prefix=hosts.prefix)
    wait_for(lambda: ": joined run " in resumed.output(), "the same run again")
    wait_for(lambda: f"{two}: actor-worker: ssh: connect to host" in resumed.output(), "the host without an sshd")
    resumed.signal(signal.SIGINT)
    assert resumed.wait() == 18, "hosts could not be reached"
    assert not any(hosts.processes(address, "python") for address in hosts.addresses)
