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
            "Endpoints of the learner host that answer: trainer and ingest.",
            "none",
            {"up": "sum(up)"},
            base="red",
            steps=((2, "green"),),
        ),
        Stat(
            "Alerts firing",
            "Alerts of docker/prometheus/alerts.yml; docs/alerts.md says what to do about each.",
            "none",
            {"firing": 'count(ALERTS{alertstate="firing"}) or vector(0)'},
            base="green",
            steps=((1, "red"),),
        ),
        Stat(
            "Last opt step",
            "Time since the trainer last learnt.",
            "s",
            {"ago": "time() - crossborder_last_opt_timestamp_seconds"},
            base="green",
            steps=((60, "yellow"), (300, "red")),
        ),
        Stat(
            "Last checkpoint",
            "Training that would be lost with the learner host.",
            "s",
            {"ago": 'time() - crossborder_last_checkpoint_timestamp_seconds{kind="state"}'},
            base="green",
            steps=((1800, "yellow"), (3600, "red")),
        ),
        Stat(
            "Disk free",
            "On the file system of the run directory.",
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
            "In the last five minutes, by reason.",
            "short",
            {"{{reason}}": "increase(crossborder_refused_batches_total[5m])"},
        ),
        Graph(
            "NaN and infinity",
            "In the last five minutes, by column: clipped where server.clip_nonfinite says so, else refused.",
            "short",
            {"{{column}}": "increase(crossborder_nonfinite_values_total[5m])"},
        ),
        Graph(
            "Values out of bounds",
            "In the last five minutes, by column: stored where server.out_of_bounds says count, else refused.",
            "short",
            {"{{column}}": "increase(crossborder_out_of_bounds_values_total[5m])"},
        ),
        Graph(
            "Environments that failed",
            "In the last five minutes: built anew after an exception, and hung, which ends their actor.",
            "short",
            {
                "rebuilt": "increase(crossborder_env_rebuilds_total[5m])",
                "hung": "increase(crossborder_env_hangs_total[5m])",
            },
        ),
        Graph(
            "Rows never drawn",
            "Rows in the replay with values that they may not hold: found when the run was resumed, then left out.",
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
            "In the last five minutes, by actors that could not send them in time.",
            "short",
            {"rows": "increase(crossborder_dropped_rows_total[5m])"},
        ),
        Graph(
            "Episodes without an end",
            "In the last five minutes: no final row came, so their last steps are never drawn.",
            "short",
            {"episodes": "increase(crossborder_unfinished_episodes_total[5m])"},
        ),
        Graph(
            "Divergences",
            "Ends by NaN or infinity, in the last five minutes.",
            "short",
            {"divergences": "increase(crossborder_divergences_total[5m])"},
        ),
        Graph(
            "Restarts",
            "Children started again, by kind, since the run began.",
            "short",
            {"{{child}}": "crossborder_child_restarts_total"},
        ),
        Graph(
            "Checkpoints that failed",
            "Saves that did not succeed since the run began: the disk may be full.",
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
            "By kind, since the run began.",
            "short",
            {"{{kind}}": "crossborder_checkpoint_saves_total"},
        ),
        Graph(
            "Time to save",
            "Mean time of a save.",
            "s",
            {
                "mean": "crossborder_checkpoint_seconds_total "
                "/ on (instance) sum by (instance) (crossborder_checkpoint_saves_total)"
            },
        ),
        Graph(
            "Evaluations",
            "Finished, and skipped because another one still ran, since the run began.",
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
            "Cores used by each process.",
            "short",
            {"{{job}}": f"rate(process_cpu_seconds_total{_RATE})"},
        ),
        Graph(
            "Memory",
            "Resident bytes of each process; both count the shared replay as far as they touched it.",
            "bytes",
            {"{{job}}": "process_resident_memory_bytes", "replay": "crossborder_replay_bytes"},
        ),
        Graph(
            "Open files",
            "File descriptors; a line that only rises is a leak.",
            "short",
            {"{{job}}": "process_open_fds"},
        ),
        Graph(
            "Disk free",
            "On the file system of the run directory.",
            "bytes",
            {"free": "crossborder_disk_free_bytes"},
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
        Stat("Version", "Of crossborder.", "none", {"{{version}}": "crossborder_build_info"}, show="name"),
        Stat("Torch", "Of the trainer.", "none", {"{{torch}}": "crossborder_build_info"}, show="name"),
        Stat("Python", "Of the trainer.", "none", {"{{python}}": "crossborder_build_info"}, show="name"),
        Stat("Run id", "In every actor's log too.", "none", {"{{run_id}}": "crossborder_run_info"}, show="name"),
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
