"""Sphinx's configuration: sphinx-build -W docs build/docs, with sphinx and myst-parser."""

import pathlib
import re

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

project = "seqpar"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
master_doc = "index"
html_theme = "alabaster"
myst_heading_anchors = 3
lexers["layers"] = TextLexer()  # the list in ARCHITECTURE.md that a test reads


def without_links_outside(app, name, source):
    """Pages link to files of the repository; these are no pages, so the link's text stays. One without a file stays a link,
    of which Sphinx complains."""
    docs = pathlib.Path(app.srcdir)
    folder = (docs / name).parent

    def text_of(match):
        file = (folder / match[2].split("#")[0]).resolve()
        return match[1] if file.exists() and not file.is_relative_to(docs) else match[0]

    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)", text_of, source[0])


def setup(app):
    app.connect("source-read", without_links_outside)
