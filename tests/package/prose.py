#!/usr/bin/env python3
"""prose.py SOURCE_DIR | --self-test: counts constructions that CONTRIBUTING.md ("Text") rules out, in documents and comments.

Fails if a group of GROUPS has more of one construction than its limit per 1,000 words, and prints the lines.
"""

import pathlib
import re
import sys

LIMIT, LIMITS = 0.3, {"make": 1.0}  # per 1,000 words
GROUPS = {  # folders and files that are held to the limits
    "pages": ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"],
    "docs": ["docs"],
    "headers": ["include"],
    "examples": ["examples"],
    "perf": ["perf"],
    "python": ["python"],
    "src": ["src"],
    "kernels": ["kernels"],
    "tests": ["tests"],
    "build": ["CMakeLists.txt", "cmake", "packaging", "scripts", "tools"],
}
SKIPPED = {"docs/reference", "docs/pictures"}

CONSTRUCTIONS = {
    "beside": r"beside|besides",
    "free relative": r"what(?:\s+\w+){0,4}\s+(?:is|are|was|were|has|have|had|do|does)",
    "person for a thing": r"who|whom|whose|whoever|somebody|nobody|everybody|anybody",
    "posture": r"lie|lies|lay|lain|stand|stands|stood",
    "come": r"come|comes|came",
    "begin": r"begin|begins|began|begun",
    "preposition and which": r"(?:of|in|to|for|from)\s+(?:which|whom)",
    "make": r"make|makes|made|making",
    "but for": r"but for|in the place of|of its own|of one's own",
}
PATTERNS = {name: re.compile(rf"\b(?:{words})\b(?!\()", re.I) for name, words in CONSTRUCTIONS.items()}
PATTERNS["pronoun first"] = re.compile(r"(?:^|[.;:]\s)(?:What|Who|Whoever|Of|These|Those|The same|So)\b")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
SCRIPTS = (".py", ".pyi", ".sh", ".cmake")
SOURCES = (".h", ".hpp", ".cuh", ".cu", ".cpp", ".c", ".in")


def document(text):
    """Lines of prose of a Markdown page: without code blocks and code spans."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", " ", line)


def script(text):
    """Comments and docstrings of Python, shell and CMake files."""
    quoted = False
    for number, line in enumerate(text.splitlines(), 1):
        marks = line.count('"""')
        if quoted or marks:
            yield number, line.replace('"""', " ")
        elif "#" in line:
            yield number, line.partition("#")[2]
        quoted ^= marks % 2 == 1


def source(text):
    """Comments of C, C++ and CUDA files."""
    block = False
    for number, line in enumerate(text.splitlines(), 1):
        if block:
            yield number, line.partition("*/")[0]
            block = "*/" not in line
        elif "//" in line:
            yield number, line.partition("//")[2]
        elif "/*" in line:
            rest = line.partition("/*")[2]
            yield number, rest.partition("*/")[0]
            block = "*/" not in rest


def prose_of(path):
    text = path.read_text(errors="replace")
    if path.suffix == ".md":
        return document(text)
    if path.suffix in SCRIPTS or path.name == "CMakeLists.txt":
        return script(text)
    return source(text) if path.suffix in SOURCES else ()


def files_of(root, name):
    path = root / name
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        relative = file.relative_to(root).as_posix()
        if file.is_file() and file != pathlib.Path(__file__).resolve() and not any(relative.startswith(s) for s in SKIPPED):
            yield file


def found_in(line):
    return [name for name, pattern in PATTERNS.items() for _ in pattern.findall(line.strip())]


def problems(root):
    for group, names in GROUPS.items():
        words, hits = 0, {name: [] for name in PATTERNS}
        for file in (file for name in names for file in files_of(root, name)):
            for number, line in prose_of(file):
                words += len(WORD.findall(line))
                for name in found_in(line):
                    hits[name].append(f"  {file.relative_to(root)}:{number}: {line.strip()[:140]}")
        if words == 0:
            yield f"{group}: no prose found in {names}"
        for name, lines in hits.items():
            rate, limit = 1000 * len(lines) / max(words, 1), LIMITS.get(name, LIMIT)
            if rate > limit and len(lines) > 1:  # one occurrence is allowed in small groups
                yield f"{group}: '{name}' {rate:.2f} per 1,000 words, expected at most {limit}:\n" + "\n".join(lines[:40])


def self_test():
    expected = {
        "The data lies beside it.": {"posture", "beside"},
        "What is sent is added.": {"free relative", "pronoun first"},
        "a rank whose peer comes late": {"person for a thing", "come"},
        "a sum, of which one begins": {"preposition and which", "begin"},
        "all but for one are made": {"but for", "make"},
        "done; these are sent": set(), "Done. These are sent": {"pronoun first"}, "calls begin() on it": set(),
        "Each rank sends its state to the next rank.": set()}
    for line, names in expected.items():
        assert set(found_in(line)) == names, (line, found_in(line))
    page = "text `who`\n```\nwho\n```\n    who\nend"
    assert not any(found_in(line) for _, line in document(page))
    assert [line.strip() for _, line in source("int x; // one\n/* two\n three */ int y;")] == ["one", "two", "three"]
    assert [line.strip() for _, line in script('x = 1  # one\n"""two\nthree"""\ny = 2')] == ["one", "two", "three"]


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        found = list(problems(pathlib.Path(sys.argv[1]).resolve()))
        print("\n".join(found) or "ok")
        sys.exit(1 if found else 0)
