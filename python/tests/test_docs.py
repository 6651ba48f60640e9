"""Sphinx builds the pages of docs without a warning: no link without a target, no page that is in no table of contents."""

import subprocess
import sys
import tempfile

import venvs


def main():
    python = venvs.interpreter("docs")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([python, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", f"{folder}/doctrees",
                               venvs.ROOT / "docs", f"{folder}/html"])
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
