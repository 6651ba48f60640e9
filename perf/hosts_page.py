#!/usr/bin/env python3
"""Writes docs/perf/hosts.md from the JSON files of perf/figures.sh: collectives on hosts, blocking and through streams.

    perf/hosts_page.py DIRECTORY > docs/perf/hosts.md
"""
import json
import os
import pathlib
import sys

HEAD = """# Collectives on hosts

Machine: {machine}. {day}.
Ranks are processes; two ranks have a processor each, four ranks share the two. us, medians of 5 loops, operation after
operation. *blocking*: stream `NULL`; *stream*: each operation is enqueued and synchronized; *MPI*: the fastest of the
MPI rows of `--peers` in the run of *blocking*, OpenMPI 4.1.4, pinned with two ranks, `mpi_yield_when_idle` with four.
*ratio*: MPI / blocking; below 1 MPI is faster. One run: from 1 MiB, and with four ranks from 64 KiB, times of a row
differ between runs by up to seven times; *blocking* and *stream* move such data in the same way.

    perf/figures.sh build/host NEW_DIRECTORY collectives && perf/hosts_page.py NEW_DIRECTORY > docs/perf/hosts.md

MPI's exchange of heads and sequence includes no transposition; All-Scan is DIAG in fp32, prefix only.
"""
TABLE = """
| operation | size | blocking, 2 ranks | stream | MPI | ratio | blocking, 4 ranks | stream | MPI | ratio |
|---|---|---|---|---|---|---|---|---|---|"""
OPERATIONS = (("ping-pong", "p2p", "pingpong"), ("shift", "p2p", "shift"), ("All-Scan", "scan", None),
              ("all-gather", "gather", "allgather"), ("sequence to heads", "heads", "to_heads"),
              ("heads to sequence", "heads", "to_sequence"), ("ring step", "ring", "shift"))
OURS = ("seqpar", "auto")


def label(size):
    for suffix, unit in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {suffix}"
    return f"{size} B"


def times(path):
    """{(operation, size): {implementation: us}} of one file; {} without it."""
    rows = {}
    if not path.exists():
        return rows
    for row in json.loads(path.read_text())["results"]:
        labels = row["seqpar"]["labels"]
        who = labels.get("by") or ("auto" if labels["algo"].startswith("a:") else labels["algo"])
        if who != "mpi_pack":
            rows.setdefault((labels.get("pattern") or labels.get("operation"), row["size"]), {})[who] = row["out_of_place"]["time"]
    return rows


def figure(value):
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ours(row):
    return next((row[who] for who in OURS if who in row), None)


def columns(folder, ranks, program, key):
    blocking, stream = (times(folder / f"{program}{ranks}{mode}.json").get(key, {}) for mode in ("", "_stream"))
    mine, mpi = ours(blocking), min((t for who, t in blocking.items() if who not in OURS), default=None)
    ratio = f"{mpi / mine:.2f}" if mine and mpi else ""
    return f"{figure(mine)} | {figure(ours(stream))} | {figure(mpi)} | {ratio}"


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().split("\n")
    name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    virtual = "a virtual machine with " if any(" hypervisor" in line for line in lines) else ""
    amx = " with AMX" if any("amx_bf16" in line for line in lines) else ""
    return f"{virtual}two processors, {name.replace('(R)', '')}{amx}"


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: hosts_page.py DIRECTORY")
    if os.cpu_count() != 2:
        sys.exit(f"hosts_page.py: {os.cpu_count()} processors, expected 2, which the page describes")
    folder = pathlib.Path(sys.argv[1])
    day = (folder / "day.txt").read_text().strip()
    print(HEAD.format(machine=processor(), day=day) + TABLE)
    for name, program, operation in OPERATIONS:
        keys = sorted({key for ranks in (2, 4) for key in times(folder / f"{program}{ranks}.json") if key[0] == operation},
                      key=lambda key: key[1])
        for key in keys:
            print(f"| {name} | {label(key[1])} | " + " | ".join(columns(folder, ranks, program, key) for ranks in (2, 4)) + " |")


main()
