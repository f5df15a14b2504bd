"""Which actors are there, and how far is each behind?"""

from __future__ import annotations

from dashboards.dashboard import ACTOR, INSTANCE, Dashboard, Row
from dashboards.panels import Graph, Stat, Table

_RATE = "[$__rate_interval]"
_CHOSEN = '{actor=~"$actor"}'
KEYS = ("actor", "host", "name")


def _by_rank(metric: str) -> str:
    """The sum of a metric of all instances, of each rank of the run that is chosen above the dashboard."""
    info = "crossborder_rank_info"
    joined = f'{metric} * on (instance, job) group_left (rank, run_id) {info}{{instance=~".+"}}'
    return f"sum by (rank) ({joined} and on (run_id) {info})"


_AT_A_GLANCE = Row(
    "Is the fleet complete?",
    (
        Stat(
            "Online",
            "Actors with an open stream. Red: no actor is connected, so no new rows arrive.",
            "none",
            {"online": 'crossborder_actors{state="online"}'},
            base="red",
            steps=((1, "green"),),
        ),
        Stat(
            "Away",
            "Actors whose stream broke and that may come back; after server.lost_seconds they count as lost.",
            "none",
            {"away": 'crossborder_actors{state="away"}'},
            base="green",
            steps=((1, "yellow"),),
        ),
        Stat(
            "Lost",
            "Actors whose stream broke and that did not come back.",
            "none",
            {"lost": 'crossborder_actors{state="lost"}'},
            base="green",
            steps=((1, "red"),),
        ),
        Stat(
            "Longest silence",
            "Time since the last message of the actor that has been silent longest.",
            "s",
            {"silent": 'crossborder_fleet_last_seen_seconds{quantile="1"}'},
            base="green",
            steps=((10, "yellow"), (30, "red")),
        ),
        Stat(
            "Furthest behind",
            "Opt steps between the newest model and the model of the actor that is furthest behind.",
            "short",
            {"behind": 'crossborder_fleet_policy_lag_opt_steps{quantile="1"}'},
        ),
        Stat(
            "Joins refused",
            "Joins refused since ingest began: a wrong protocol version, or no place left. Cordons do not count.",
            "short",
            {"refused": 'sum(crossborder_joins_refused_total{reason!="cordoned"})'},
            base="green",
            steps=((1, "yellow"),),
        ),
    ),
)


def _or(each: str, fleet: str) -> str:
    """An expression by actor or, if actors have no series (``server.max_actors`` above 256), one over all actors.

    Args:
        each: the expression by actor.
        fleet: the expression over all actors. Its quantiles, or ``all``, become the label ``actor``.
    """
    labelled = (
        f'label_replace(label_replace({fleet}, "actor", "all", "", ""), "actor", "quantile $1", "quantile", "(.+)")'
    )
    return f"{each} or {labelled} unless on (instance) crossborder_actor_info"


def _of_each(function: str, each: str, fleet: str) -> str:
    """An expression by actor, with the host that the actor is on and the name of its token; see ``_or``."""
    keys = ", ".join(("instance", *KEYS))
    info = "* on (instance, actor) group_left (host, name) crossborder_actor_info"
    return _or(f"{function} by ({keys}) ({each} {info})", fleet)


def _rate_or(each: str, fleet: str) -> str:
    """The rate of a counter of each actor; see ``_or``."""
    return _or(f"rate(crossborder_actor_{each}{_CHOSEN}{_RATE})", fleet)


def _share_or(part: str, whole: str) -> str:
    """The rate of one counter over that of another, of each actor or of all actors; see ``_or``."""
    each = f"rate(crossborder_actor_{part}{_CHOSEN}{_RATE}) / rate(crossborder_actor_{whole}{_CHOSEN}{_RATE})"
    return _or(each, f"rate(crossborder_{part}{_RATE}) / rate(crossborder_{whole}{_RATE})")


def _value_or(name: str) -> str:
    """A gauge of each actor, or its quantiles over all actors; see ``_or``."""
    return _or(f"crossborder_actor_{name}{_CHOSEN}", f"crossborder_fleet_{name}")


