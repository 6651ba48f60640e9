"""scripts/docs.sh builds the site without a warning: no missing link target, no page outside the table of contents, and every
public function of the headers and of the type stubs has its entry."""

import pathlib
import re
import subprocess
import sys
import tempfile

import venvs


def main():
    with tempfile.TemporaryDirectory() as folder:
        status = subprocess.run([venvs.ROOT / "scripts" / "docs.sh", folder]).returncode
        if status:
            sys.exit(status)
        missing = []
        pages = {path.name: path.read_text() for path in (pathlib.Path(folder) / "reference").glob("*.html")}
        for header in sorted((venvs.ROOT / "include" / "seqpar").glob("*.h")):
            page = pages[header.name.replace(".", "_") + ".html"]
            for name in re.findall(r"^SEQPAR_API [^;]*?\b(seqpar\w+)\(", header.read_text(), re.M):
                missing += [] if f'id="{name.lower()}"' in page else [name]
        for stub in sorted((venvs.ROOT / "python" / "seqpar").rglob("[!_]*.pyi")) + sorted(
                (venvs.ROOT / "python" / "seqpar").rglob("__init__.pyi")):
            parts = stub.relative_to(venvs.ROOT / "python").with_suffix("").parts
            module = ".".join(part for part in parts if part != "__init__")
            for name in re.findall(r"^(?:def|class) ([a-zA-Z]\w*)", stub.read_text(), re.M):
                page = pages.get(module.replace(".", "_") + ".html", "")
                missing += [] if f'id="{module}.{name}"' in page else [f"{module}.{name}"]
        print("\n".join(f"no entry: {name}" for name in missing) or "ok")
        sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
