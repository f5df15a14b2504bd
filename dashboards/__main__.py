"""Writes the dashboards as JSON to the folder that docker-compose.yml mounts into Grafana."""

from __future__ import annotations

import json
from pathlib import Path

from dashboards import DASHBOARDS

FOLDER = Path(__file__).parent.parent / "docker" / "grafana" / "dashboards"


def main() -> None:
    for dashboard in DASHBOARDS:
        text = json.dumps(dashboard.json(), indent=2, ensure_ascii=False) + "\n"
        (FOLDER / f"{dashboard.uid}.json").write_text(text)


if __name__ == "__main__":
    main()
