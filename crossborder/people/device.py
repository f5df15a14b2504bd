"""A person's commands to an environment, and the interface of the devices that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Label = Literal["success", "failure", "discard"]
"""A person's judgement: the task is done; it has failed; or the episode is not worth keeping."""


@dataclass(frozen=True)
class Command:
    """A person's command for one step.

    Args:
        action: an element of the action space, executed instead of the agent's; None leaves the step to the agent.
        label: the person's judgement; None if the person says nothing.
    """

    action: Any = None
    label: Label | None = None


class Device(Protocol):
    """A keyboard, a gamepad, a space mouse, or a script instead of a person: any object with these methods.

    A configuration names its class as ``module:attr``. The wrapper ``Teleoperate`` builds it by
    ``target(env=…, **params)`` at its first ``reset``; ``env`` is the environment inside the wrapper.
    """

    def begin(self, obs: Any, info: Mapping[str, Any]) -> None:
        """Begin an episode: forget labels that were given before.

        Args:
            obs: its first observation, as the environment gives it.
            info: returned by ``reset``.
        """

    def read(self, obs: Any, info: Mapping[str, Any]) -> Command:
        """Look at the device; called once before each step, and never waits.

        Args:
            obs: the present observation, as the environment gives it.
            info: returned by the last ``step`` or ``reset``.
        """

    def close(self) -> None:
        """Close the window or the file that the device uses."""
