#!/usr/bin/env python3
"""links.py SOURCE_DIR: links of the documents to files and headings of the tree have targets, and tables end with an empty line,
without which the next line is a row (docs/reference is generated)."""

import pathlib
import re
import sys


def anchors(path):
    """GitHub's names of a page's headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M):
        heading = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return found


def problems(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"{page}: there is no {target}"
        elif anchor and anchor not in anchors(path):
            yield f"{page}: {path.name} has no heading #{anchor}"
    if re.search(r"\]\([^)]*\)\(", text):
        yield f"{page}: a link with two targets"
    for line in re.findall(r"^\|.*\n(?!\||<!--|\n|\Z)(.*)$", text, flags=re.M):
        yield f"{page}: no empty line between a table and {line[:60]!r}"


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    pages = [page for page in root.rglob("*.md") if not {"build", ".git", "reference"} & set(page.relative_to(root).parts)]
    assert len(pages) > 5, pages
    found = [problem for page in pages for problem in problems(page)]
    print("\n".join(found) or f"{len(pages)} pages: ok")
    sys.exit(1 if found else 0)
