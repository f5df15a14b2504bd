"""Writes the dashboards as TypeScript of Grafana's own types, for ``tsc`` to check: ``make dashboards-types``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dashboards import DASHBOARDS
from dashboards.dashboard import Dashboard

_CONFIG = "@grafana/schema/dist/esm/raw/composable/{kind}/panelcfg/x/{name}PanelCfg_types.gen.d.ts"
_KINDS = {"stat": "Stat", "timeseries": "TimeSeries", "table": "Table"}
_FIELDS = {"stat": "object", "timeseries": "TimeSeries.FieldConfig", "table": "Table.FieldConfig"}

# JSON has the values of Grafana's enumerations, not their names.
_HEADER = """\
import type * as grafana from '@grafana/schema';
{imports}

type Plain<T> = unknown extends T ? T : T extends string ? `${{T}}` : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[] : {{ [K in keyof T]: Plain<T[K]> }};
// titleFormat is the Prometheus source's own.
type Annotation = grafana.AnnotationQuery<grafana.DataQuery & {{ expr: string }}> & {{ titleFormat: string }};
type Dashboard = Omit<grafana.Dashboard, 'annotations'> & {{ annotations: {{ list: Annotation[] }} }};
type Panel<Options, Field> = Omit<grafana.Panel, 'options' | 'fieldConfig'>
  & {{ options: Partial<Options>; fieldConfig: grafana.FieldConfigSource<Partial<Field>> }};
"""


def typescript(dashboard: Dashboard) -> str:
    """The dashboard as a constant of type ``Dashboard``, and each panel as a constant of its own panel type."""
    whole = dashboard.json()
    imports = (
        f"import type * as {name} from '{_CONFIG.format(kind=kind, name=name)}';" for kind, name in _KINDS.items()
    )
    panels = [
        f"export const panel{panel['id']}: Plain<Panel<{_KINDS[panel['type']]}.Options, {_FIELDS[panel['type']]}>> = "
        f"{json.dumps(panel)};"
        for panel in whole["panels"]
        if panel["type"] != "row"
    ]
    constant = f"export const dashboard: Plain<Dashboard> = {json.dumps(whole)};"
    return "\n".join([_HEADER.format(imports="\n".join(imports)), constant, *panels]) + "\n"


def main(folder: Path) -> None:
    for dashboard in DASHBOARDS:
        (folder / f"{dashboard.uid}.ts").write_text(typescript(dashboard))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