_EACH = Row(
    "Each actor",
    (
        Table(
            "Actors",
            (
                "Actors that hold an id, with their hosts. Sort by a column to find the actor or host that "
                "stands out. With server.max_actors above 256, the table shows sums and quantiles; learner-server "
                "status shows each actor."
            ),
            "short",
            {
                "env steps/s": _of_each(
                    "sum",
                    f"rate(crossborder_actor_env_steps_total{_CHOSEN}{_RATE})",
                    "crossborder_fleet_env_steps_per_second",
                ),
                "steps/s": _of_each(
                    "sum",
                    f"rate(crossborder_actor_stored_steps_total{_CHOSEN}{_RATE})",
                    f"rate(crossborder_stored_steps_total{_RATE})",
                ),
                "return": _of_each(
                    "max", f"crossborder_actor_episode_return{_CHOSEN}", "crossborder_fleet_episode_return"
                ),
                "behind": _of_each(
                    "max", f"crossborder_actor_policy_lag_opt_steps{_CHOSEN}", "crossborder_fleet_policy_lag_opt_steps"
                ),
                "last seen": _of_each(
                    "max", f"crossborder_actor_last_seen_seconds{_CHOSEN}", "crossborder_fleet_last_seen_seconds"
                ),
                "spool": _of_each("max", f"crossborder_actor_spool_bytes{_CHOSEN}", "crossborder_fleet_spool_bytes"),
                "dropped": _of_each(
                    "max", f"crossborder_actor_dropped_rows_total{_CHOSEN}", "crossborder_dropped_rows_total"
                ),
                "envs rebuilt": _of_each(
                    "max", f"crossborder_actor_env_rebuilds_total{_CHOSEN}", "crossborder_env_rebuilds_total"
                ),
                "reconnects": _of_each(
                    "max", f"crossborder_actor_reconnects_total{_CHOSEN}", "crossborder_reconnects_total"
                ),
            },
            keys=KEYS,
            units={"last seen": "s", "spool": "bytes"},
        ),
    ),
)

