#!/usr/bin/env python3
"""Runs clang-tidy on files, as many at once as there are processors; scripts/tidy.sh calls it.

usage: tidy.py CLANG_TIDY BUILD CHECKS FILE...

Files with equal compile options are checked in batches, each one translation unit, because most of a run's time is for
the headers. Files that do not compile with the others, which happens if they define names that other files define too,
are a batch of their own. A batch with findings is halved, so that each finding is of a file alone. The analyzer
only looks at functions of the main file, so that with its checks each file is a translation unit.

A batch without findings is not checked again until its preprocessed text (with comments, which may be NOLINT, macros
and includes), its compile command, the checks or clang-tidy change: ~/.cache/seqpar-tidy has an empty file per
result."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "seqpar-tidy"
BATCH = 24  # files; more save little, and a changed file is checked with its batch


def options_of(command):
    """The compiler's options, without the names of input and output."""
    arguments = shlex.split(command["command"])
    output = arguments.index("-o")
    return [x for x in arguments[1:output] + arguments[output + 2:] if x not in ("-c", arguments[-1])]


def batches_of(files, commands, batched):
    """Lists of files that are checked together. They depend on the paths only: an added file changes one batch."""
    groups = {}
    for file in files:
        # Kernels have a configuration of their own, and files without a command get clang-tidy's default.
        alone = not batched or file not in commands or (ROOT / "src") not in pathlib.Path(file).parents
        groups.setdefault(file if alone else tuple(options_of(commands[file])), []).append(file)
    for group in groups.values():
        count = 1
        while len(group) > BATCH * count:
            count *= 2
        parts = [[] for _ in range(count)]
        for file in group:
            parts[zlib.crc32(os.path.relpath(file, ROOT).encode()) % count].append(file)
        yield from filter(None, parts)


class Runs:
    def __init__(self, tidy, build, checks, commands, folder):
        self.tidy, self.build, self.checks = tidy, build, checks
        self.commands, self.folder = commands, pathlib.Path(folder)
        self.clang = str(pathlib.Path(tidy).resolve().with_name("clang"))
        self.version = subprocess.run([tidy, "--version"], stdout=subprocess.PIPE).stdout

    def key(self, files, source, options, directory):
        """The name of the result; None if the source cannot be preprocessed."""
        preprocess = [self.clang, "--driver-mode=g++", *options, source, "-E", "-C", "-P", "-dD", "-dI"]
        text = subprocess.run(preprocess, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if text.returncode:
            return None
        configurations = [folder / ".clang-tidy" for folder in pathlib.Path(files[0]).parents]
        # Clones share results.
        names, text = (x.replace(str(ROOT).encode(), b"") for x in (" ".join([*options, *files]).encode(), text.stdout))
        digest = hashlib.sha256()
        rules = [x.read_bytes() for x in configurations if x.is_file()]
        for part in (self.version, *rules, " ".join(self.checks).encode(), names, text):
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()

    def parts(self, *parts):
        return max(map(self.check, filter(None, parts)))

    def check(self, files):
        command = self.commands.get(files[0])
        options, directory = (options_of(command), command["directory"]) if command else ([], None)
        source, arguments = files[0], ["-p", self.build, *self.checks, files[0]]
        if len(files) > 1:
            batch = self.folder / f"{hashlib.sha256(' '.join(files).encode()).hexdigest()}.cpp"
            batch.write_text("".join(f'#include "{file}"\n' for file in files))
            source = str(batch)
            compile_only = [self.clang, "--driver-mode=g++", *options, source, "-fsyntax-only", "-w"]
            tried = subprocess.run(compile_only, cwd=directory, stderr=subprocess.PIPE, text=True, errors="replace")
            if tried.returncode:
                named = [file for file in files if f"\n{file}:" in "\n" + tried.stderr] or files[:1]
                others = [file for file in files if file not in named]
                return self.parts(others, named) if others else self.parts(named[:1], named[1:])
            checks = self.checks[-1] if self.checks else "--checks="
            arguments = [f"--config-file={ROOT / '.clang-tidy'}", f"{checks},-bugprone-suspicious-include", source]
            arguments += ["--", *options]
        name = self.key(files, source, options, directory) if command else None
        if name and (CACHE / name).exists():
            return 0
        done = subprocess.run([self.tidy, "--quiet", *arguments], cwd=directory, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        if done.returncode and len(files) > 1:
            half = len(files) // 2
            return self.parts(files[:half], files[half:])
        sys.stdout.buffer.write(done.stdout)
        sys.stderr.buffer.write(done.stderr)
        if name and done.returncode == 0:
            CACHE.mkdir(parents=True, exist_ok=True)
            (CACHE / name).touch()
        return abs(done.returncode)


def main():
    tidy, build, checks, *files = sys.argv[1:]
    build = os.path.realpath(build)
    commands = {os.path.realpath(os.path.join(x["directory"], x["file"])): x
                for x in json.loads((pathlib.Path(build) / "compile_commands.json").read_text())}
    files = [os.path.realpath(file) for file in files]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = Runs(tidy, build, checks.split(), commands, folder)
        statuses = list(pool.map(runs.check, batches_of(files, commands, "-clang-analyzer-*" in checks)))
    sys.exit(1 if any(statuses) else 0)


main()
