"""Whether the files of a release agree: ``python -m pages.release v0.4.0``, before the tag is pushed."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import yaml


def find_faults(tag: str, root: Path = Path()) -> list[str]:
    """What does not fit a tag such as ``v0.4.0``: versions that files name, and the files in ``dist``."""
    version = tag.removeprefix("v")
    headings = re.findall(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    found = {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"],
        "CITATION.cff": yaml.safe_load((root / "CITATION.cff").read_text())["version"],
        "the first heading of CHANGELOG.md": headings[0] if headings else "none",
    }
    faults = [f"{place}: expected {version}, found {other}" for place, other in found.items() if other != version]
    files = {path.name for path in (root / "dist").glob("*")}
    expected = {f"crossborder-{version}-py3-none-any.whl", f"crossborder-{version}.tar.gz"}
    if files != expected:
        faults.append(f"dist: expected {sorted(expected)}, found {sorted(files)}")
    return faults


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("expected the tag of the release, such as v0.4.0")
    if faults := find_faults(sys.argv[1]):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
