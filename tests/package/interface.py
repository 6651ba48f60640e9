#!/usr/bin/env python3
"""interface.py INCLUDE_DIR/seqpar

Rules of the C interface that a compiler does not check: no call has more than eight arguments (a versioned structure
holds the rest), handles are created by ...Create and freed by ...Destroy, every versioned structure has an initializer
with its size as first field, and every call, type, field and enumerator has a comment.
"""

import pathlib
import re
import sys

MOST_ARGUMENTS = 8
VERBS = re.compile(r"(Open|Close|Free|Make|New|Delete|Alloc|Release)$")
ALLOWED = {"seqparMemAlloc", "seqparMemFree"}  # memory is no handle; NCCL's names
UNPAIRED = {"seqparGroupsCreate"}  # creates communicators, which seqparCommDestroy() frees


def problems(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    names = set()
    for name, arguments in re.findall(r"SEQPAR_API\s+[\w ]+?[ *]+(seqpar\w+)\((.*?)\);", text, flags=re.S):
        names.add(name)
        count = 0 if arguments.strip() in ("", "void") else len(re.sub(r"\([^()]*\)", "", arguments).split(","))
        if count > MOST_ARGUMENTS:
            yield f"{name} has {count} arguments, expected at most {MOST_ARGUMENTS}"
        if VERBS.search(name) and name not in ALLOWED:
            yield f"{name}: expected Create and Destroy for handles"
    for name in names - UNPAIRED:
        made = re.fullmatch(r"(\w+)(Create|Destroy)", name)
        if made and made[1] != "seqparComm" and not {made[1] + "Create", made[1] + "Destroy"} <= names:
            yield f"{name} lacks its counterpart"
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, flags=re.S):
        if not re.match(r"\s*size_t size;\s*unsigned magic;\s*unsigned version;", body):
            continue
        # seqparAttnTile_t is filled by the library, for kernels of the caller.
        if name != "seqparAttnTile_t" and not re.search(
                rf"_INITIALIZER[ \\\n]*\{{[ \\\n]*sizeof\({name}\), SEQPAR_STRUCT_MAGIC, SEQPAR_VERSION_CODE", text):
            yield f"{name} has no initializer"
    if not names:
        yield "no calls found"


def without_comment(text):
    """Calls, types, fields and enumerators without a comment before them or after them on their line."""
    inside = documented = False  # inside a structure or an enumeration; documented: by a comment that ended before
    untold = None  # the error of the current declaration
    lines = iter(text.splitlines())
    for line in lines:
        begins = line.strip()
        comment = begins.startswith("/*")
        trailing = "/**<" in line and not comment
        if "/*" in line:
            while "*/" not in line:
                line = next(lines)
        elif re.match(r"(SEQPAR_API|typedef) ", begins):
            while not re.search(r"[;{]$", line.split("/*")[0].rstrip()):
                line = next(lines)
            trailing = trailing or "/**<" in line
        elif inside and begins and not re.search(r"[;,}]", begins):  # a field of several lines
            trailing = "/**<" in next(lines)
        code = begins.split("/*")[0].strip()
        if inside and code.startswith("}") and untold and not trailing:
            yield untold
        of_interest = re.match(r"(SEQPAR_API|typedef) ", code) or (inside and code and not code.startswith("}"))
        problem = f"no comment: {code}" if of_interest and not (documented or trailing) else None
        if code.endswith("{"):
            untold = problem  # unless there is one behind the closing brace
        elif problem:
            yield problem
        inside = (inside or bool(re.match(r"typedef (struct|enum) \{", code))) and not code.startswith("}")
        documented = comment and not trailing


def check_itself():
    """Each rule finds what breaks it."""
    bad = ("SEQPAR_API int seqparMany(" + ", ".join(f"int a{i}" for i in range(MOST_ARGUMENTS + 1)) + ");"
           "SEQPAR_API int seqparRingOpen(int ring); SEQPAR_API int seqparHalfCreate(int* half);"
           "typedef struct { size_t size; unsigned magic; unsigned version; int x; } seqparBare_t;")
    found = list(problems(bad))
    assert len(found) == 4, found
    bad = ("/** A type. */\ntypedef struct {\n  int a; /**< of two\n            lines */\n  int b;\n  /** c */\n  int c;\n"
           "} seqparX_t;\ntypedef enum {\n  seqparA = 0 /**< a */\n} seqparE_t;\ntypedef int seqparY_t;\nSEQPAR_API int seqparZ(int a,\n   int b);\n")
    found = list(without_comment(bad))
    assert found == ["no comment: int b;", "no comment: typedef enum {", "no comment: typedef int seqparY_t;",
                     "no comment: SEQPAR_API int seqparZ(int a,"], found


if __name__ == "__main__":
    check_itself()
    headers = sorted(pathlib.Path(sys.argv[1]).glob("*.h"))
    texts = [header.read_text() for header in headers]
    found = list(problems("\n".join(texts)))
    found += [f"{header.name}: {problem}" for header, text in zip(headers, texts) for problem in without_comment(text)]
    print("\n".join(found) or f"{len(headers)} headers: ok")
    sys.exit(1 if found else 0)
