"""Runs the library's programs: `python -m seqpar info -t 4`, `python -m seqpar all_scan_perf -t 2`.

Prefers the programs in the package, as in a wheel or an installed tree, and otherwise the first on the PATH.
"""

import os
import pathlib
import shutil
import sys

_PACKAGE = pathlib.Path(__file__).resolve().parent
# A wheel's; an installed tree's, lib/seqpar/python/seqpar -> bin, with one more folder below lib or not.
_FOLDERS = [_PACKAGE / "bin"] + [parent / "bin" for parent in _PACKAGE.parents[3:5]]


def _programs():
    """{"info": path} of the installed programs."""
    found = {}
    for folder in [*map(str, _FOLDERS), *os.environ.get("PATH", "").split(os.pathsep)]:
        here = pathlib.Path(folder or ".")
        for path in [*sorted(here.glob("seqpar_*")), here / "mesh_schedule"]:
            if shutil.which(str(path)):
                found.setdefault(path.name.removeprefix("seqpar_"), str(path))
    return found


def main(arguments):
    programs = _programs()
    name = arguments[0] if arguments else ""
    if name in programs:
        os.execv(programs[name], [programs[name], *arguments[1:]])
    known = ", ".join(sorted(programs)) or "none are installed next to the package or in the PATH"
    if name in ("", "-h", "--help"):
        print(f"usage: python -m seqpar PROGRAM [ARGUMENT...]\n\nPrograms: {known}")
        return 0 if name else 2
    print(f"python -m seqpar: there is no program {name!r}; known: {known}", file=sys.stderr)
    return 2


def info():
    """The seqpar_info command of a wheel."""
    return main(["info", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
