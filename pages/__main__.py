"""Write the generated pages and drawings."""

from pathlib import Path

from pages.configuration import page
from pages.settings_tables import TABLES, fill_in
from pages.walks import WALKS, draw

Path("docs/configuration.md").write_text(page())
for path, model in TABLES.items():
    path.write_text(fill_in(path.read_text(), model))
for walk in WALKS:
    walk.path.write_text(draw(walk))
