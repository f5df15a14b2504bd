"""Write the generated pages and drawings."""

from pathlib import Path

from pages import sweeps
from pages.configuration import page
from pages.walks import WALKS, draw

Path("docs/configuration.md").write_text(page())
sweeps.PATH.write_text(sweeps.fill_in(sweeps.PATH.read_text()))
for walk in WALKS:
    walk.path.write_text(draw(walk))
