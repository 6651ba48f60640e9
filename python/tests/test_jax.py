"""Tests of seqpar.jax: jax_checks.py with two devices of the CPU, and what depends on their number with three."""

import pathlib
import subprocess
import sys
import tempfile

import venvs

CHECKS = pathlib.Path(__file__).resolve().parent / "jax_checks.py"


def main():
    python, failed = venvs.interpreter("jax"), 0
    with tempfile.TemporaryDirectory() as cache:  # the handlers are compiled anew
        for arguments in (["2"], ["3", "collectives"]):
            failed |= subprocess.run([python, CHECKS, *arguments], env=venvs.environment(SEQPAR_CACHE=cache),
                                     timeout=900).returncode
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
