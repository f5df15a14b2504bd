"""Hints at the name that a user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `` (did you mean 'capacity'?)``, or the list of all known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean '{close[0]}'?)" if close else f" (known: {', '.join(names) or 'none'})"


def nearest_path(path: Path) -> str:
    """A hint at the file or directory whose path resembles the missing ``path``; empty if there is none."""
    try:
        if path.exists():
            return ""
        if not path.parent.is_dir():
            return nearest_path(path.parent)
        close = difflib.get_close_matches(path.name, (beside.name for beside in path.parent.iterdir()), n=1)
    except OSError:  # No hint for a user who may not read the directory.
        return ""
    return f" (did you mean '{path.with_name(close[0])}'?)" if close else ""
