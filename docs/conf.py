"""Sphinx settings of the documentation site; CONTRIBUTING.md has the command that builds it."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import generated  # noqa: E402

import fedpart  # noqa: E402

project = "fedpart"
author = "The fedpart developers"
release = version = fedpart.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["README.md"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "fedpart"
html_show_sphinx = False
html_copy_source = False

add_module_names = False
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_use_rtype = False
nitpicky = True


def setup(app):
    """Writes the generated pages before Sphinx looks for sources."""
    generated.write(DOCS / "reference" / "generated")
    app.connect("missing-reference", generated.resolve)
