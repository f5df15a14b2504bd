"""Where is the bottleneck: environment → actor → wire → replay → trainer → model back to the actors."""

from __future__ import annotations

from dashboards.dashboard import Dashboard, Row
from dashboards.panels import Graph, Stat

_RATE = "[$__rate_interval]"
_ACTED = (
    f"rate(crossborder_env_seconds_total{_RATE}) "
    f"+ rate(crossborder_inference_seconds_total{_RATE}) "
    f"+ rate(crossborder_wait_seconds_total{_RATE})"
)


def quantiles(histogram: str) -> dict[str, str]:
    """Median, 95th and 99th percentile of a histogram."""
    return {
        f"p{percent}": f"histogram_quantile({percent / 100}, sum by (le) (rate({histogram}_bucket{_RATE})))"
        for percent in (50, 95, 99)
    }


_AT_A_GLANCE = Row(
    "Where is the bottleneck?",
    (
        Stat(
            "Trainer waits",
            (
                "Share of its time that the trainer waits for steps. If it is high, the actors are the "
                "bottleneck: add actors."
            ),
            "percentunit",
            {"waits": f"rate(crossborder_trainer_wait_seconds_total{_RATE})"},
            base="green",
            steps=((0.2, "yellow"), (0.5, "red")),
        ),
        Stat(
            "Actors wait",
            "Share of their time for which actors are held back in push. If it is high, the trainer is the bottleneck, "
            "or the replay ratio holds actors back. That is good if the learner is the more expensive machine.",
            "percentunit",
            {"wait": f"rate(crossborder_wait_seconds_total{_RATE}) / ({_ACTED})"},
            base="green",
            steps=((0.99, "yellow"),),
        ),
        Stat(
            "Replay ratio, of target",
            (
                "Steps drawn per step stored, divided by replay.samples_per_insert. Empty: the configuration "
                "sets no ratio."
            ),
            "percentunit",
            {
                "of target": f"rate(crossborder_samples_drawn_total{_RATE}) "
                f"/ on (instance) rate(crossborder_stored_steps_total{_RATE}) "
                "/ on (instance) crossborder_replay_ratio_target"
            },
            base="yellow",
            steps=((0.8, "green"), (1.25, "yellow")),
        ),
        Stat(
            "Acknowledged, p95",
            (
                "Time from the arrival of a batch to its acknowledgement. It is long when ingest holds actors "
                "back to keep the replay ratio."
            ),
            "s",
            {"p95": quantiles("crossborder_ack_seconds")["p95"]},
            base="green",
            steps=((1, "yellow"), (10, "red")),
        ),
        Stat(
            "Policy age, p95",
            "Age of the model that acted, at the time when its batch arrived.",
            "s",
            {"p95": quantiles("crossborder_policy_lag_seconds")["p95"]},
            base="green",
            steps=((30, "yellow"), (60, "red")),
        ),
        Stat(
            "Batches refused",
            (
                "Batches refused since ingest began. If it is not 0, an actor sends rows that the learner cannot "
                "learn from."
            ),
            "short",
            {"refused": "sum(crossborder_refused_batches_total)"},
            base="green",
            steps=((1, "red"),),
        ),
    ),
)

_ACTOR = Row(
    "1 · Environment and actor",
    (
        Graph(
            "Environment steps",
            "Environment steps per second of all actors.",
            "ops",
            {"env steps": f"rate(crossborder_env_steps_total{_RATE})"},
        ),
        Graph(
            "Where actors spend their time",
            (
                "Seconds per second, over all actors: in environments, choosing actions, and waiting with a "
                "finished batch."
            ),
            "short",
            {
                "environment": f"rate(crossborder_env_seconds_total{_RATE})",
                "inference": f"rate(crossborder_inference_seconds_total{_RATE})",
                "held back": f"rate(crossborder_wait_seconds_total{_RATE})",
            },
            stacked=True,
        ),
    ),
)

_WIRE = Row(
    "2 · Wire",
    (
        Graph(
            "Batches",
            "Batches per second that were stored, sent again after a broken connection, or refused.",
            "ops",
            {
                "stored": f"rate(crossborder_batches_total{_RATE})",
                "sent again": f"rate(crossborder_duplicate_batches_total{_RATE})",
                "refused": f"sum(rate(crossborder_refused_batches_total{_RATE}))",
            },
        ),
        Graph(
            "Payload",
            "Bytes of stored batches per second, as they came on the wire.",
            "Bps",
            {"payload": f"rate(crossborder_payload_bytes_total{_RATE})"},
        ),
        Graph(
            "Time to acknowledge",
            (
                "Time from the arrival of a batch to its acknowledgement, including the time for which the "
                "replay ratio holds it back."
            ),
            "s",
            quantiles("crossborder_ack_seconds"),
        ),
        Graph(
            "Acknowledgements held back",
            "Seconds per second, over all actors. If the time to keep the replay ratio grows, the trainer is the "
            "bottleneck. A quota applies to an actor that has more than its share of the replay, or that asks for one "
            "model over and over.",
            "short",
            {
                "to keep the ratio": f"rate(crossborder_ack_hold_seconds_total{_RATE})",
                "by a quota, {{answer}}": f"rate(crossborder_quota_hold_seconds_total{_RATE})",
            },
        ),
    ),
)