_OVER_TIME = Row(
    "Over time",
    (
        Graph(
            "Actors by state",
            (
                "Actors that are online, building (environment and agent), joined (no stream yet), away (the "
                "stream broke), left (said goodbye) or lost (did not come back)."
            ),
            "none",
            {"{{state}}": "crossborder_actors"},
            stacked=True,
        ),
        Graph(
            "Actors by release",
            (
                "The releases that actors run: the eight most frequent ones, and all others together. During an "
                "upgrade, two are there for a while."
            ),
            "none",
            {"{{version}}": "crossborder_actors_by_release"},
            stacked=True,
        ),
        Graph(
            "Cordons",
            "Hosts and ids from which no new actor may join: learner-server cordon, drain and uncordon.",
            "none",
            {
                "cordons": "crossborder_cordons",
                "cordoned actors that ask": f'rate(crossborder_joins_refused_total{{reason="cordoned"}}{_RATE})',
            },
        ),
        Graph(
            "Joins",
            "Joins accepted and refused per second. A steady rate means that actors die and are started again.",
            "ops",
            {
                "accepted": f"rate(crossborder_joins_total{_RATE})",
                "{{reason}}": f"rate(crossborder_joins_refused_total{_RATE})",
                "led to another rank": f"rate(crossborder_joins_led_total{_RATE})",
                "streams that broke": f"rate(crossborder_reconnects_total{_RATE})",
            },
        ),
        Graph(
            "Unauthenticated calls",
            "Calls without a valid token in the last five minutes: somebody forgot the token, or a stranger calls.",
            "short",
            {"calls": "increase(crossborder_unauthenticated_calls_total[5m])"},
        ),
        Graph(
            "Over limit",
            ("Calls refused by limits in the last five minutes: an attack, or a fleet that has outgrown the limits."),
            "short",
            {"{{limit}}": "increase(crossborder_over_limit_total[5m])"},
        ),
        Graph(
            "Open calls",
            (
                "Open calls: one for each actor online, and one for each model that is being fetched. If there "
                "are many more, somebody keeps calls open without need."
            ),
            "none",
            {"open": "crossborder_open_calls", "online": 'crossborder_actors{state="online"}'},
        ),
        Graph(
            "Environment steps",
            "Environment steps of each actor per second. A line far below the others shows a slow or crowded host.",
            "ops",
            {"{{actor}}": _rate_or("env_steps_total", "crossborder_fleet_env_steps_per_second")},
        ),
        Graph(
            "Interventions",
            (
                "Share of an actor's environment steps in which a person or a safety layer acted for the agent. "
                "It falls as the policy learns."
            ),
            "percentunit",
            {"{{actor}}": _share_or("intervened_steps_total", "env_steps_total")},
        ),
        Graph(
            "Held back",
            "Share of an actor's time for which it waits with a finished batch.",
            "percentunit",
            {"{{actor}}": _rate_or("wait_seconds_total", "crossborder_fleet_wait_share")},
        ),
        Graph(
            "Environment",
            "Share of an actor's time that it spends in environments.",
            "percentunit",
            {"{{actor}}": _rate_or("env_seconds_total", "crossborder_fleet_env_share")},
        ),
        Graph(
            "Inference",
            "Share of an actor's time that it spends on choosing actions.",
            "percentunit",
            {"{{actor}}": _rate_or("inference_seconds_total", "crossborder_fleet_inference_share")},
        ),
        Graph(
            "Late ticks",
            (
                "Share of the ticks of env.rate_hz whose step began more than 2 ms late, or that had no step. 0: "
                "always on time."
            ),
            "percentunit",
            {
                "{{actor}} late": _share_or("late_ticks_total", "ticks_total"),
                "{{actor}} missed": _share_or("missed_ticks_total", "ticks_total"),
            },
        ),
        Graph(
            "Lateness",
            "The lateness that 99 of 100 steps of an actor with env.rate_hz did not exceed.",
            "s",
            {"{{actor}}": _value_or("lateness_p99_seconds")},
        ),
        Graph(
            "Safe stops",
            (
                "Safe stops in the last five minutes after which a robot waited, because the learner was silent "
                "or behind."
            ),
            "short",
            {
                "{{actor}}": _or(
                    f"increase(crossborder_actor_safe_stops_total{_CHOSEN}[5m])",
                    "increase(crossborder_safe_stops_total[5m])",
                )
            },
        ),
        Graph(
            "Behind",
            (
                "Opt steps between the newest model and the model of an actor. If it grows, the actor cannot "
                "fetch models."
            ),
            "short",
            {"{{actor}}": _value_or("policy_lag_opt_steps")},
        ),
        Graph(
            "Return",
            "Return of each actor's newest episode, exploration included. Actors explore differently.",
            "none",
            {"{{actor}}": _value_or("episode_return")},
        ),
        Graph(
            "Last seen",
            "Time since an actor's last message. A rising line shows an actor that is gone or cut off.",
            "s",
            {"{{actor}}": _value_or("last_seen_seconds")},
        ),
        Graph(
            "Spool",
            "Bytes of rows that an actor keeps until they are acknowledged. At push.spool_bytes it waits.",
            "bytes",
            {"{{actor}}": _value_or("spool_bytes"), "all together": "crossborder_spool_bytes"},
        ),
    ),
)

_EVERY = '{instance=~".+"}'
_RANKS = Row(
    "Ranks of the run",
    (
        Graph(
            "Actors by rank",
            "Actors online at each rank. New actors are led to the rank with the fewest, so the lines should meet.",
            "none",
            {"rank {{rank}}": _by_rank('crossborder_actors{instance=~".+",state="online"}')},
        ),
        Graph(
            "Rows by rank",
            "Steps stored per second in each rank's shard. The other ranks wait for the rank with the lowest line.",
            "ops",
            {"rank {{rank}}": _by_rank(f"rate(crossborder_stored_steps_total{_EVERY}{_RATE})")},
        ),
        Graph(
            "Waits by rank",
            "Share of its time that a rank's trainer waits for rows of its own shard.",
            "percentunit",
            {"rank {{rank}}": _by_rank(f"rate(crossborder_trainer_wait_seconds_total{_EVERY}{_RATE})")},
        ),
    ),
)

