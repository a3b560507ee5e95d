"""The documentation as a site: `make docs`.

The repository is the folder of its sources, so that pages link to notebooks and files as they do
when they are read there.
"""

import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import nbpipe

sys.path.insert(0, str(Path(__file__).parent / "site"))
import docstrings
import pictures

from notebooks import PLOTLY_JS

project = "nbpipe"
version = release = nbpipe.__version__
copyright = "the nbpipe developers"  # noqa: A001 - Sphinx calls it so

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
extensions += ["sphinx_copybutton"]  # a button at each block
include_patterns = [
    "docs/*.md",
    "docs/api/*.md",
    "notebooks/*.ipynb",
    "benchmarks/README.md",
    "js/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "RELEASE.md",
    "SECURITY.md",
]
root_doc = "docs/index"

# -- pages -----------------------------------------------------------------------------------------
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

# -- notebooks: as they are stored (site/notebooks.py) ---------------------------------------------
nb_custom_formats = {".ipynb": "notebooks.read"}
nb_execution_mode = "off"
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "text/html", 0)]

# -- reference: from the docstrings ----------------------------------------------------------------
default_role = "code"  # what stands in single backticks
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# -- looks -----------------------------------------------------------------------------------------
html_theme = "pydata_sphinx_theme"
html_title = "nbpipe"
html_favicon = "site/static/icon.svg"  # without one a browser asks for /favicon.ico
html_static_path = ["site/static", str(PLOTLY_JS)]
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_extra_path = ["site/root"]  # its index.html leads to docs/index.html
templates_path = ["site/templates"]
html_sidebars = {"**": ["contents.html"]}
html_theme_options: dict[str, Any] = {
    "navigation_with_keys": False,
    "navbar_center": [],
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


# -- contents: what the first page links to, under its headings ------------------------------------
_LINK = re.compile(r"\]\(([^)#:]+)\.(?:md|ipynb)\)")
_FURTHER = tuple(
    f"../{name}"
    for name in (
        "CONTRIBUTING",
        "RELEASE",
        "SECURITY",
        "CHANGELOG",
        "benchmarks/README",
        "js/README",
    )
)


def _add_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Give the first page a hidden table of contents, made of its own lists."""
    if page != root_doc:
        return
    heading, found = "", []
    for line in source[0].splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        found += [(heading, target) for target in _LINK.findall(line)]
    reference = (Path(__file__).parent / "reference.md").read_text(encoding="utf-8")
    found += [("Reference", target) for target in _LINK.findall(reference)]
    found += [("Project", target) for target in _FURTHER]
    for caption, group in groupby(found, key=lambda pair: pair[0]):
        targets = "\n".join(target for _, target in group)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{targets}\n```"


def _show_for_theme(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Have the page's theme choose its pictures; `notebooks.read` does so in notebooks."""
    source[0] = pictures.themed(source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    docstrings.connect(app)
    app.connect("source-read", _add_contents)
    app.connect("source-read", _show_for_theme)
