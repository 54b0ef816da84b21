"""Settings of Sphinx: Markdown pages, docstrings in NumPy's form, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import spark_timely

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "spark-timely"
author = "the authors of spark-timely"
version = release = spark_timely.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 4
# Members are shown with their class, not in tables of their own.
numpydoc_show_class_members = False
autosummary_generate = False  # numpydoc asks for autosummary, which would write pages for what is Markdown here
autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # numpydoc's sections state them, with shapes and units

html_theme = "pydata_sphinx_theme"
html_title = "spark-timely"
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_theme_options = {
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_prev_next": False,
    "show_toc_level": 3,
    "footer_start": [],
    "footer_end": [],
}

# Shown by its public name; by another one autodoc says no more than what it is an alias of.
spark_timely.Log.__name__ = "Log"


def _lead_to_pages(_app: Sphinx, _page: str, _parent: str, text: list[str]) -> None:
    """Let links of files that lie outside of this folder, and are shown here, lead to pages."""
    text[0] = text[0].replace("](README.md)", "](../index.md)").replace("](docs/", "](/")


def setup(app: Sphinx) -> None:
    """Connect what links need."""
    app.connect("include-read", _lead_to_pages)
