"""Holds the includes of src/ and kernels/ against the list of layers in docs/ARCHITECTURE.md, and asks for a README.md.

A line of the list is `folder: what it may include`, in names from src/ or beginning with kernels/. It may name lines
below it only, so that there can be no cycle; every arrow that it names must exist, so that the list
stays true. A name with * is all folders that it matches and that have no line of their own.
Usage: layers.py SOURCE_TREE. With --self-test: that each kind of mistake is found.
"""
import fnmatch
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SOURCES = re.compile(r"\.(h|cpp|cu|cuh|cu\.in)$")


def read_layers(text):
    block = re.search(r"^```layers\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    if not block:
        return None
    layers = {}
    for line in block[1].splitlines():
        name, _, below = line.partition(":")
        for one in name.split(","):
            layers[one.strip()] = below.split()
    return layers


def folder_of(path):
    parts = pathlib.PurePosixPath(path).parent.parts
    return "/".join(parts[1:] if parts[0] == "src" else parts)


def line_of(folder, layers):
    """The name of a folder's line; the folder if there is none."""
    return folder if folder in layers else next((name for name in layers if "*" in name and fnmatch.fnmatch(folder, name)), folder)


def find_problems(files, layers, documented):
    """files: path -> text, of src/ and kernels/. documented: folder -> lines of its README.md; None without one."""
    order = list(layers)
    used = set()
    for name, below in layers.items():
        for other in below:
            if other not in layers:
                yield f"the list of layers lets {name} include {other}, which it does not have"
            elif order.index(other) <= order.index(name):
                yield f"the list of layers lets {name} include {other}, which does not stand below it"
    for path, text in sorted(files.items()):
        folder = folder_of(path)
        here = line_of(folder, layers)
        if here not in layers:
            yield f"{path}: the list of layers has no {here}"
            continue
        for included in INCLUDE.findall(text):
            if included.startswith("seqpar/"):
                continue
            target = next((name for name in (included, "src/" + included) if name in files), None)
            if target is None or "/" not in included:
                yield f'{path}: "{included}" is no file of src/ or kernels/ by its path from there'
                continue
            if folder_of(target) == folder:
                continue
            there = line_of(folder_of(target), layers)
            used.add((here, there))
            if there not in layers[here]:
                yield f'{path}: includes "{included}", but the list of layers lets {here} include only: ' + (
                    " ".join(layers[here]) or "nothing")
    for name, below in layers.items():
        for other in below:
            if (name, other) not in used:
                yield f"the list of layers lets {name} include {other}, which nothing there does"
    for folder, lines in sorted(documented.items()):
        if lines is None:
            yield f"{folder} has no README.md"
        elif folder != "perf" and not 2 <= lines <= 14:
            yield f"{folder}/README.md has {lines} lines, expected about ten (2 to 14)"


def check_tree(root):
    paths = [p for top in ("src", "kernels") for p in (root / top).rglob("*") if SOURCES.search(p.name)]
    files = {p.relative_to(root).as_posix(): p.read_text() for p in paths}
    documented = {}
    whole = ("src", "kernels", "tests", "perf")  # of these, every folder; of the others one page tells of all
    for top in (*whole, "cmake", "examples", "include", "packaging", "python", "scripts", "tools"):
        for folder in [root / top, *(p for p in (root / top).rglob("*") if p.is_dir() and top in whole)]:
            if not any(p.is_file() and p.suffix != ".pyc" for p in folder.iterdir()):
                continue
            readme = folder / "README.md"
            lines = len(readme.read_text().splitlines()) if readme.exists() else None
            documented[folder.relative_to(root).as_posix()] = lines
    layers = read_layers((root / "docs/ARCHITECTURE.md").read_text())
    if not layers or not files:
        return ["docs/ARCHITECTURE.md has no list of layers, or there are no sources"]
    return list(find_problems(files, layers, documented))


def self_test():
    layers = {"api": ["base"], "base": []}
    right = {"src/api/a.cpp": '#include "base/b.h"\n', "src/base/b.h": "#include <vector>\n"}
    if list(find_problems(right, layers, {"src": 5})):
        return "a tree without a mistake was refused"
    more = {**right, "src/api/x/c.cpp": '#include "base/b.h"'}
    if list(find_problems(more, {"api/*": ["base"], **layers}, {})):
        return "a folder of a line with * was refused"
    wrong = {
        "upwards": ({**right, "src/base/b.h": '#include "api/a.cpp"'}, layers, {}),
        "a cycle in the list": (right, {"api": ["base"], "base": ["api"]}, {}),
        "an arrow that is not used": ({"src/api/a.cpp": "", "src/base/b.h": ""}, layers, {}),
        "a folder that the list lacks": ({**right, "src/new/c.cpp": ""}, layers, {}),
        "an include that does not name the tree": ({**right, "src/api/c.cpp": '#include "a.cpp"'}, layers, {}),
        "an include of a folder behind a *": ({**right, "src/api/x/c.cpp": '#include "api/a.cpp"'}, {"api/*": ["base"], **layers}, {}),
        "no README": (right, layers, {"src/api": None}),
        "a long README": (right, layers, {"src/api": 40}),
    }
    for what, case in wrong.items():
        if not list(find_problems(*case)):
            return f"not found: {what}"
    return None


if __name__ == "__main__":
    if sys.argv[1] == "--self-test":
        sys.exit(self_test())
    problems = check_tree(pathlib.Path(sys.argv[1]))
    print("\n".join(problems) or "all includes follow the list of layers, and every folder has its README.md")
    sys.exit(1 if problems else 0)
