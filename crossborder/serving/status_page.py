"""The page of an acting service for people on its host: who is connected, and how the policies do; and its health.

Threads of the metrics' server answer, while the event loop writes what they read. Each value is read whole; two values
of one page may be a moment apart.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from common.wire.address import is_loopback, name_peer
from common.wire.owners import is_strangers_peer
from common.wire.tokens import WITHOUT_NAME
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.session import Session
from crossborder.serving.sessions import Sessions
from learner.ingest.refusals import quantile_between

REFRESH_SECONDS: Final = 5
WINDOW_SECONDS: Final = 10
"""Rates and times are those of the last so many seconds."""
HUNG_SECONDS: Final = 30.0
"""The event loop has done nothing for so long: the service is not healthy."""
MOST_ROWS: Final = 500
"""Sessions on the page."""
_HEADERS: Final = [
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
]
_PAGE: Final = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{refresh}">
<meta name="viewport" content="width=device-width"><title>acting service</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }}
table {{ border-collapse: collapse; margin: .5em 0 2em }}
th, td {{ text-align: left; padding: .3em 1.2em .3em 0; border-bottom: 1px solid #ddd }}
@media (prefers-color-scheme: dark) {{ body {{ color: #ddd; background: #181818 }} th, td {{ border-color: #444 }} }}
</style></head><body><h1>Acting service</h1>
<p>{summary}</p>
<h2>Policies</h2>
{policies}
<h2>Sessions</h2>
{sessions}
<p>Rates and times are those of the last {window} s; all else counts from the start.
This page reloads itself every {refresh} s.</p></body></html>
"""
_POLICY_COLUMNS: Final = (
    *("policy", "from", "opt steps", "lanes", "newer policies"),
    *("actions/s", "median ms", "99 of 100 ms", "episodes", "return"),
)
_SESSION_COLUMNS: Final = ("client", "policy", "door", "lanes", "steps", "since (UTC)", "connection")
Environ = dict[str, Any]
Start = Callable[..., Any]


class _Look(NamedTuple):
    """What a policy had counted at a moment."""

    at: float
    actions: int
    answers: list[tuple[float, int]]


class StatusPage:
    """Answers for ``/`` and ``/healthz``; both are WSGI applications.

    Args:
        sessions: of the service.
        clock: seconds, monotonic.
    """

    def __init__(self, sessions: Sessions, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions, self._clock = sessions, clock
        self._began = clock()
        self._beat: float | None = None
        self._looks = {name: deque[_Look](maxlen=WINDOW_SECONDS + 1) for name in sessions.policies}

    def tick(self) -> None:
        """Note that the event loop works, and once a second how much was counted; called a few times a second."""
        self._beat = now = self._clock()
        for name, looks in self._looks.items():
            if not looks or now >= looks[-1].at + 1:
                figures = self._sessions.policies[name].figures
                looks.append(_Look(now, figures.actions, [*figures.answer_seconds.buckets()]))

    def tell_health(self, _: Environ, start: Start) -> Iterable[bytes]:
        """Whether clients are served, for load balancers and watchdogs: whoever reaches the port may know that."""
        is_well = self._beat is not None and self._clock() < self._beat + HUNG_SECONDS
        if is_well and not self._sessions.is_stopping:
            return _answer(start, HTTPStatus.OK, "serving\n")
        return _answer(start, HTTPStatus.SERVICE_UNAVAILABLE, "not serving\n")

    def show(self, environ: Environ, start: Start) -> Iterable[bytes]:
        """The page, for this user and root on this host alone: it names clients."""
        if not _is_own(environ):
            return _answer(
                start,
                HTTPStatus.FORBIDDEN,
                "the status page is for the service's own user, on its own host: "
                f"ssh -L {environ['SERVER_PORT']}:127.0.0.1:{environ['SERVER_PORT']} HOST\n",
            )
        return _answer(start, HTTPStatus.OK, self._write(), "text/html")

    def _write(self) -> str:
        found, now = self._sessions.all(), self._clock()
        connected = sum(session.hang_up is not None for session in found)
        summary = (
            f"{len(found)} sessions, {connected} of them connected; {self._sessions.used_lanes} lanes. "
            f"It has served for {_span(now - self._began)}."
        )
        return _PAGE.format(
            refresh=REFRESH_SECONDS,
            window=WINDOW_SECONDS,
            summary=escape(summary),
            policies=_table(
                _POLICY_COLUMNS,
                [self._policy_row(policy) for policy in self._sessions.policies.values()],
            ),
            sessions=_table(
                _SESSION_COLUMNS,
                [_session_row(session, now) for session in found[:MOST_ROWS]],
            )
            + (f"<p>and {len(found) - MOST_ROWS} more</p>" if len(found) > MOST_ROWS else ""),
        )

    def _policy_row(self, policy: ServedPolicy) -> Sequence[object]:
        looks, figures = tuple(self._looks[policy.name]), policy.figures
        rate, median, late = "", "", ""
        if len(looks) > 1:
            first, last = looks[0], looks[-1]
            rate = f"{(last.actions - first.actions) / (last.at - first.at):,.0f}"
            median, late = (_milliseconds(quantile_between(first.answers, last.answers, q)) for q in (0.5, 0.99))
        returned = f"{figures.return_sum / figures.episodes:.4g}" if figures.episodes else ""
        newer = f"{figures.taken_up:,} taken up, {figures.not_taken_up:,} refused"
        return (
            *(policy.name, policy.source, f"{policy.player.opt_steps:,}", policy.connected_lanes, newer),
            *(rate, median, late, f"{figures.episodes:,}", returned),
        )


def _session_row(session: Session, now: float) -> Sequence[object]:
    is_connected = session.hang_up is not None
    since = datetime.fromtimestamp(session.opened_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    silence = _span(now - session.silent_since)
    return (
        *("" if session.owner in WITHOUT_NAME else session.owner, session.policy.name, session.door),
        *(len(session.lanes), f"{session.last_seq:,}", since),
        f"open, silent for {silence}" if is_connected else f"none for {silence}",
    )


def _is_own(environ: Environ) -> bool:
    """Whether a request comes from this user or root, on this host, and not from a page that a browser shows here.

    Such a page may have a name of its own that leads to this host (DNS rebinding), which is then in ``Host``.
    """
    host = str(environ["REMOTE_ADDR"]).removeprefix("::ffff:")
    try:
        asked = urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname or ""
    except ValueError:
        return False
    if not (is_loopback(host) and is_loopback(asked)):
        return False
    return not is_strangers_peer(name_peer(host, environ["REMOTE_PORT"]), int(environ["SERVER_PORT"]))


def _answer(start: Start, status: HTTPStatus, text: str, kind: str = "text/plain") -> Iterable[bytes]:
    body = text.encode()
    headers = [("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(body)))]
    start(f"{status.value} {status.phrase}", [*headers, *_HEADERS])
    return [body]


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in HTML. Every cell is escaped, since some of them come from clients and files."""

    def line(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + "\n".join([line(names, "th"), *(line(row, "td") for row in rows)]) + "</table>"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2g}"


def _span(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0, seconds):.0f} s"
