"""Write the generated pages and drawings."""

from pathlib import Path

from pages import door, samples
from pages.configuration import page
from pages.settings_tables import TABLES, fill_in
from pages.walks import WALKS, draw

Path("docs/configuration.md").write_text(page())
for path, model in TABLES.items():
    path.write_text(fill_in(path.read_text(), model))
for path in door.find_pages().values():
    path.write_text(door.fill_page(path.read_text()))
door.INDEX.write_text(door.fill_index(door.INDEX.read_text()))
for path in samples.find_samples():
    path.write_text(samples.fill_in(path.read_text()))
for walk in WALKS:
    walk.path.write_text(draw(walk))
