"""The settings of a worker whose policy is an acting service: its environment, and where the service is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from common.config.actor_config import WorkerConfig
from common.config.nested import assign, read_yaml
from common.config.run_config import RunConfig
from common.errors import ConfigError
from common.settings import validate
from common.wire.address import split_address


class RemoteConfig(WorkerConfig):
    """A worker that steps environments here, while an acting service chooses the actions."""

    GONE, INSTEAD = RunConfig.GONE, RunConfig.INSTEAD

    policy: str = Field(
        description="The address at which the acting service listens, HOST:PORT; NAME=HOST:PORT, if the service has "
        "several policies."
    )

    @property
    def address(self) -> str:
        """HOST:PORT of the acting service."""
        return self.policy.rpartition("=")[2]

    @property
    def policy_name(self) -> str:
        """Of the policy that acts; empty for the first one of the service."""
        return self.policy.rpartition("=")[0]

    def check(self) -> None:
        """Check that the environment can be loaded, and that nothing is asked for that a service cannot do.

        Raises:
            ConfigError, PluginError: naming the place and what was expected.
        """
        if self.policy.startswith("="):
            raise ConfigError(f"policy: expected a name before the =, found none in '{self.policy}'")
        split_address(self.address)
        if self.env.info:
            raise ConfigError(
                f"env.info: expected none beside --policy, found {', '.join(self.env.info)}: an acting service has no "
                "place for values of info; --set env.info={} goes without them"
            )
        for index, wrapper in enumerate(self.env.wrappers):
            if wrapper.actors is not None:
                raise ConfigError(
                    f"env.wrappers.{index}.actors: expected none beside --policy, found {list(wrapper.actors)}: only "
                    "actors of a learner have ids; give each worker a file with its own wrappers"
                )
        self.env.check("env", frozenset())


def read_remote_config(path: Path | None, policy: str | None, overrides: Sequence[str] = ()) -> RemoteConfig:
    """Read the settings; those that only learners and other actors have are left out, so a run's own file will do.

    Raises:
        ConfigError, PluginError: the file cannot be read, or a value is wrong.
    """
    values: dict[str, Any] = read_yaml(path) if path is not None else {}
    if policy is not None:
        values["policy"] = policy
    for override in overrides:
        assign(values, override)
    own = values.get("overrides")
    if isinstance(own, dict) and any(isinstance(each, dict) and each.get("env") for each in own.values()):
        raise ConfigError(
            "overrides: expected none of env beside --policy, since only actors of a learner have ids; --set "
            "env.params.… gives each worker its own, and --set overrides={} goes without them"
        )
    others = RunConfig.model_fields.keys() - RemoteConfig.model_fields.keys()
    config = validate(RemoteConfig, {key: value for key, value in values.items() if key not in others})
    config.check()
    return config
