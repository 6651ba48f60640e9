"""Tests of Trainer, SFTTrainer and accelerate with sharded sequences: clients.py in the environment with their packages."""

import pathlib
import subprocess
import sys

import venvs


def main():
    python = venvs.interpreter()
    script = pathlib.Path(__file__).with_name("clients.py")
    sys.exit(subprocess.run([python, script, *sys.argv[1:]], env=venvs.environment()).returncode)


if __name__ == "__main__":
    main()
