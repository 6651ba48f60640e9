#!/usr/bin/env python3
"""Writes the pages of collectives on hosts from the JSON files of perf/figures.sh, blocking and through streams.

    perf/hosts_page.py DIRECTORY > docs/perf/hosts.md
    perf/hosts_page.py DIRECTORY --each "MACHINE" > docs/perf/hosts_many_processors.md
"""
import argparse
import json
import math
import os
import pathlib
import sys

HEAD = """# Collectives on hosts

Machine: {machine}. {day}.
Ranks are processes; two ranks have a processor each, four ranks share the two. All have real-time priority, so that
other programs do not interrupt them. us, medians of 5 loops of up to 1000 operations, one after the other; *blocking*:
stream `NULL`; *stream*: each operation is enqueued and synchronized, after a barrier; *MPI*: the fastest of the MPI
rows of `--peers` in the run of *blocking*, OpenMPI 4.1.4, pinned with two ranks, `mpi_yield_when_idle` with four.
*ratio*: MPI / blocking; below 1 MPI is faster. One run: rows from 4 MiB on differ between runs by up to 1.5 times, as
other virtual machines use the same memory. A cache line takes 3 times as long between the processors in some minutes as
in others, for MPI too: with two ranks, all-gather of 256 B takes 0.15 or 0.51 us by seqpar, 0.22 or 0.56 by MPI.
In six such runs, the shift of 8 B with four ranks had ratios of 0.83, 0.90, and 1.04 to 1.12: MPI is faster where ranks
0 and 2 share a processor ([placements](notes/2026-11-28-hosts-calls.md#shift-with-four-ranks-on-two-processors)). No
other row was behind MPI in a run.

    chrt -f 10 perf/figures.sh build/host NEW_DIRECTORY collectives
    perf/hosts_page.py NEW_DIRECTORY > docs/perf/hosts.md

MPI's exchange of heads and sequence includes no transposition; MPI with packing takes {packed} times as long as ours
with 2 and 4 ranks (geometric means). The geometric means of *ratio* are {means}. All-Scan is DIAG in fp32, prefix
only.
"""
EACH_HEAD = """# Collectives on hosts with a processor for each rank

Machine: {machine}.
{day}. Ranks are processes, each on a processor of its own. us, medians of 5 loops, operation after
operation. *blocking*: stream `NULL`; *stream*: each operation is enqueued and synchronized; *MPI*: the fastest of the
MPI rows of `--peers` in the run of *blocking*, OpenMPI 4.1.6 through shared memory; *ratio*: MPI / blocking; below 1
MPI is faster.

    perf/figures.sh build/host NEW collectives
    perf/hosts_page.py NEW --each "MACHINE" > docs/perf/hosts_many_processors.md

This run bound ranks by `taskset` and gave mpirun `--mca pml ob1 --mca btl vader,self`, otherwise as the first command.
MPI's exchange of heads and sequence includes no transposition; MPI with packing takes {packed} times as long
as ours with 2, 4 and 8 ranks (geometric means). The geometric means of *ratio* are {means}.
All-Scan is DIAG in fp32, prefix only. In these loops ranks run ahead of each other, which favors chains: `auto` chooses
for a single call, and takes ONESHOT at 64 B (8 ranks, after a barrier: 2.7 us; CHAIN 3.3, MPI 5.2; without: CHAIN 0.53).
"""


def table(ranks):
    return ("\n| operation | size |" + "".join(f" blocking, {n} ranks | stream | MPI | ratio |" for n in ranks)
            + "\n|---|---|" + "---|---|---|---|" * len(ranks))


OPERATIONS = (("ping-pong", "p2p", "pingpong"), ("shift", "p2p", "shift"), ("All-Scan", "scan", None),
              ("all-gather", "gather", "allgather"), ("sequence to heads", "heads", "to_heads"),
              ("heads to sequence", "heads", "to_sequence"), ("ring step", "ring", "shift"))
OURS = ("seqpar", "auto")


def label(size):
    for suffix, unit in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {suffix}"
    return f"{size} B"


def times(path, packed=False):
    """{(operation, size): {implementation: us}} of one file; {} without it. `packed`: MPI's rows with packing only."""
    rows = {}
    if not path.exists():
        return rows
    for row in json.loads(path.read_text())["results"]:
        labels = row["seqpar"]["labels"]
        who = labels.get("by") or ("auto" if labels["algo"].startswith("a:") else labels["algo"])
        if packed and who == "mpi":
            continue
        if packed or who != "mpi_pack":
            rows.setdefault((labels.get("pattern") or labels.get("operation"), row["size"]), {})[who] = row["out_of_place"]["time"]
    return rows


def figure(value):
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ours(row):
    return next((row[who] for who in OURS if who in row), None)


def ratio(row):
    mine, mpi = ours(row), min((t for who, t in row.items() if who not in OURS), default=None)
    return mpi / mine if mine and mpi else None


def columns(folder, ranks, program, key):
    blocking, stream = (times(folder / f"{program}{ranks}{mode}.json").get(key, {}) for mode in ("", "_stream"))
    mpi = min((t for who, t in blocking.items() if who not in OURS), default=None)
    share = ratio(blocking)
    return f"{figure(ours(blocking))} | {figure(ours(stream))} | {figure(mpi)} | {'' if share is None else f'{share:.2f}'}"


def mean(folder, ranks, programs, packed=False):
    """The geometric mean of the ratios."""
    found = [share for program in programs for row in times(folder / f"{program}{ranks}.json", packed).values()
             if (share := ratio(row))]
    return math.exp(sum(map(math.log, found)) / len(found))


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().split("\n")
    name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    virtual = "a virtual machine with " if any(" hypervisor" in line for line in lines) else ""
    amx = " with AMX" if any("amx_bf16" in line for line in lines) else ""
    return f"{virtual}two processors, {name.replace('(R)', '')}{amx}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--each", metavar="MACHINE", help="each rank has a processor of this machine")
    args = parser.parse_args()
    folder = args.directory
    if not args.each and os.cpu_count() != 2:
        sys.exit(f"hosts_page.py: {os.cpu_count()} processors, expected 2, which the page describes, or --each")
    day = (folder / "day.txt").read_text().strip()
    ranks = (2, 4, 8) if args.each else (2, 4)
    programs = sorted({program for _, program, _ in OPERATIONS})
    means, packed = (", ".join(f"{mean(folder, n, *how):.2f}" for n in ranks) for how in ((programs,), (["heads"], True)))
    head = EACH_HEAD if args.each else HEAD
    print(head.format(machine=args.each or processor(), day=day, means=means, packed=packed) + table(ranks))
    for name, program, operation in OPERATIONS:
        keys = sorted({key for n in ranks for key in times(folder / f"{program}{n}.json") if key[0] == operation},
                      key=lambda key: key[1])
        for key in keys:
            print(f"| {name} | {label(key[1])} | " + " | ".join(columns(folder, n, program, key) for n in ranks) + " |")


main()
