"""The hosts of a run, which one YAML file names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from common.config.nested import read_yaml
from common.errors import ConfigError
from common.settings import Settings, validate
from common.wire.address import join_address, split_address
from common.wire.trust import Trust

HostName = Annotated[str, Field(pattern=r"^[^-\s]\S*$")]
"""A host's name for ssh. ssh would read a name that begins with a dash as an option."""
Program = Annotated[str, Field(pattern=r"^(/.*|[^/~-][^/]*)$")]
"""A program on another host: its name there, or its whole path. ssh does not expand ``~`` in it."""


class HostConfig(Settings):
    """The settings that the learner's host and the hosts of actors have in common."""

    host: HostName = Field(description="The host as ssh knows it: a name, USER@NAME, or a Host of ~/.ssh/config.")
    python: Program | None = Field(None, description="The Python of this host; null: python of the file.")
    directory: str | None = Field(
        None, description="The directory in which the command starts on this host; null: directory of the file."
    )
    arguments: tuple[str, ...] = Field((), description="Further arguments of the command, such as --set and seed=3.")


class LearnerHostConfig(HostConfig):
    """The learner's host. Paths are paths on that host, from ``directory``."""

    config: str = Field(description="The YAML file of the run.")
    run_dir: str = Field(description="The run's directory. If a run is there, the learner goes on with it.")
    listen: str = Field("0.0.0.0:50051", description="HOST:PORT on which the learner listens.")
    address: str | None = Field(
        None, description="HOST:PORT at which the other hosts reach the learner; null: host, and the port of listen."
    )
    health_arguments: tuple[str, ...] | None = Field(
        None,
        description="The arguments with which crossborder-health trusts the learner on its own host; null: ca and "
        "insecure of trust.",
    )

    @property
    def reached_at(self) -> str:
        """HOST:PORT at which the other hosts reach the learner."""
        return self.address or join_address(self.host.rpartition("@")[2], split_address(self.listen)[1])

    @model_validator(mode="after")
    def _has_a_port(self) -> LearnerHostConfig:
        for name, address in (("listen", self.listen), ("address", self.reached_at)):
            try:
                _, port = split_address(address)
            except ConfigError as error:
                raise ValueError(f"{name}: {error}") from error
            if not port:
                raise ValueError(f"{name}: expected a port to which actors can connect, found port 0")
        return self


class ActorHostConfig(HostConfig):
    """A host of actors."""

    num_actors: PositiveInt = Field(1, description="The number of actors on this host.")


class SshConfig(Settings):
    """How the system's ssh is called. It never asks a question: keys and known hosts are ssh's own business."""

    options: tuple[str, ...] = Field(
        (), description="Arguments of ssh before the host, such as -i and a file, or -p and a port."
    )
    connect_seconds: PositiveInt = Field(10, description="The seconds for which ssh tries to reach a host.")


class LaunchConfig(Settings):
    """A learner's host and the hosts of its actors."""

    learner: LearnerHostConfig = Field(description="The learner's host.")
    actors: tuple[ActorHostConfig, ...] = Field(min_length=1, description="The hosts of actors.")
    trust: Trust = Field(
        Trust(),
        description="How actors trust the learner and prove who they are: ca, certificate, key, token_file (paths on "
        "the hosts of actors), insecure, allow; as actor-worker's options.",
    )
    python: Program = Field(
        "python3",
        description="The Python in which crossborder is installed, on every host: a name on the PATH, or an absolute "
        "path.",
    )
    directory: str = Field(
        "~",
        description="The directory in which commands start, on every host; a relative path begins at the home "
        "directory.",
    )
    ssh: SshConfig = Field(SshConfig(), description="The options with which ssh is called.")
    start_seconds: PositiveFloat = Field(120.0, description="The seconds that the learner may take until it answers.")

    @model_validator(mode="after")
    def _fits_together(self) -> LaunchConfig:
        hosts = [each.host for each in self.actors]
        twice = sorted({host for host in hosts if hosts.count(host) > 1})
        if twice:
            raise ValueError(f"actors: expected each host once, with its num_actors, found {', '.join(twice)} again")
        try:
            self.trust.uses_tls(split_address(self.learner.reached_at)[0])
        except ConfigError as error:
            raise ValueError(f"trust: {error}") from error
        return self


def load_hosts(path: Path) -> LaunchConfig:
    """Read a hosts file.

    Raises:
        ConfigError: the file cannot be read, or values are wrong.
    """
    return validate(LaunchConfig, read_yaml(path))
