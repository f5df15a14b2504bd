"""docker-compose.yml on a real engine, in a project of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import yaml

from tests.conftest import ROOT, free_port, wait_for
from tests.dashboards.stack import Prometheus, answers

PROJECT = "crossborder-test"
NETWORK = f"{PROJECT}_default"
SERVICES = ("learner", "actor", "prometheus")
"""All but Grafana, whose work is done by asking Prometheus for what its panels ask for, and the acting service."""
TOKEN = "a" * 20
"""Of the acting service's client."""
PATIENCE = 120.0


def docker(*arguments: str, check: bool = True) -> str:
    """What ``docker`` answers; ``check``: it must end well."""
    return _answer(["docker", *arguments], check=check)


def exit_code(*command: str) -> int:
    """How a command ends."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE, check=False).returncode


def _answer(command: list[str], *, check: bool = True, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0 or not check, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


class Composition:
    """The services of docker-compose.yml with a configuration in the place of CartPole's.

    Args:
        folder: where the configuration and the overlay that mounts it are written.
        config: of the run.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._config = folder / "cartpole.yaml"
        self.configure(config)
        overlay = folder / "overlay.json"
        mount = f"{self._config}:/app/configs/cartpole.yaml:ro"
        overlay.write_text(json.dumps({"services": {"learner": {"volumes": [mount]}}}))
        program = ["docker", "compose"] if exit_code("docker", "compose", "version") == 0 else ["docker-compose"]
        files = [ROOT / "docker-compose.yml", ROOT / "docker" / "docker-compose.serving.yml", overlay]
        self._command = [*program, *(f"--file={file}" for file in files), f"--project-name={PROJECT}"]
        tokens = folder / "clients.tokens"
        tokens.write_text(f"game {TOKEN}\n")
        tokens.chmod(0o644)  # Another user, that of the container, reads it.
        port = free_port()
        self.serving = f"127.0.0.1:{free_port()}"
        """Where clients reach the acting service."""
        self._environment = {
            "PROMETHEUS_PORT": str(port),
            "SERVING": self.serving,
            "CLIENT_TOKENS": str(tokens),
        }
        self.prometheus = Prometheus(f"http://127.0.0.1:{port}")

    def __call__(self, *arguments: str, check: bool = True) -> str:
        """What Compose answers."""
        return _answer([*self._command, *arguments], check=check, environment=self._environment)

    def up(self, *arguments: str) -> None:
        self("up", "-d", "--no-build", *arguments, *SERVICES)

    def serve(self) -> grpc.Channel:
        """Start the acting service; a client's channel to it."""
        self("up", "-d", "--no-build", "--no-recreate", "serving")
        ca = docker("exec", self.containers("learner")[0], "cat", "certs/ca.pem")
        credentials = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(ca.encode()), grpc.access_token_call_credentials(TOKEN)
        )
        return grpc.secure_channel(self.serving, credentials, [("grpc.ssl_target_name_override", "serving")])

    def containers(self, service: str, *options: str) -> list[str]:
        """Ids of those that run; with ``--all`` of those that have ended too."""
        labels = {"project": PROJECT, "service": service}
        filters = [f"--filter=label=com.docker.compose.{key}={value}" for key, value in labels.items()]
        return docker("ps", "--quiet", *options, *filters).split()

    def learner(self) -> dict[str, Any]:
        """All that the engine knows of the learner's container, dead or alive."""
        (found,) = json.loads(docker("inspect", *self.containers("learner", "--all")))
        return dict(found)

    def is_healthy(self) -> bool:
        state = self.learner()["State"]
        return bool(state["Running"] and state["Health"]["Status"] == "healthy")

    def value(self, expr: str) -> float | None:
        """The one number that Prometheus answers; None while there is none."""
        values = self.prometheus.values(expr)
        assert len(values) <= 1, f"{expr}: expected one series, found {len(values)}"
        return values[0] if values else None

    def configure(self, config: dict[str, Any]) -> None:
        """Give the learner another configuration from its next start on."""
        self._config.write_text(yaml.safe_dump(config))  # In place: its container has this very file.


@contextmanager
def composed(folder: Path, config: dict[str, Any]) -> Iterator[Composition]:
    """Everything but Grafana, from when Prometheus answers; at the end nothing of it is left."""
    composition = Composition(folder, config)
    try:
        composition.up()
        wait_for(lambda: answers(f"{composition.prometheus.url}/-/ready"), "Prometheus is ready", PATIENCE)
        yield composition
    finally:
        (folder / "compose.log").write_text(composition("logs", "--no-color", check=False))
        composition("down", "--volumes", "--timeout=5")


def kill_process(pid: int) -> None:
    """``kill -9`` of a process on the engine's host: what a container's own restart policy must mend."""
    beside = ["run", "--rm", "--pid=host", "--network=none", "--user=0", "--entrypoint=python", "crossborder-actor"]
    docker(*beside, "-c", f"import os; os.kill({pid}, 9)")
