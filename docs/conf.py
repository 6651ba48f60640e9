"""Sphinx's configuration: sphinx-build -W docs build/docs, with sphinx and myst-parser."""

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

project = "seqpar"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
master_doc = "index"
html_theme = "alabaster"
myst_heading_anchors = 3
lexers["layers"] = TextLexer()  # the list in ARCHITECTURE.md that a test reads
