"""What a person tells an environment, and the interface of the devices by which a person does so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

Label = Literal["success", "failure", "discard"]
"""A person's judgement: the task is done; it has failed; or the episode is not worth keeping."""
METHODS: Final = ("begin", "read", "close")
"""The methods by which a device is known, since it need not be derived from a class."""


@dataclass(frozen=True)
class Command:
    """What a person wants at one step.

    Args:
        action: an element of the action space, executed in place of the agent's; None leaves the step to the agent.
        label: the person's judgement; None if the person says nothing.
    """

    action: Any = None
    label: Label | None = None


class Device(Protocol):
    """A keyboard, a gamepad, a space mouse, or a script in the place of a person.

    A configuration names its class as ``module:attr``. It is built by ``target(env=…, **params)``, where ``env`` is the
    environment within its wrappers, at the environment's first ``reset``.
    """

    def begin(self, obs: Any, info: Mapping[str, Any]) -> None:
        """An episode begins. Labels that were given before are forgotten.

        Args:
            obs: its first observation, as the environment gives it.
            info: that of ``reset``.
        """

    def read(self, obs: Any, info: Mapping[str, Any]) -> Command:
        """Look at the device; called once before each step, and never waits.

        Args:
            obs: the present observation, as the environment gives it.
            info: that of the last ``step`` or ``reset``.
        """

    def close(self) -> None:
        """Give back what the device holds: its window, its file."""