_SERVING = "crossborder_serving"


def _quantile(quantile: float, histogram: str) -> str:
    """A quantile of a histogram of all acting services."""
    return f"histogram_quantile({quantile}, sum by (le) (rate({_SERVING}_{histogram}_bucket{_RATE})))"


_SERVICES = Row(
    "Acting services",
    (
        Graph(
            "Sessions",
            "Sessions of clients of the run's acting services, and their lanes, with a connection and in all.",
            "none",
            {
                "sessions": f"sum({_SERVING}_sessions)",
                "lanes": f"sum({_SERVING}_lanes)",
                "connected lanes": f"sum({_SERVING}_connected_lanes)",
            },
        ),
        Graph(
            "Actions for clients",
            "Actions that acting services have given per second, and the episodes of clients that ended.",
            "ops",
            {
                "actions": f"sum(rate({_SERVING}_actions_total{_RATE}))",
                "episodes": f"sum(rate({_SERVING}_episodes_total{_RATE}))",
            },
        ),
        Graph(
            "Time to an action",
            "Time from the arrival of a client's step until its actions were chosen, and of it the wait for others.",
            "s",
            {
                "median": _quantile(0.5, "answer_seconds"),
                "99 of 100": _quantile(0.99, "answer_seconds"),
                "wait, 99 of 100": _quantile(0.99, "wait_seconds"),
            },
        ),
        Graph(
            "Lanes in a batch",
            "Lanes for which acting services choose actions in one forward pass.",
            "none",
            {"median": _quantile(0.5, "batch_lanes"), "99 of 100": _quantile(0.99, "batch_lanes")},
        ),
        Graph(
            "Policies of acting services",
            "Opt steps of the model that each policy acts with.",
            "none",
            {"{{instance}} {{policy}}": f"max by (instance, policy) ({_SERVING}_opt_steps)"},
        ),
        Graph(
            "Newer policies",
            "Policies that a run put in the place of one that acts, and that act since, or cannot; in five minutes.",
            "short",
            {
                "taken up": f"sum(increase({_SERVING}_policies_taken_up_total[5m]))",
                "refused": f"sum(increase({_SERVING}_policies_refused_total[5m]))",
            },
        ),
        Graph(
            "Return of clients' episodes",
            "Mean return of the episodes that ended.",
            "none",
            {
                "return {{policy}}": f"sum by (policy) (rate({_SERVING}_returns_total{_RATE})) / "
                f"sum by (policy) (rate({_SERVING}_episodes_total{_RATE}))"
            },
        ),
        Graph(
            "Connections of clients",
            "Sessions that were opened in the last five minutes, that came back after their connection broke, and that "
            "stayed away; and steps that clients sent again.",
            "short",
            {
                "opened": f"sum(increase({_SERVING}_sessions_opened_total[5m]))",
                "came back": f"sum(increase({_SERVING}_resumes_total[5m]))",
                "stayed away": f"sum(increase({_SERVING}_sessions_expired_total[5m]))",
                "steps again": f"sum(increase({_SERVING}_repeated_steps_total[5m]))",
            },
        ),
        Graph(
            "Refused clients",
            "Requests that acting services refused in the last five minutes, by reason; calls over a limit, by limit; "
            "and calls without a valid token.",
            "short",
            {
                "{{reason}}": f"sum by (reason) (increase({_SERVING}_refused_total[5m]))",
                "over {{limit}}": f"sum by (limit) (increase({_SERVING}_over_limit_total[5m]))",
                "no token": f"sum(increase({_SERVING}_unauthenticated_total[5m]))",
            },
        ),
    ),
)

FLEET = Dashboard(
    "crossborder-fleet",
    "Fleet",
    "Which actors are there, and how far is each behind?",
    (_AT_A_GLANCE, _EACH, _OVER_TIME, _SERVICES, _RANKS),
    (INSTANCE, ACTOR),
)
