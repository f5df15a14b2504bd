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
            "Strength against earlier models",
            "Elo of the newest version above the first one, by training games against the pool. Empty without a pool.",
            "none",
            {"rating": 'crossborder_record{key="pool_rating"}'},
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
            {"{{key}}": 'crossborder_record{key=~"pred_mean|tgt_mean|q_mean|adv_mean|value_mean"}'},
        ),
        Graph(
            "Gradient norm",
            "Gradient norm before clipping. A jump of orders of magnitude precedes most collapses.",
            "short",
            {"{{key}}": 'crossborder_record{key="grad_norm"}'},
        ),
        Graph(
            "Policy entropy and likelihood",
            "SAC, IMPALA, PPO: entropy (nats), and SAC's coefficient; AWAC, IQL: log-likelihood of the data's actions. "
            "Entropy near its floor early shows too little exploration. Empty for other agents.",
            "short",
            {"{{key}}": 'crossborder_record{key=~"entropy|ent_coef|log_prob"}'},
        ),
    ),
)

_OFF_POLICY = Row(
    "Distance between policies (IMPALA, PPO)",
    (
        Graph(
            "From the policy that acted",
            "Mean clipped ratio of an action's probability under the learner's policy to that under the policy that "
            "acted. 1: the same policies. Near 0.7 and below, steps teach little: actors lag too far behind.",
            "short",
            {"{{key}}": 'crossborder_record{key="ratio_mean"}'},
        ),
        Graph(
            "Moved in an opt step (PPO)",
            "KL divergence from the policy before the opt step, and the share of steps whose ratio is clipped. Usual "
            "are 0.01 to 0.05, and below 0.3. If they are higher, lower the learning rate or the epochs.",
            "short",
            {"{{key}}": 'crossborder_record{key=~"kl|clipped_share"}'},
        ),
        Graph(
            "Age of steps",
            "Mean opt steps from the model that acted to the model that learns; of PPO also the steps that an opt step "
            "left out because they were older than max_lag.",
            "short",
            {"{{key}}": 'crossborder_record{key=~"version_age|left_out"}'},
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
    (_AT_A_GLANCE, _RETURN, _UPDATES, _OFF_POLICY, _PACE),
)
