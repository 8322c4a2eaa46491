"""The settings of Sphinx: `make docs`. Nothing is fetched while pages are built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx import addnodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

from _generate import filled

from jupyter_gpuckpt.wire.protocol import package_version

project = "jupyter-gpuckpt"
author = "jupyter-gpuckpt contributors"
copyright = author  # noqa: A001 - Sphinx's own name
version = release = package_version()

extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["_build", "_generate"]
nitpicky = True

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "show_toc_level": 2,
    "show_prev_next": False,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_show_sourcelink = False


def setup(app: Sphinx) -> None:
    """Put the generated parts into the pages, and let the search lead to sections."""
    app.connect("source-read", _fill)
    app.add_transform(EntriesOfSections)


def _fill(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = filled(source[0])


class EntriesOfSections(SphinxTransform):
    """A transform that makes an index entry lead to the section around it, or to the page if it stands before the page's title.

    Index entries are what the search shows first. Sphinx gives each an anchor without content, of which its search shows no excerpt.
    """

    default_priority = 840  # before the entries are collected

    def apply(self, **_: object) -> None:
        """Change the targets of all entries of a page."""
        for node in self.document.findall(addnodes.index):
            target = next(iter(node.parent.get("ids", ())), "")
            node["entries"] = [
                (kind, value, target, main, key) for kind, value, _, main, key in node["entries"]
            ]
