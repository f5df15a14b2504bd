"""Write the generated pages."""

from pathlib import Path

from pages.configuration import page

Path("docs/configuration.md").write_text(page())
