"""Records in Weights & Biases: ``pip install 'crossborder[wandb]'``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

try:
    import wandb
    from wandb.errors import Error as WandbError
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[wandb]'") from error

from common.errors import PluginError
from common.interfaces import RunIdentity
from learner.records.beside import CLOSE_SECONDS

log = logging.getLogger(__name__)
FINISH_SECONDS = CLOSE_SECONDS - 5.0
"""The time that W&B has at the end of a run to send its last records; records that are not sent stay on the disk."""
X_AXIS = "opt_steps"


class WandbRecorder:
    """A ``Recorder`` that writes every key over ``opt_steps`` to a W&B run with the run's own id.

    The W&B run is named after the run's directory, and has the configuration without its secrets. When the run is
    resumed, the same W&B run goes on; steps that are taken again are recorded again. Training never waits for the
    network: W&B sends from a separate process, and keeps a copy in ``wandb/`` in the run's directory. Credentials come
    from ``wandb login`` or ``WANDB_API_KEY``, never from the configuration. The code, the command line and the output
    of the run are not sent.

    Args:
        run_dir: the run's directory.
        project: of W&B.
        entity: the user or team that owns the project; None takes the default of the account.
        group: a name that runs have in common, such as seeds of one configuration.
        tags: of the W&B run.
        mode: ``offline`` sends nothing: ``wandb sync RUN/wandb/offline-run-*`` sends it later. None takes
            ``WANDB_MODE``, or is online.
        identity: of the run; None begins a new W&B run each time.
        config: of the run, without secrets.

    Raises:
        PluginError: the W&B run cannot be created.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        project: str = "crossborder",
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        mode: Literal["online", "offline"] | None = None,
        identity: RunIdentity | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        settings = wandb.Settings(
            console="off",  # It would take over stdout and stderr of the learner.
            disable_git=True,
            save_code=False,
            silent=True,
            x_disable_meta=True,  # Meta data hold the command line, and --set may hold a password.
            finish_timeout=FINISH_SECONDS,
        )
        try:
            self._run = wandb.init(
                project=project,
                entity=entity,
                dir=run_dir,
                id=identity.run_id if identity else None,
                resume="allow" if identity else None,
                name=run_dir.resolve().name,
                group=group,
                tags=list(tags),
                config=dict(config or {}),
                mode=mode,
                settings=settings,
            )
        except WandbError as error:
            raise PluginError(
                f"W&B: {error}; say wandb login, or set mode: offline in the recorder's params"
            ) from error
        self._run.define_metric(X_AXIS, hidden=True)
        self._run.define_metric("*", step_metric=X_AXIS)
        log.info("W&B run %s: %s", self._run.id, self._run.url or f"offline, in {run_dir / 'wandb'}")

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        # Not as W&B's own step, which must grow: a late score has a lower opt step, and a resumed run repeats steps.
        self._run.log({X_AXIS: opt_steps, **record})

    def flush(self) -> None:
        """W&B's own process sends each record by itself."""

    def close(self) -> None:
        self._run.finish()