_REPLAY = Row(
    "3 · Replay",
    (
        Graph(
            "Steps in and out",
            "Steps per second that actors store and that the trainer draws.",
            "ops",
            {
                "stored": f"rate(crossborder_stored_steps_total{_RATE})",
                "drawn": f"rate(crossborder_samples_drawn_total{_RATE})",
            },
        ),
        Graph(
            "Replay ratio",
            "Steps drawn per step stored, and the ratio that replay.samples_per_insert sets.",
            "none",
            {
                "ratio": f"rate(crossborder_samples_drawn_total{_RATE}) "
                f"/ on (instance) rate(crossborder_stored_steps_total{_RATE})",
                "target": "crossborder_replay_ratio_target",
            },
        ),
        Graph(
            "Draws by source",
            "Shares of the drawn steps that come from the actors' rows and from each of replay.sources.",
            "percentunit",
            {
                "{{source}}": f"rate(crossborder_source_samples_drawn_total{_RATE}) "
                f"/ on (instance) group_left () rate(crossborder_samples_drawn_total{_RATE})"
            },
            stacked=True,
        ),
        Graph(
            "Fill",
            (
                "Rows in the replay, steps that can be drawn, and the capacity in rows. When the replay is full, "
                "new rows replace the oldest."
            ),
            "percentunit",
            {
                "rows": "crossborder_replay_size_rows / crossborder_replay_capacity_rows",
                "steps": "crossborder_replay_size_steps / crossborder_replay_capacity_rows",
            },
        ),
        Graph(
            "Age of the oldest row",
            "Age of the oldest row in the replay. If it is short, the replay is small for this number of actors.",
            "s",
            {"oldest": "crossborder_replay_oldest_age_seconds"},
        ),
    ),
)

_TRAINER = Row(
    "4 · Trainer",
    (
        Graph(
            "Opt steps",
            "Opt steps per second.",
            "ops",
            {"opt steps": f"rate(crossborder_opt_steps_total{_RATE})"},
        ),
        Graph(
            "Where the trainer spends its time",
            "Seconds per second; they add up to 1. An evaluator process adds its own time on top. Other: records, "
            "supervision, and the time between opt steps in which other work has the processor.",
            "short",
            {
                "opt": f"rate(crossborder_opt_seconds_total{_RATE})",
                "waits for steps": f"rate(crossborder_trainer_wait_seconds_total{_RATE})",
                "evaluates": f"rate(crossborder_evaluation_seconds_total{_RATE})",
                "publishes": f"rate(crossborder_model_publish_seconds_total{_RATE})",
                "saves": f"rate(crossborder_checkpoint_seconds_total{_RATE})",
                "other": "clamp_min(1 - "
                + " - ".join(
                    f"rate(crossborder_{name}_seconds_total{_RATE})"
                    for name in ("opt", "trainer_wait", "model_publish", "checkpoint")
                )
                + ", 0)",
            },
            stacked=True,
        ),
        Graph(
            "Other work has the trainer's processor",
            "Seconds per second for which the trainer is ready to run, but waits for a processor. Above 0.1 the host "
            "has too few cores for its processes.",
            "short",
            {"held up": f"rate(crossborder_trainer_held_up_seconds_total{_RATE})"},
        ),
    ),
)

_MODEL = Row(
    "5 · Model, back to the actors",
    (
        Graph(
            "Models published and fetched",
            (
                "Models per second that the trainer publishes and actors fetch, and requests of actors that "
                "already have the newest model."
            ),
            "ops",
            {
                "published": f"rate(crossborder_model_publishes_total{_RATE})",
                "fetched": f"rate(crossborder_model_fetches_total{_RATE})",
                "not newer": f"rate(crossborder_model_not_modified_total{_RATE})",
            },
        ),
        Graph(
            "Time to publish",
            "Mean time to copy a model into shared memory.",
            "s",
            {
                "mean": f"rate(crossborder_model_publish_seconds_total{_RATE}) "
                f"/ rate(crossborder_model_publishes_total{_RATE})"
            },
        ),
        Graph(
            "Model bytes sent",
            "Bytes of models sent to all actors per second.",
            "Bps",
            {"sent": f"rate(crossborder_model_bytes_sent_total{_RATE})"},
        ),
        Graph(
            "Model size",
            "Bytes of one model on the wire.",
            "bytes",
            {"model": "crossborder_model_bytes"},
        ),
        Graph(
            "Policy lag in opt steps",
            "Opt steps between the newest model and the model that acted, per batch, and their exponential mean.",
            "short",
            {**quantiles("crossborder_policy_lag_steps"), "mean": "crossborder_policy_lag_opt_steps"},
        ),
        Graph(
            "Policy lag in seconds",
            "Age of the model that acted, at the time when its batch arrived.",
            "s",
            quantiles("crossborder_policy_lag_seconds"),
        ),
    ),
)

FLOW = Dashboard(
    "crossborder-flow",
    "Flow",
    "Where is the bottleneck? From the environment to the replay, through the trainer, and the model back.",
    (_AT_A_GLANCE, _ACTOR, _WIRE, _REPLAY, _TRAINER, _MODEL),
)
