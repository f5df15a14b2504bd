"""Which actors are there, and how far is each behind?"""

from __future__ import annotations

from dashboards.dashboard import ACTOR, INSTANCE, Dashboard, Row
from dashboards.panels import Graph, Stat, Table

_RATE = "[$__rate_interval]"
_CHOSEN = '{actor=~"$actor"}'
KEYS = ("actor", "host", "name")

_AT_A_GLANCE = Row(
    "Is the fleet complete?",
    (
        Stat(
            "Online",
            "Actor processes with an open stream. Red: nothing new arrives.",
            "none",
            {"online": 'crossborder_actors{state="online"}'},
            base="red",
            steps=((1, "green"),),
        ),
        Stat(
            "Away",
            "Actors whose stream is broken and who may come back; after server.lost_seconds they are lost.",
            "none",
            {"away": 'crossborder_actors{state="away"}'},
            base="green",
            steps=((1, "yellow"),),
        ),
        Stat(
            "Lost",
            "Actors that went away without goodbye and did not come back.",
            "none",
            {"lost": 'crossborder_actors{state="lost"}'},
            base="green",
            steps=((1, "red"),),
        ),
        Stat(
            "Longest silence",
            "Age of the newest message of the actor that has been silent longest.",
            "s",
            {"silent": "max(crossborder_actor_last_seen_seconds)"},
            base="green",
            steps=((10, "yellow"), (30, "red")),
        ),
        Stat(
            "Furthest behind",
            "Opt steps between the newest model and the one of the actor furthest behind.",
            "short",
            {"behind": "max(crossborder_actor_policy_lag_opt_steps)"},
        ),
        Stat(
            "Joins refused",
            "Since the ingest process began: wrong protocol version, or no place left.",
            "short",
            {"refused": "sum(crossborder_joins_refused_total)"},
            base="green",
            steps=((1, "yellow"),),
        ),
    ),
)


def _of_each(function: str, expr: str) -> str:
    """An expression by actor, with the host that the actor is on and the name of its token."""
    keys = ", ".join(KEYS)
    return f"{function} by ({keys}) ({expr} * on (instance, actor) group_left (host, name) crossborder_actor_info)"


_EACH = Row(
    "Each actor",
    (
        Table(
            "Actors",
            "Actors that hold an id, with their hosts. Sort by a column to find the actor or the host that stands out.",
            "short",
            {
                "env steps/s": _of_each("sum", f"rate(crossborder_actor_env_steps_total{_CHOSEN}{_RATE})"),
                "steps/s": _of_each("sum", f"rate(crossborder_actor_stored_steps_total{_CHOSEN}{_RATE})"),
                "return": _of_each("max", f"crossborder_actor_episode_return{_CHOSEN}"),
                "behind": _of_each("max", f"crossborder_actor_policy_lag_opt_steps{_CHOSEN}"),
                "last seen": _of_each("max", f"crossborder_actor_last_seen_seconds{_CHOSEN}"),
                "spool": _of_each("max", f"crossborder_actor_spool_bytes{_CHOSEN}"),
                "dropped": _of_each("max", f"crossborder_actor_dropped_rows_total{_CHOSEN}"),
                "envs rebuilt": _of_each("max", f"crossborder_actor_env_rebuilds_total{_CHOSEN}"),
                "reconnects": _of_each("max", f"crossborder_actor_reconnects_total{_CHOSEN}"),
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
            "Online, building its parts, joined (no stream yet), away (no stream any more), left (said goodbye), lost.",
            "none",
            {"{{state}}": "crossborder_actors"},
            stacked=True,
        ),
        Graph(
            "Joins",
            "Accepted and refused, per second. A steady rate: actors die and are started again.",
            "ops",
            {
                "accepted": f"rate(crossborder_joins_total{_RATE})",
                "{{reason}}": f"rate(crossborder_joins_refused_total{_RATE})",
            },
        ),
        Graph(
            "Unauthenticated calls",
            "Without a valid token, in the last five minutes: a forgotten token, or a stranger.",
            "short",
            {"calls": "increase(crossborder_unauthenticated_calls_total[5m])"},
        ),
        Graph(
            "Over limit",
            "Calls refused by server.limits in the last five minutes: an attack, or a fleet that outgrew them.",
            "short",
            {"{{limit}}": "increase(crossborder_over_limit_total[5m])"},
        ),
        Graph(
            "Open calls",
            "One for each actor online, and one for each model that is fetched. Many more: somebody only holds them.",
            "none",
            {"open": "crossborder_open_calls", "online": 'crossborder_actors{state="online"}'},
        ),
        Graph(
            "Environment steps",
            "Per second and actor. One line far below the others: a slow or crowded host.",
            "ops",
            {"{{actor}}": f"rate(crossborder_actor_env_steps_total{_CHOSEN}{_RATE})"},
        ),
        Graph(
            "Held back",
            "Share of its time an actor is held back in push.",
            "percentunit",
            {"{{actor}}": f"rate(crossborder_actor_wait_seconds_total{_CHOSEN}{_RATE})"},
        ),
        Graph(
            "Environment",
            "Share of its time an actor steps its environments.",
            "percentunit",
            {"{{actor}}": f"rate(crossborder_actor_env_seconds_total{_CHOSEN}{_RATE})"},
        ),
        Graph(
            "Inference",
            "Share of its time an actor chooses actions.",
            "percentunit",
            {"{{actor}}": f"rate(crossborder_actor_inference_seconds_total{_CHOSEN}{_RATE})"},
        ),
        Graph(
            "Behind",
            "Opt steps between the newest model and the one the actor acts with. Growing: it cannot fetch models.",
            "short",
            {"{{actor}}": f"crossborder_actor_policy_lag_opt_steps{_CHOSEN}"},
        ),
        Graph(
            "Return",
            "Of each actor's newest episode, exploration included. Actors explore differently.",
            "none",
            {"{{actor}}": f"crossborder_actor_episode_return{_CHOSEN}"},
        ),
        Graph(
            "Last seen",
            "Age of an actor's newest message. A rising line is an actor that is gone or cut off.",
            "s",
            {"{{actor}}": f"crossborder_actor_last_seen_seconds{_CHOSEN}"},
        ),
        Graph(
            "Spool",
            "Bytes an actor keeps because they are not acknowledged yet. At push.spool_bytes it waits.",
            "bytes",
            {"{{actor}}": f"crossborder_actor_spool_bytes{_CHOSEN}"},
        ),
    ),
)

FLEET = Dashboard(
    "crossborder-fleet",
    "Fleet",
    "Which actors are there, and how far is each behind?",
    (_AT_A_GLANCE, _EACH, _OVER_TIME),
    (INSTANCE, ACTOR),
)
