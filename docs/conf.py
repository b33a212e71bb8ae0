"""How Sphinx builds the documentation; `tools/site` runs it."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

project = "guestmark"
author = "the guestmark authors"
copyright = "the guestmark authors"  # noqa: A001 - Sphinx's name for it
html_title = "guestmark"

extensions = ["myst_parser", "tools.reference"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
suppress_warnings: list[str] = []

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["guestmark.css"]
templates_path = ["_templates"]
smartquotes = False  # "--option" stays what it is
html_copy_source = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False
pygments_style = "default"
pygments_dark_style = "github-dark"
html_theme_options = {
    "top_of_page_buttons": [],
    "footer_icons": [],
}

_AT_THE_ROOT = re.compile(r"\]\(\.\./\.\./([A-Z]+\.md)")


def _to_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to the files of the checkout's root lead to the pages that include them."""
    source[0] = _AT_THE_ROOT.sub(r"](../project/\1", source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _to_the_site)
