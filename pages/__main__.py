"""Write the generated pages and drawings."""

from pathlib import Path

from pages.configuration import page
from pages.walks import WALKS, draw

Path("docs/configuration.md").write_text(page())
for walk in WALKS:
    walk.path.write_text(draw(walk))
