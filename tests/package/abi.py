#!/usr/bin/env python3
"""abi.py BASELINE C_COMPILER HEADER...

Compares the binary interface that the public headers declare with the one of the baseline, an abidw file, by abidiff. New
functions are welcome; whatever else differs breaks programs that are built already. Where that is meant, CHANGELOG.md
says so, and `UPDATE=1 tests/package/abi.py ...` writes the baseline anew.

The comparison uses a stub library with a function for every declaration: the libraries themselves are built without
type
debug information. symbols.sh checks that the libraries export all declared functions.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

QUIET = ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs"]


def stub(headers):
    """C source that defines what the headers declare."""
    lines = [f'#include "{header}"' for header in headers]
    for header in headers:
        text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.S)
        text = re.sub(r"^\s*#[^\n]*", "", text.replace("\\\n", " "), flags=re.M)
        declared = re.findall(r"SEQPAR_API ([^;{]*?\));", text, flags=re.S)
        if len(declared) != text.count("SEQPAR_API"):
            sys.exit(f"abi: {len(declared)} declarations read of {text.count('SEQPAR_API')} in {header}")
        lines += [f"{' '.join(function.split())} {{ __builtin_trap(); }}" for function in declared]
    return "\n".join(lines) + "\n"


def main(baseline, compiler, *headers):
    if not shutil.which("abidiff"):
        print("skipped: there is no abidiff")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        source, library, now = (pathlib.Path(folder) / name for name in ("stub.c", "libseqpar.so", "now.abi"))
        source.write_text(stub([pathlib.Path(header).resolve() for header in headers]))
        include = pathlib.Path(headers[0]).resolve().parents[1]
        subprocess.run([compiler, "-std=gnu2x", "-g", "-O0", "-w", "-fPIC", "-shared", "-Wl,-soname,libseqpar.so", f"-I{include}",
                        source, "-o", library], check=True)
        target = baseline if os.environ.get("UPDATE") == "1" else now
        subprocess.run(["abidw", *QUIET, "--out-file", target, library], check=True)
        if target == baseline:
            print(f"written: {baseline}")
            return 0
        found = subprocess.run(["abidiff", "--no-added-syms", "--no-show-locs", baseline, now], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(found.stdout or "the interface is the baseline's", end="\n" if not found.stdout else "")
    if found.returncode:
        print("If that is meant: say so in CHANGELOG.md, and run this with UPDATE=1 in the environment:\n  "
              + " ".join(map(str, sys.argv)))
    return 1 if found.returncode else 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
