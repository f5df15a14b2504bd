"""All callbacks of a run as one part; checkpoints keep its state."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from common.data import Snapshot
from common.interfaces import Callback, Evaluation
from common.plugins.part_config import PluginConfig

log = logging.getLogger(__name__)


class Callbacks:
    """Calls each callback in the order of the configuration, and remembers why one of them ended the run.

    Args:
        callbacks: by a name that stays the same when the run is resumed.
    """

    def __init__(self, callbacks: Mapping[str, Callback] | None = None) -> None:
        self._callbacks = callbacks or {}
        self.ended_because: str | None = None
        """The first reason that a callback gave to end the run."""

    @classmethod
    def build(cls, configs: Sequence[PluginConfig], optional: Mapping[str, Any]) -> Callbacks:
        """Build the callbacks that a configuration names.

        Args:
            configs: in their order.
            optional: arguments for callbacks that have parameters of these names.

        Raises:
            PluginError, ConfigError: one cannot be built.
        """
        callbacks: dict[str, Callback] = {}
        seen: Counter[str] = Counter()
        for config in configs:
            callbacks[f"{config.target} {seen[config.target]}"] = config.build(optional=optional)
            seen[config.target] += 1
        return cls(callbacks)

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> None:
        """Show a record to all callbacks."""
        for name, callback in self._callbacks.items():
            self._note(name, opt_steps, callback.on_record(opt_steps, dict(record)))

    def on_evaluation(self, opt_steps: int, evaluation: Evaluation) -> None:
        """Show an evaluation to all callbacks."""
        for name, callback in self._callbacks.items():
            self._note(name, opt_steps, callback.on_evaluation(opt_steps, evaluation))

    def _note(self, name: str, opt_steps: int, reason: str | None) -> None:
        if reason is not None and self.ended_because is None:
            target = name.partition(" ")[0]
            self.ended_because = reason
            log.info("opt step %d: %s ends the run: %s", opt_steps, target, reason)

    def state(self) -> Snapshot:
        """The state of each callback by its name."""
        return Snapshot({name: callback.state() for name, callback in self._callbacks.items()})

    def restore(self, state: Snapshot) -> None:
        """Give each callback its state back; a callback that is new in the run begins without a state."""
        for name, callback in self._callbacks.items():
            if name in state.values:
                callback.restore(state.values[name])
