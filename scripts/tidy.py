#!/usr/bin/env python3
"""Runs clang-tidy on files, as many at once as there are processors; scripts/tidy.sh calls it.

usage: tidy.py CLANG_TIDY BUILD CHECKS FILE...

A file without findings is not checked again until its preprocessed text (with comments, which may be NOLINT, macros and
includes), its compile command, the checks or clang-tidy change: ~/.cache/seqpar-tidy has an empty file per result."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "seqpar-tidy"


def key(tidy, checks, file, command):
    """The name of the result; None if the file cannot be preprocessed."""
    arguments = shlex.split(command["command"])
    output = arguments.index("-o")
    flags = [x for x in arguments[1:output] + arguments[output + 2:] if x != "-c"]
    clang = str(pathlib.Path(tidy).resolve().with_name("clang"))
    text = subprocess.run([clang, "--driver-mode=g++", *flags, "-E", "-C", "-P", "-dD", "-dI"], cwd=command["directory"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if text.returncode:
        return None
    flags = " ".join(flags).replace(str(ROOT), "")  # clones share results
    version = subprocess.run([tidy, "--version"], stdout=subprocess.PIPE).stdout
    digest = hashlib.sha256()
    configurations = [x.read_bytes() for x in (folder / ".clang-tidy" for folder in pathlib.Path(file).resolve().parents) if x.is_file()]
    for part in (version, *configurations, " ".join(checks).encode(), flags.encode(), text.stdout):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def check(tidy, build, checks, file, command):
    name = key(tidy, checks, file, command) if command else None
    if name and (CACHE / name).exists():
        return 0
    done = subprocess.run([tidy, "--quiet", "-p", build, *checks, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    if name and done.returncode == 0:
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / name).touch()
    return done.returncode


def main():
    tidy, build, checks, *files = sys.argv[1:]
    commands = {os.path.realpath(os.path.join(x["directory"], x["file"])): x
                for x in json.loads((pathlib.Path(build) / "compile_commands.json").read_text())}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        statuses = list(pool.map(lambda file: check(tidy, build, checks.split(), file, commands.get(os.path.realpath(file))), files))
    sys.exit(1 if any(statuses) else 0)


main()
