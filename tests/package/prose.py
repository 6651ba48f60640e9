#!/usr/bin/env python3
"""prose.py SOURCE_DIR | --self-test: counts constructions that CONTRIBUTING.md ("Text") rules out, in documents and comments.

Fails if a group of GROUPS has more of one construction than its limit per 1,000 words, if an identifier of C++ or CUDA
contains a word of IDENTIFIER_WORDS, or if the name of a test contains a word of NAME_WORDS, and prints the lines.
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
IDENTIFIER_FOLDERS = ["include", "src", "kernels", "perf", "tests", "tools", "examples"]
IDENTIFIER_EXEMPT = ("src/attn/linear", "kernels/attn/linear")  # and files of the linear kernels' tests, by name
IDENTIFIER_WORDS = frozenset("""asks beside bell came comes goes gone lies meets nobody settle settled somebody stands spoil
    theirs told travel traveller travellers travels who whoever whom wish""".split())
NAME_WORDS = re.compile(r"\b(?:who|whom|whoever|nobody|somebody|everybody|anybody|what|beside|lies?|stands?|stood|"
                        r"comes?|came|begins?|began|begun|goes|goes on|went|gone|travels?|told|stranger|strangers|in words|"
                        r"gives? up|forgets?|forgotten|that is none|is not there|which there)\b", re.I)
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|#include[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", re.S)
CATCH_NAME = re.compile(r"(?:TEST_CASE|SECTION)\w*\(\s*\"([^\"]*)\"")
CTEST_NAME = re.compile(r"(?:add_test\(NAME|seqpar_script_test\() ?\"([^\"]*)\"")
PYTHON_NAME = re.compile(r"^ *def (\w+)\(", re.M)
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


def identifiers_found(text):
    """(line, identifier) of identifiers with a word of IDENTIFIER_WORDS, outside of comments and strings."""
    code = NOT_CODE.sub(lambda match: "\n" * match.group().count("\n") + " ", text)
    for match in IDENTIFIER.finditer(code):
        if IDENTIFIER_WORDS & {part.lower() for part in PART.findall(match.group())}:
            yield code.count("\n", 0, match.start()) + 1, match.group()


def test_names_found(path, text):
    """Names of tests with a word of NAME_WORDS."""
    if path.suffix in SOURCES:
        names = CATCH_NAME.findall(text)
    elif path.name == "CMakeLists.txt":
        names = CTEST_NAME.findall(text)
    else:
        names = PYTHON_NAME.findall(text) if path.suffix == ".py" and path.parent.name in ("tests", "torch_checks") else []
    return [name for name in names if NAME_WORDS.search(name.replace("_", " "))]


def name_problems(root):
    for file in (file for name in [*IDENTIFIER_FOLDERS, "python"] for file in files_of(root, name)):
        relative = file.relative_to(root).as_posix()
        if file.suffix not in (*SOURCES, ".py") and file.name != "CMakeLists.txt":
            continue
        text = file.read_text(errors="replace")
        for name in test_names_found(file, text):
            yield f"{relative}: the test name '{name}' has a word that CONTRIBUTING.md rules out: {NAME_WORDS.search(name.replace('_', ' ')).group()}"
        if file.suffix in SOURCES and not relative.startswith(IDENTIFIER_EXEMPT) and "linear" not in file.name:
            for line, identifier in identifiers_found(text):
                yield f"{relative}:{line}: the identifier {identifier} has a word that CONTRIBUTING.md rules out"


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

    found = list(identifiers_found("// told\nint toldOnce; /* who\n */ Bell bell_; f(\"whom\");\n#include <who.h>\nint kWho, whole, doorbell;"))
    assert found == [(2, "toldOnce"), (3, "Bell"), (3, "bell_"), (5, "kWho")], found
    assert test_names_found(pathlib.Path("a.cpp"), 'TEST_CASE("who is late") SECTION("a late rank is named")') == ["who is late"]
    assert test_names_found(pathlib.Path("CMakeLists.txt"), 'add_test(NAME "a: beside" COMMAND what)') == ["a: beside"]
    assert test_names_found(pathlib.Path("tests/a.py"), "def what_is_sent(x):\n  def sends(): pass") == ["what_is_sent"]


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        root = pathlib.Path(sys.argv[1]).resolve()
        found = [*problems(root), *name_problems(root)]
        print("\n".join(found) or "ok")
        sys.exit(1 if found else 0)
