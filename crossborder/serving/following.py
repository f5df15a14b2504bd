"""Takes up the policies that a run saves while an acting service acts with an earlier one, such as a new ``best/``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

import torch

from common.config.actor_config import ActorConfig
from common.errors import CheckpointError, CrossborderError
from common.interfaces import Agent
from common.process.clocks import Backoff
from common.settings import validate
from common.wire.watched import Stamp, stamp_of
from crossborder.serving.figures import PolicyFigures
from learner.storage.checkpoint import load_params

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 1.0
MOST_SECONDS: Final = 60.0
"""A policy that could not be taken up is read again after waits that grow to so many seconds."""
_FILES: Final = ("meta.json", "model.safetensors")
Params = Mapping[str, torch.Tensor]
Stamps = list[Stamp | None]


def stamps_of(place: Path) -> Stamps:
    """What differs as soon as another policy is in a place; taken before the policy is read, so none is missed."""
    return [stamp_of(place / name) for name in _FILES]


class Follower:
    """Watches the directory of a policy, and loads each further policy that appears there into the agent that acts.

    The agent is the same before and after, so the memories of lanes go on. It changes between two batches: both happen
    in the event loop's thread. A policy that cannot be taken up leaves the one before it acting.
    """

    def __init__(
        self, place: Path, stamps: Stamps, config: ActorConfig, agent: Agent, on_taken: Callable[[int], None]
    ) -> None:
        self._place, self._stamps, self._config = place, stamps, config
        self._agent, self._on_taken = agent, on_taken

    async def run(self, figures: PolicyFigures) -> NoReturn:
        """Follow until cancelled; ``figures`` counts. What could not be read is read again: a disk may have failed."""
        loop, backoff = asyncio.get_running_loop(), Backoff(first=LOOK_SECONDS, highest=MOST_SECONDS)
        refused, again = Stamps(), 0.0
        while True:
            await asyncio.sleep(LOOK_SECONDS)  # Files of other hosts tell nobody that they have changed.
            stamps = await asyncio.to_thread(stamps_of, self._place)
            if stamps == self._stamps or None in stamps:  # None: another policy is being put there.
                continue
            if stamps == refused and loop.time() < again:
                continue
            try:
                params, opt_steps = await asyncio.to_thread(self._read)
                self._load(params)
            except CrossborderError as error:
                if stamps != refused:
                    backoff.reset()
                    refused = stamps
                    figures.not_taken_up += 1
                    log.error("the policy before it goes on to act: %s", error)
                again = loop.time() + backoff.next_delay()
            else:
                self._stamps = stamps
                self._on_taken(opt_steps)
                figures.taken_up += 1
                log.info("%s: the policy of opt step %d acts from now on", self._place, opt_steps)

    def _read(self) -> tuple[Params, int]:
        """The parameters of the policy that is there now, and its opt steps.

        Raises:
            CrossborderError: it is not readable or of another kind, or has values with which nobody can act.
        """
        params, meta = load_params(self._place)
        config = validate(ActorConfig, meta["config"] | {"step_processor": None})
        differ = [name for name in ("agent", "env") if getattr(config, name) != getattr(self._config, name)]
        if differ:
            raise CheckpointError(
                f"{self._place}: expected the {' and '.join(differ)} of the policy that acts, found other settings: "
                "start the service anew to act with this policy"
            )
        bad = [name for name, tensor in params.items() if not torch.isfinite(tensor).all()]
        if bad:
            raise CheckpointError(f"{self._place}: expected finite parameters, found others in {bad[0]}")
        opt_steps: int = meta["opt_steps"]
        return params, opt_steps

    def _load(self, params: Params) -> None:
        """Load parameters into the agent."""
        before = {name: tensor.detach().clone() for name, tensor in self._agent.save_params().items()}
        try:
            self._agent.load_params(params)
        except Exception as error:  # A user's agent may raise anything.
            self._agent.load_params(before)
            raise CheckpointError(f"{self._place}: the agent does not take it: {error}") from error
