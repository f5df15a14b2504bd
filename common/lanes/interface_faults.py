"""Recognises environments whose ``reset`` or ``step`` breaks the interface of gymnasium or PettingZoo, and says how."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import gymnasium
from gymnasium.vector import VectorEnv

from common.errors import PluginError, describe_error
from common.leaves import describe
from common.spaces import UNREADABLE, leaves_of

Call = Literal["reset", "step"]
_RESULTS: Final[dict[Call, str]] = {
    "reset": "(observation, info)",
    "step": "(observation, reward, terminated, truncated, info)",
}
"""What gymnasium's calls return."""
_SHIMMY: Final = "shimmy's GymV21CompatibilityV0 wraps environments of the package gym"
_FORMER: Final[dict[Call, str]] = {
    "reset": f"gym before 0.26 returned the observation alone; {_SHIMMY}",
    "step": f"gym before 0.26 returned (observation, reward, done, info), with done for both ends; {_SHIMMY}",
}
_PYTHON_ACTIONS: Final = (
    "if the environment wants Python's own numbers and lists, set env.wrappers: [{target: PythonActions}], "
    "which wraps a plain environment"
)


class InterfaceError(PluginError):
    """An environment breaks its interface, so another environment like this one would not help."""


def require_pair(name: str, found: Any) -> None:
    """Look at the result of ``reset``.

    Raises:
        PluginError: it is no observation with an info.
    """
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
        raise PluginError(f"{name}: reset: expected {_RESULTS['reset']}, found {describe(found)}; {_FORMER['reset']}")


def require_info(name: str, found: Any) -> None:
    """Look at the info of ``step``.

    Raises:
        PluginError: it is no mapping.
    """
    if not isinstance(found, Mapping):
        raise PluginError(f"{name}: step: expected an info that is a dict, found {found!r:.80}")


GameResults = tuple[Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, Any]]
"""What a step of PettingZoo returns, by agent: observations, rewards, terminations, truncations and infos."""


def read_begin(found: Any) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
    """The observations and infos by agent, from the result of PettingZoo's ``reset``.

    Raises:
        InterfaceError: it is another result.
    """
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Mapping)):
        raise InterfaceError(f"reset: expected the observations and infos of all agents, found {found!r:.80}")
    if not isinstance(found[1], Mapping):
        raise odd_infos(found[1])
    return found


def read_step(found: Any) -> GameResults:
    """The results by agent of PettingZoo's ``step``; ``read_outcome`` reads those of an agent.

    Raises:
        InterfaceError: these are no five mappings.
    """
    is_row = isinstance(found, tuple | list)
    if not (is_row and len(found) == 5 and all(isinstance(each, Mapping) for each in found)):
        shown = f"({', '.join(type(each).__name__ for each in found)})" if is_row else describe(found)
        raise InterfaceError(
            "step: expected five dicts, the observations, rewards, terminations, truncations and infos of all agents, "
            f"found {shown}; PettingZoo before 1.22 returned four results, with dones for both ends"
        )
    obs, rewards, ends, cuts, infos = found
    return obs, rewards, ends, cuts, infos


def read_outcome(agent: Any, results: GameResults) -> tuple[float, Any, Any]:
    """The reward of an agent that has acted, and whether it was terminated and truncated.

    Raises:
        InterfaceError: the reward is no number, or a flag is no bool.
    """
    _, rewards, ends, cuts, _ = results
    try:
        reward, is_end, is_cut = float(rewards[agent] + 0.0), ends[agent], cuts[agent]  # No text: float would read it.
        if math.isnan(is_end) or math.isnan(is_cut):  # It raises TypeError of None and of text.
            raise ValueError("NaN is true, and would end an episode")
    except UNREADABLE as error:
        raise InterfaceError(
            f"step: expected the reward of agent '{agent}', a number, and whether it was terminated or truncated, "
            f"found {results[1:4]!r:.160}"
        ) from error
    return reward, is_end, is_cut


def odd_infos(found: Any) -> InterfaceError:
    """What to say of infos that are no dicts."""
    return InterfaceError(f"expected the infos of all agents, a dict for each, found {found!r:.80}")


def require_interface(
    name: str, call: Call, error: BaseException, action_space: Any, holder: type = gymnasium.Wrapper
) -> None:
    """Look at an exception of a call: does it come from a wrong interface?

    A wrapper or a vector environment meets a wrong result before crossborder does, so only its exception tells of it.
    An exception that may come from the type of an action gets a note about it.

    Args:
        name: of the environment in messages.
        call: the method that was called.
        error: what it raised, or what the unpacking of its result raised.
        action_space: of one lane.
        holder: the class that unpacks results, beside gymnasium's wrappers and vector environments.

    Raises:
        PluginError: it does, so another environment like this one would not help.
    """
    if isinstance(error, InterfaceError):
        raise InterfaceError(f"{name}: {error}") from error
    text = describe_error(error)
    # A vector environment takes an observation of two numbers for an observation and an info, and asks for its items.
    is_unpacking = isinstance(error, TypeError | ValueError) and "unpack" in text
    is_number_as_info = isinstance(error, AttributeError) and text.endswith("has no attribute 'items'")
    if (is_unpacking or is_number_as_info) and _is_raised_in(error, holder):
        fault = f"expected {_RESULTS[call]}, found another result: {text}{_at(error)}; {_FORMER[call]}"
    elif isinstance(error, TypeError) and re.search("unexpected keyword argument '(seed|options)'", text):
        fault = (
            f"expected reset(self, *, seed=None, options=None), found {text}{_at(error)}; take both, and begin with "
            f"super().reset(seed=seed); {_SHIMMY}"
        )
    elif call == "step" and isinstance(error, TypeError) and (kind := _refused_kind(action_space, text)):
        fault = f"expected a step that takes numpy's {kind}, found {text}{_at(error)}; {_PYTHON_ACTIONS}"
    else:
        if call == "step" and isinstance(error, TypeError | AssertionError):
            error.add_note(f"{name}: actions have numpy's types; {_PYTHON_ACTIONS}")
        return
    raise PluginError(f"{name}: {call}: {fault}") from error


def _is_raised_in(error: BaseException, holder: type) -> bool:
    """Whether a method of a class that holds environments raised this itself, not an environment below it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and isinstance(frames[-1].f_locals.get("self"), (holder, gymnasium.Wrapper, VectorEnv))


def _at(error: BaseException) -> str:
    """Where an exception was raised, for messages."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _refused_kind(space: Any, text: str) -> str | None:
    """The type of numpy that a TypeError refuses, if the environment gets its action in this type; None if not.

    Of arrays it recognises JSON's refusal only: errors in an environment's own computations name arrays too.
    """
    for leaf in leaves_of(space).values():
        kind = "ndarray" if leaf.shape else str(leaf.dtype)
        if re.search(rf"\b{kind}\b{'.*JSON' if leaf.shape else ''}", text):
            return kind
    return None
