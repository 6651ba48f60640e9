"""Tests of generate() with a sharded cache: generation.py in the environment with transformers."""

import pathlib
import subprocess
import sys

import venvs


def main():
    python = venvs.interpreter()
    script = pathlib.Path(__file__).with_name("generation.py")
    sys.exit(subprocess.run([python, script, *sys.argv[1:]], env=venvs.environment()).returncode)


if __name__ == "__main__":
    main()
