"""How Sphinx makes the site of these pages: `make docs`."""

from ultramon.version import __version__

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
copybutton_exclude = ".linenos, .gp, .go"
