"""The metrics of the training process."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

import torch
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from learner.loop.learner import Learner
from learner.loop.run import Run
from learner.models.publisher import ModelPublisher
from learner.records.exposition import counter, counters, gauge, gauges, info, rank_info
from learner.replay.mixed_replay import MixedReplay
from learner.replay.ratio import LiveRatio
from learner.shared.control import ControlBlock
from learner.shared.mirror_block import MirrorBlock


class TrainerCollector(Collector):
    """Collects the figures of steps, scores, records, replay, models, checkpoints and children for Prometheus.

    Args:
        run: opened.
        learner: of the run.
        publisher: of the run's models.
        control: shared with ingest.
        ratio: the replay ratio in force.
        restarts: counts how often each kind of child was started again.
        mirror: says how far the run is mirrored; None if it is not.
    """

    def __init__(
        self,
        run: Run,
        learner: Learner,
        publisher: ModelPublisher,
        control: ControlBlock,
        *,
        ratio: LiveRatio,
        restarts: Callable[[], Mapping[str, int]],
        mirror: MirrorBlock | None = None,
    ) -> None:
        self._run, self._learner, self._publisher, self._control = run, learner, publisher, control
        self._ratio, self._restarts, self._mirror = ratio, restarts, mirror
        # A checkpoint is older than the counts at the end of the life before. Prometheus takes a counter that falls for
        # one that has begun again at 0, and would add all former steps once more; so these begin at 0 in each life.
        self._opt_steps_before, self._draws_before = learner.opt_steps, count_draws(run)
        self._run_labels = {
            "run": run.config.name,
            "run_id": run.dir.identity.run_id,
            "config_hash": run.config_sha256[:12],
        }

    def collect(self) -> Iterable[Metric]:
        yield from self._host()
        yield from self._steps()
        yield from self._scores()
        yield from self._replay()
        yield from self._models()
        yield from self._checkpoints()
        if self._mirror is not None:
            yield from self._mirrored(self._mirror)

    def _host(self) -> Iterable[Metric]:
        build = {"version": version("crossborder"), "python": platform.python_version(), "torch": torch.__version__}
        yield info("crossborder_build_info", "The versions of the software.", build)
        yield info("crossborder_run_info", "The identity of the run.", self._run_labels)
        place = self._run.place
        yield rank_info(self._run_labels["run_id"], place.rank, place.n_ranks)
        yield gauge(
            "crossborder_disk_free_bytes",
            "Free bytes on the file system of the run directory.",
            _find_free_bytes(self._run.dir.path),
        )
        yield counters(
            "crossborder_child_restarts_total",
            "Child processes that died and were started again.",
            "child",
            self._restarts(),
        )

    def _steps(self) -> Iterable[Metric]:
        learner = self._learner
        idle = learner.opt.seconds_since()
        taken = learner.opt_steps - self._opt_steps_before
        yield counter("crossborder_opt_steps_total", "Successful opt steps since this process began.", taken)
        yield counter("crossborder_opt_seconds_total", "Seconds spent in opt steps.", learner.opt.seconds)
        yield gauge(
            "crossborder_last_opt_timestamp_seconds",
            "Unix time of the last opt step's end.",
            None if idle is None else time.time() - idle,
        )
        # Where the trainer's time goes if opt steps are few: no rows to draw, or no processor.
        waited = self._control.trainer_wait_seconds
        yield counter(
            "crossborder_trainer_wait_seconds_total", "Seconds that the trainer has waited for steps.", waited
        )
        yield counter(
            "crossborder_trainer_held_up_seconds_total",
            "Seconds for which the trainer was ready to run, but other work had the processor.",
            _read_run_delay(),
        )
        yield gauges("crossborder_record", "The newest value of each recorded key.", "key", learner.records.newest)
        yield counter(
            "crossborder_divergences_total",
            "Ends of training because a loss or score was NaN or infinite.",
            self._control.divergences,
        )
        finished = learner.outcome is not None and learner.outcome.is_finish
        yield gauge("crossborder_run_finished", "1 if the run has reached its end, else 0.", float(finished))

    def _scores(self) -> Iterable[Metric]:
        learner, evaluations = self._learner, self._learner.evaluations
        yield gauge("crossborder_best_score", "Highest evaluation score.", learner.best_score)
        yield counter("crossborder_evaluations_total", "Evaluations that have ended with a score.", evaluations.count)
        yield counter("crossborder_evaluation_seconds_total", "Seconds spent on evaluations.", evaluations.seconds)
        yield gauge(
            "crossborder_last_evaluation_timestamp_seconds",
            "Unix time of the last evaluation's end.",
            evaluations.last_at,
        )
        skipped = learner.scoring.skipped
        yield counter(
            "crossborder_evaluations_skipped_total", "Evaluations skipped while another evaluation ran.", skipped
        )

    def _replay(self) -> Iterable[Metric]:
        memory, ratio = self._run.memory, self._ratio.samples_per_insert
        age = time.monotonic() - self._control.oldest_item_at if len(memory) else 0.0
        draws = {source: n - self._draws_before[source] for source, n in count_draws(self._run).items()}
        yield counter(
            "crossborder_samples_drawn_total",
            "Steps drawn from the replay since this process began.",
            sum(draws.values()),
        )
        yield counters(
            "crossborder_source_samples_drawn_total",
            "Steps drawn from each source since this process began.",
            "source",
            draws,
        )
        yield gauge("crossborder_replay_size_steps", "Steps that can be drawn.", memory.drawable)
        yield gauge("crossborder_replay_size_rows", "Rows that the replay holds.", len(memory))
        yield gauge("crossborder_replay_capacity_rows", "Rows that the replay can hold.", memory.capacity)
        excluded = memory.count_excluded(memory.first(), memory.committed)
        yield gauge(
            "crossborder_replay_excluded_rows", "Rows that are never drawn, since they hold refused values.", excluded
        )
        yield gauge("crossborder_replay_bytes", "Bytes of memory for rows and their links.", memory.n_bytes)
        yield gauge("crossborder_replay_oldest_age_seconds", "Age of the oldest row in the replay, in seconds.", age)
        yield gauge("crossborder_replay_ratio_target", "Steps to draw per step inserted.", ratio)

    def _models(self) -> Iterable[Metric]:
        publisher, slots = self._publisher, self._publisher.slots
        yield counter("crossborder_model_publishes_total", "Models published.", slots.header.published)
        yield counter(
            "crossborder_model_publish_seconds_total", "Seconds spent on publishing models.", publisher.seconds
        )
        yield gauge("crossborder_model_bytes", "Bytes of one model on the wire.", publisher.blob_bytes)
        yield gauge("crossborder_model_version_opt_steps", "Opt steps of the newest model.", slots.newest().opt_steps)

    def _checkpoints(self) -> Iterable[Metric]:
        saves = self._run.checkpoints.saves
        yield counters("crossborder_checkpoint_saves_total", "Checkpoints saved.", "kind", saves.kinds)
        yield counter(
            "crossborder_checkpoint_failures_total",
            "Checkpoints and candidates that could not be saved.",
            saves.failures,
        )
        yield counter("crossborder_checkpoint_seconds_total", "Seconds spent on saving checkpoints.", saves.seconds)
        name = "crossborder_last_checkpoint_timestamp_seconds"
        yield gauges(name, "Unix time at which the last checkpoint was saved.", "kind", dict(saves.last_at))

    def _mirrored(self, mirror: MirrorBlock) -> Iterable[Metric]:
        memory = self._run.memory
        rows = min(memory.committed - mirror.mirrored, len(memory))
        lag = time.monotonic() - mirror.mirrored_at if rows else 0.0
        yield gauge("crossborder_mirror_lag_rows", "Rows in the replay that are not in the mirror yet.", rows)
        yield gauge(
            "crossborder_mirror_lag_seconds", "Age of the newest state that has all rows; 0: none is missing.", lag
        )
        yield counter("crossborder_mirror_states_total", "States of the run that were mirrored.", mirror.states)
        yield counter("crossborder_mirror_bytes_total", "Bytes sent to the mirror, compressed.", mirror.sent_bytes)
        yield counter("crossborder_mirror_failures_total", "States that could not be mirrored.", mirror.failures)


def count_draws(run: Run) -> dict[str, int]:
    """The steps ever drawn from the actors' rows, and from each of the other sources of the replay, by source."""
    buffer = run.buffer
    numbers = buffer.sampled_by_source if isinstance(buffer, MixedReplay) else [buffer.sampled]
    return dict(zip(("actors", *run.config.replay.sources), numbers, strict=True))


def _read_run_delay(path: Path = Path("/proc/self/schedstat")) -> float | None:
    """Seconds for which the first thread of this process, which trains, has waited for a processor; None if unknown.

    Linux counts them in nanoseconds (Documentation/scheduler/sched-stats.rst); some kernels are built without.
    """
    try:
        return int(path.read_text().split()[1]) / 1e9
    except (OSError, LookupError, ValueError):
        return None


def _find_free_bytes(directory: Path) -> float | None:
    """Free bytes on the file system of a directory; None if the directory is gone."""
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return None
