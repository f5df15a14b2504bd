"""Your own callback: it ends a run whose loss has exploded, and keeps count of the records since the last good one.

Run: sync-train --config examples/own_agent.yaml --set 'callbacks=[{target: "examples.own_callback:StopOnHighLoss"}]'
"""

from collections.abc import Mapping
from typing import Any

from crossborder import Callback


class StopOnHighLoss(Callback):
    """Ends the run after ``patience`` records in a row whose loss is above ``limit``."""

    def __init__(self, limit: float = 1e6, patience: int = 3) -> None:
        self._limit, self._patience, self._n_high = limit, patience, 0

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:
        if "loss" in record:  # A record with a late score has no loss.
            self._n_high = self._n_high + 1 if record["loss"] > self._limit else 0
        if self._n_high < self._patience:
            return None
        return f"the loss was above {self._limit:g} in {self._n_high} records"

    def state(self) -> Mapping[str, Any]:
        return {"n_high": self._n_high}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._n_high = state["n_high"]
