"""Is it learning?"""

from __future__ import annotations

from dashboards.dashboard import Dashboard, Row
from dashboards.panels import Graph, Stat

_AT_A_GLANCE = Row(
    "Is it learning?",
    (
        Stat(
            "Run",
            "Name of the run that this learner trains.",
            "none",
            {"{{run}}": "crossborder_run_info"},
            show="name",
        ),
        Stat(
            "Best evaluation",
            "Highest mean return of a greedy evaluation so far; its agent is in best/.",
            "none",
            {"best": "crossborder_best_score > -Inf"},
        ),
        Stat(
            "Newest evaluation",
            (
                "Mean return of the newest greedy evaluation. If it stays far below the best one, learning has "
                "collapsed."
            ),
            "none",
            {"newest": 'crossborder_record{key="eval_reward"}'},
        ),
        Stat(
            "Evaluated",
            "Time since the newest evaluation ended.",
            "s",
            {"ago": "time() - crossborder_last_evaluation_timestamp_seconds"},
            base="green",
            steps=((1800, "yellow"), (7200, "red")),
        ),
        Stat(
            "Opt steps per second",
            "Opt steps per second. Red: the trainer does not learn at all.",
            "ops",
            {"opt steps": "rate(crossborder_opt_steps_total[$__rate_interval])"},
            base="red",
            steps=((0.01, "green"),),
        ),
        Stat(
            "Divergences",
            "Number of times that a loss or score was NaN or infinite, and the run went on from a checkpoint.",
            "short",
            {"divergences": "crossborder_divergences_total"},
            base="green",
            steps=((1, "red"),),
        ),
    ),
)

_RETURN = Row(
    "Return",
    (
        Graph(
            "Evaluation return",
            "Undiscounted return of the greedy episodes of an evaluation: mean, worst and best.",
            "none",
            {
                "mean": 'crossborder_record{key="eval_reward"}',
                "worst": 'crossborder_record{key="eval_reward_min"}',
                "best": 'crossborder_record{key="eval_reward_max"}',
            },
        ),
        Graph(
            "Training return",
            (
                "Mean return of the last 100 episodes of all actors, exploration included. It rises before that "
                "of evaluations."
            ),
            "none",
            {"mean of 100 episodes": "crossborder_episode_return_mean"},
        ),
        Graph(
            "Episode length",
            "Mean environment steps of the last 100 episodes of all actors.",
            "short",
            {"steps": "crossborder_episode_length_mean"},
        ),
        Graph(
            "Episodes",
            "Episodes of all actors that end per second.",
            "ops",
            {"episodes": "rate(crossborder_episodes_total[$__rate_interval])"},
        ),
    ),
)

_UPDATES = Row(
    "Updates",
    (
        Graph(
            "Losses",
            (
                "Mean losses over the opt steps of a record. A loss need not fall while the policy changes, but "
                "it should not grow without end."
            ),
            "short",
            {"{{key}}": 'crossborder_record{key=~"loss.*"}'},
        ),
        Graph(
            "Values",
            "Predicted and target values. If they grow far beyond any possible return, values are overestimated.",
            "short",
            {"{{key}}": 'crossborder_record{key=~"pred_mean|tgt_mean|q_mean|adv_mean"}'},
        ),
        Graph(
            "Gradient norm",
            "Gradient norm before clipping. A jump of orders of magnitude precedes most collapses.",
            "short",
            {"{{key}}": 'crossborder_record{key="grad_norm"}'},
        ),
        Graph(
            "Policy entropy and likelihood",
            "SAC: entropy (nats) and its coefficient; AWAC, IQL: log-likelihood of the data's actions. "
            "Entropy near its floor early shows too little exploration. Empty for other agents.",
            "short",
            {"{{key}}": 'crossborder_record{key=~"entropy|ent_coef|log_prob"}'},
        ),
    ),
)

_PACE = Row(
    "Pace, as recorded",
    (
        Graph(
            "Steps and samples",
            "Opt steps and accepted steps per second in the newest record; evaluations are not counted.",
            "ops",
            {"{{key}}": 'crossborder_record{key=~"opt_steps_per_sec|samples_per_sec"}'},
        ),
        Graph(
            "Samples per opt step",
            "Accepted steps for each opt step in the newest record.",
            "short",
            {"steps": 'crossborder_record{key="samples_per_opt_steps"}'},
        ),
    ),
)

TRAINING = Dashboard(
    "crossborder-training",
    "Training",
    "Is it learning? Returns, losses, values, pace.",
    (_AT_A_GLANCE, _RETURN, _UPDATES, _PACE),
)
