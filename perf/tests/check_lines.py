#!/usr/bin/env python3
"""Runs a perf binary with each line of a file, on hosts, and checks its exit status and its verdict on the results.

usage: check_lines.py FILE PROGRAM
"""
import os
import pathlib
import subprocess
import sys


def trouble(program, status, arguments):
    """The error of a run, or None."""
    run = subprocess.run([program, *arguments], capture_output=True, text=True,
                         env={**os.environ, "SEQPAR_PERF_DEVICE": "host"})
    if run.returncode != status:
        return f"exit status {run.returncode}, expected {status}\n{run.stdout}{run.stderr}"
    if status != 0:
        return None if run.stderr.count("\n") == 1 and "option -" in run.stderr else f"no clear reason: {run.stderr}"
    rows = [line for line in run.stdout.splitlines() if line and not line.startswith("#")]
    checked = "not checked" if "-c 0" in " ".join(arguments) else "OK"
    if not rows or f"# Out of bounds values : 0 {checked}" not in run.stdout:
        return f"no rows, or not all of them right\n{run.stdout}{run.stderr}"
    return None


def main():
    lines, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    failed = 0
    for line in lines.read_text().splitlines():
        if line.startswith("#"):
            continue
        status, *arguments = line.split()
        problem = trouble(program, int(status), arguments)
        if problem:
            failed += 1
            print(f"{pathlib.Path(program).name} {' '.join(arguments)}: {problem}")
    sys.exit(failed > 0)


main()
