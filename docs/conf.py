"""Sphinx configuration; scripts/docs.sh builds the site with sphinx, myst-parser and furo."""

import importlib.util
import pathlib
import re
import sys

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

DOCS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))
import generate  # noqa: E402

version = ".".join(re.search(rf"#define SEQPAR_VERSION_{part}\s+(\d+)", (DOCS.parent / "include/seqpar/types.h").read_text())[1]
                   for part in ("MAJOR", "MINOR"))
project = "seqpar"
html_title = f"seqpar {version}"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
master_doc = "index"
myst_heading_anchors = 4
myst_enable_extensions = ["fieldlist"]
html_theme = "furo" if importlib.util.find_spec("furo") else "alabaster"
if html_theme == "furo":
    html_theme_options = {"announcement": f"seqpar {version}: before 1.0 every minor version may change the interface. "
                                          "See the <em>changelog</em>.", "navigation_with_keys": True}
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
add_module_names = False
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
suppress_warnings = ["ref.python"]  # names of torch and jax in signatures
lexers["layers"] = TextLexer()  # the list in ARCHITECTURE.md, which a test reads


def with_site_links(app, name, source):
    """Links to other files of the repository lead to their generated pages; without one, the text stays. A link to a missing
    file stays a link, so that Sphinx reports it."""
    folder = (DOCS / name).parent

    def link(match):
        target, _, anchor = match[2].partition("#")
        file = (folder / target).resolve()
        page = generate.relative(folder, file)
        if page:
            return f"[{match[1]}]({page}{'#' + anchor if anchor else ''})"
        return match[1] if file.exists() else match[0]

    if not name.startswith("reference/"):
        source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)", link, source[0])


def setup(app):
    generate.write_pages()
    app.connect("source-read", with_site_links)
