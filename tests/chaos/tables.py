"""The figures of the exercises as tables in ``docs/reliability.md``: ``python -m tests.chaos.tables``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.chaos.report import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def _result(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    loaded: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return loaded


def _table(head: str, rows: Iterable[Iterable[object]]) -> str:
    titles = head.split(" | ")
    lines = [titles, ["---"] + ["--:"] * (len(titles) - 1), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rows() -> str:
    names = {
        "kills": f"{_result('kills').get('kills', 0)} random kill -9",
        "partition": "partition",
        "address": "another address",
        "serving": "an acting service and its clients",
    }
    found = {title: _result(name) for name, title in names.items() if _result(name)}
    # Results of release 0.1 count items.
    rows = [
        [title, f"{r.get('rows', r.get('items')):,}", *(r[key] for key in ("lost", "doubled", "disordered", "torn"))]
        for title, r in found.items()
    ]
    return _table("exercise | rows | lost | doubled | disordered | torn", rows)


def _recovery() -> str:
    kills = _result("kills").get("recovery_seconds", {})
    rows = [[f"kill -9 of {who}", f"{took['median']:.1f}", f"{took['worst']:.1f}"] for who, took in kills.items()]
    for name, title in (("partition", "partition over"), ("address", "learner has moved")):
        if result := _result(name):
            rows.append([title, f"{result['recovery_seconds']:.1f}", ""])
    return _table("after | all go on within s, median | worst", rows)


def _standby() -> str:
    titles = {"alone": "without `--standby`", "standby": "`--standby`"}
    rows = [
        [f"{victim}, {title}", took["kills"], f"{took['median']:.1f}", f"{took['worst']:.1f}"]
        for victim in ("trainer", "ingest")
        for name, title in titles.items()
        if (took := _result("recovery").get(name, {}).get(victim))
    ]
    return _table("kill -9 of | kills | all go on within s, median | worst", rows)


_LOSS_SECONDS = ("lost_seconds", "back_seconds", "back_seconds_of_two")


def _host_loss() -> str:
    rows = [
        [
            f"`acknowledge: {acknowledge}`",
            *(found[key] for key in ("losses", "rivals", "torn", "doubled")),
            "not counted" if found["acknowledged_lost"] is None else found["acknowledged_lost"],
            *(f"{found[key]['median']:.1f}, {found[key]['worst']:.1f}" for key in _LOSS_SECONDS),
        ]
        for acknowledge, found in _result("host_loss").items()
    ]
    counts = "losses | with two learners | torn | doubled | acknowledged and lost"
    seconds = "lost s: median, worst | back s | back s, two learners"
    return _table(f"run | {counts} | {seconds}", rows)


def _resume() -> str:
    rows = [
        [
            *(f"{run[key]:,.0f}" for key in ("seed", "score", "opt_steps")),
            ", ".join(f"{at:,}" for at in run["resumed_at"]),
            run["records"],
        ]
        for run in _result("resume").get("runs", [])
    ]
    return _table("seed | score | opt steps | killed, resumed at | records, all equal", rows)


def _power() -> str:
    rows = [
        [f"{cut['seconds']:.0f}", f"{cut['stored']:,}", f"{cut['lost']:,}"] for cut in _result("power").get("taken", [])
    ]
    return _table("cut after s | items ever stored | lost of the newest", rows)


def _soak() -> str:
    rows = [
        [name, f["resident_mib"], f["kib_a_minute"], f["files_at_first"], f["files_at_last"]]
        for name, f in _result("soak").get("processes", {}).items()
    ]
    return _table("process | resident MiB | KiB a minute | open files, settled | at the end", rows)


def _shutdown() -> str:
    rows = [[state, f"{seconds:.1f}"] for state, seconds in _result("shutdown").get("end_seconds", {}).items()]
    return _table("SIGTERM during | all ended after s", rows)


def _storm() -> str:
    r = _result("storm")
    rows = (
        [[r["actors"], *(f"{r[key]:.1f}" for key in ("joined_seconds", "pushed_seconds")), r["refused"]]] if r else []
    )
    return _table("actors at once | all joined after s | all had pushed after s | refused beyond them", rows)


def _fuzz() -> str:
    rows = [[outcome, f"{count:,}"] for outcome, count in _result("fuzz").get("outcomes", {}).items()]
    return _table("outcome | messages", rows)


def _serving() -> str:
    rows = [
        [fault, took["times"], f"{took['median']:.1f}", f"{took['worst']:.1f}"]
        for fault, took in _result("serving").get("faults", {}).items()
    ]
    return _table("fault | times | all act and train after s, median | worst", rows)


def _doors() -> str:
    found = {kind: each["outcomes"] for kind, each in _result("doors").items() if isinstance(each, dict)}
    rows = [[kind, outcome, f"{count:,}"] for kind, outcomes in found.items() for outcome, count in outcomes.items()]
    return _table("bytes | outcome | messages", rows)


def _agreement() -> str:
    rows = [
        [name, f"{counts['taken']:,}", f"{counts['refused']:,}"]
        for name, counts in _result("agreement").get("outcomes", {}).items()
    ]
    return _table("format | taken by both | refused by our reader", rows)


def _siege() -> str:
    rows = [
        [pace, f"{found['alone']:,.0f}", f"{found['attacked']:,.0f}", f"{100 * found['share']:.0f} %"]
        for pace, found in _result("siege").get("rates", {}).items()
    ]
    return _table("two | items/s alone | attacked | share", rows)


TABLES = {
    "rows": _rows,
    "recovery": _recovery,
    "standby": _standby,
    "host_loss": _host_loss,
    "resume": _resume,
    "power": _power,
    "soak": _soak,
    "shutdown": _shutdown,
    "storm": _storm,
    "serving": _serving,
    "fuzz": _fuzz,
    "doors": _doors,
    "agreement": _agreement,
    "siege": _siege,
}


def filled(page: str) -> str:
    """The page with each table made anew."""
    for name, table in TABLES.items():
        page = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table()}\n\g<2>", page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
