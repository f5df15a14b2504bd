"""Is anything broken, or about to be?"""

from __future__ import annotations

from dashboards.dashboard import Dashboard, Row
from dashboards.panels import Graph, Stat

_RATE = "[$__rate_interval]"

_AT_A_GLANCE = Row(
    "Is anything broken?",
    (
        Stat(
            "Processes up",
            "Metrics endpoints of the learner host that answer: trainer and ingest.",
            "none",
            {"up": "sum(up)"},
            base="red",
            steps=((2, "green"),),
        ),
        Stat(
            "Alerts firing",
            "Alerts of docker/prometheus/alerts.yml that fire now; docs/alerts.md says what to do about each.",
            "none",
            {"firing": 'count(ALERTS{alertstate="firing"}) or vector(0)'},
            base="green",
            steps=((1, "red"),),
        ),
        Stat(
            "Last opt step",
            "Time since the last opt step.",
            "s",
            {"ago": "time() - crossborder_last_opt_timestamp_seconds"},
            base="green",
            steps=((60, "yellow"), (300, "red")),
        ),
        Stat(
            "Last checkpoint",
            "Time since the last checkpoint: the training that would be lost with the learner host.",
            "s",
            {"ago": 'time() - crossborder_last_checkpoint_timestamp_seconds{kind="state"}'},
            base="green",
            steps=((1800, "yellow"), (3600, "red")),
        ),
        Stat(
            "Disk free",
            "Free bytes on the file system of the run directory.",
            "bytes",
            {"free": "crossborder_disk_free_bytes"},
            base="red",
            steps=((5e9, "yellow"), (20e9, "green")),
        ),
        Stat(
            "Children restarted",
            "Processes of the learner host that died and were started again. The reason is in the log.",
            "short",
            {"restarts": "sum(crossborder_child_restarts_total)"},
            base="green",
            steps=((1, "yellow"), (5, "red")),
        ),
    ),
)

_FAULTS = Row(
    "Faults",
    (
        Graph(
            "Batches refused",
            "Batches refused in the last five minutes, by reason.",
            "short",
            {"{{reason}}": "increase(crossborder_refused_batches_total[5m])"},
        ),
        Graph(
            "NaN, infinity and far too large values",
            (
                "Values in the last five minutes, by column. server.unusual_values has numbers for columns that are "
                "clipped; other batches are refused."
            ),
            "short",
            {"{{column}}": "increase(crossborder_nonfinite_values_total[5m])"},
        ),
        Graph(
            "Values out of bounds",
            (
                "Values in the last five minutes, by column. Columns that server.unusual_values counts are "
                "stored; other batches are refused."
            ),
            "short",
            {"{{column}}": "increase(crossborder_out_of_bounds_values_total[5m])"},
        ),
        Graph(
            "Environments that failed",
            (
                "Environments in the last five minutes that were built again after an exception, or that hung, "
                "which ends the actor."
            ),
            "short",
            {
                "rebuilt": "increase(crossborder_env_rebuilds_total[5m])",
                "hung": "increase(crossborder_env_hangs_total[5m])",
            },
        ),
        Graph(
            "Rows never drawn",
            "Rows with values that the learner now refuses, found when the run was resumed. They are never drawn.",
            "none",
            {"excluded": "crossborder_replay_excluded_rows"},
        ),
        Graph(
            "Silence of the trainer",
            "Time since the training loop's last sign of life. It rises while an opt step or an evaluation hangs.",
            "s",
            {"silent": "crossborder_trainer_silent_seconds"},
        ),
        Graph(
            "Rows dropped",
            "Rows dropped in the last five minutes, by actors that could not send them in time.",
            "short",
            {"rows": "increase(crossborder_dropped_rows_total[5m])"},
        ),
        Graph(
            "Episodes without an end",
            "Episodes in the last five minutes without a final row, so that their last steps are never drawn.",
            "short",
            {"episodes": "increase(crossborder_unfinished_episodes_total[5m])"},
        ),
        Graph(
            "Divergences",
            "Ends of training in the last five minutes because a loss or score was NaN or infinite.",
            "short",
            {"divergences": "increase(crossborder_divergences_total[5m])"},
        ),
        Graph(
            "Restarts",
            "Child processes that died and were started again since the run began, by kind.",
            "short",
            {"{{child}}": "crossborder_child_restarts_total"},
        ),
        Graph(
            "Checkpoints that failed",
            "Checkpoints that could not be saved since the run began; the disk may be full.",
            "short",
            {"failed": "crossborder_checkpoint_failures_total"},
        ),
    ),
)

