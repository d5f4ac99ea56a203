"""How Sphinx makes the site of these pages: `make docs`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ultramon.version import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "ultramon"
author = "The ultramon maintainers"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_external_toc",
]
exclude_patterns = ["_build"]
external_toc_path = "_toc.yml"

myst_heading_anchors = 4
# Links to files of the repository beside these pages lead nowhere on the site.
suppress_warnings = ["myst.xref_missing"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"

html_theme = "furo"
html_title = f"ultramon {release}"
html_show_sphinx = html_show_sourcelink = html_copy_source = False
html_static_path = ["_static"]
html_js_files = [("pictures.js", {"defer": "defer"})]
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Sphinx) -> None:
    """Copy the pictures: pages name them in HTML, and Sphinx only knows those of Markdown."""
    pictures = Path(__file__).parent / "img"
    app.connect(
        "build-finished",
        lambda app, _: shutil.copytree(pictures, Path(app.outdir) / "img", dirs_exist_ok=True),
    )