_WORK = Row(
    "Checkpoints and evaluations",
    (
        Graph(
            "Checkpoints saved",
            "Checkpoints saved since the run began, by kind.",
            "short",
            {"{{kind}}": "crossborder_checkpoint_saves_total"},
        ),
        Graph(
            "Time to save",
            "Mean time to save a checkpoint.",
            "s",
            {
                "mean": "crossborder_checkpoint_seconds_total "
                "/ on (instance) sum by (instance) (crossborder_checkpoint_saves_total)"
            },
        ),
        Graph(
            "Evaluations",
            "Evaluations since the run began: finished, and skipped because another evaluation still ran.",
            "short",
            {"finished": "crossborder_evaluations_total", "skipped": "crossborder_evaluations_skipped_total"},
        ),
        Graph(
            "Time to evaluate",
            "Mean time of an evaluation.",
            "s",
            {"mean": "crossborder_evaluation_seconds_total / crossborder_evaluations_total"},
        ),
    ),
)

_RESOURCES = Row(
    "Resources of the learner host",
    (
        Graph(
            "CPU",
            "CPU cores that each process uses.",
            "short",
            {"{{job}}": f"rate(process_cpu_seconds_total{_RATE})"},
        ),
        Graph(
            "Memory",
            "Resident bytes of each process. Each counts the pages of the shared replay that it has touched.",
            "bytes",
            {"{{job}}": "process_resident_memory_bytes", "replay": "crossborder_replay_bytes"},
        ),
        Graph(
            "Open files",
            "Open file descriptors of each process. A line that only rises shows a leak.",
            "short",
            {"{{job}}": "process_open_fds"},
        ),
        Graph(
            "Disk free",
            "Free bytes on the file system of the run directory.",
            "bytes",
            {"free": "crossborder_disk_free_bytes"},
        ),
        Graph(
            "Mirror behind",
            "Age of the newest state in the mirror that has all rows: what would be lost with the learner's host.",
            "s",
            {"seconds": "crossborder_mirror_lag_seconds"},
        ),
        Graph(
            "Rows not mirrored",
            "Rows in the replay that would be lost with the learner's host.",
            "short",
            {"rows": "crossborder_mirror_lag_rows"},
        ),
        Graph(
            "States mirrored",
            "States of the run that were written to the mirror in a second, and states that could not be written.",
            "short",
            {
                "written": f"rate(crossborder_mirror_states_total{_RATE})",
                "failed": f"rate(crossborder_mirror_failures_total{_RATE})",
            },
        ),
        Graph(
            "Sent to the mirror",
            "Bytes a second that go to the mirror, compressed.",
            "Bps",
            {"bytes": f"rate(crossborder_mirror_bytes_total{_RATE})"},
        ),
    ),
)

_BUILD = Row(
    "What runs",
    (
        Stat(
            "Finished",
            "1: the run has reached its target, its opt steps or its time, and its processes end.",
            "none",
            {"finished": "crossborder_run_finished"},
        ),
        Stat(
            "Certificates end in",
            "Time until the certificate of each port expires; without TLS there is none.",
            "s",
            {"{{port}}": "crossborder_certificate_expiry_timestamp_seconds - time()"},
            base="red",
            steps=((2 * 86400, "yellow"), (14 * 86400, "green")),
        ),
        Stat("Version", "Version of crossborder.", "none", {"{{version}}": "crossborder_build_info"}, show="name"),
        Stat("Torch", "Of the trainer.", "none", {"{{torch}}": "crossborder_build_info"}, show="name"),
        Stat("Python", "Of the trainer.", "none", {"{{python}}": "crossborder_build_info"}, show="name"),
        Stat(
            "Run id",
            "Identity of the run, which is also in the logs of its actors.",
            "none",
            {"{{run_id}}": "crossborder_run_info"},
            show="name",
        ),
        Stat(
            "Trainer up",
            "Time since the trainer began.",
            "s",
            {"since": 'time() - process_start_time_seconds{job="crossborder-trainer"}'},
        ),
        Stat(
            "Model",
            "Opt steps of the newest published model.",
            "short",
            {"opt steps": "crossborder_model_version_opt_steps"},
        ),
    ),
)

HEALTH = Dashboard(
    "crossborder-health",
    "Health",
    "Is anything broken, or about to be?",
    (_AT_A_GLANCE, _FAULTS, _WORK, _RESOURCES, _BUILD),
)
