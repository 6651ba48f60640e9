#!/usr/bin/env python3
"""Summarizes the JSON files of the parts p2p, scan and auto of figures.sh: Markdown tables of times and ratios."""
import json
import pathlib
import sys


def label(size):
    for suffix, unit in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {suffix}"
    return f"{size} B"


def times(path):
    """{(size, pattern or None): {series: us}} of one file."""
    rows = {}
    for row in json.loads(path.read_text())["results"]:
        labels = row["seqpar"]["labels"]
        who = labels.get("by") or ("auto" if labels["algo"].startswith("a:") else labels["algo"])
        rows.setdefault((row["size"], labels.get("pattern")), {})[who] = row["out_of_place"]["time"]
    return rows


def neighbors(path):
    print("| pattern | size | seqpar us | MPI us | MPI / seqpar |\n|---|---|---|---|---|")
    for (size, pattern), row in times(path).items():
        if size in (8, 4 << 10, 64 << 10, 1 << 20, 64 << 20):
            print(f"| {pattern} | {label(size)} | {row['seqpar']:.2f} | {row['mpi']:.2f} | {row['mpi'] / row['seqpar']:.2f} |")


def scans(paths):
    tables = [next(iter(times(path).values())) for path in paths]
    ranks = [path.stem.removeprefix("scan").removesuffix("-2M") for path in paths]
    print("| us | " + " | ".join(f"P = {number}" for number in ranks) + " |\n|---" + "|---" * len(ranks) + "|")
    for who in tables[0]:
        print(f"| {who} | " + " | ".join(f"{table[who]:.0f}" for table in tables) + " |")
    for rival in ("mpi_exscan", "mpi_chain", "mpi_pipe", "lasp2"):
        print(f"| {rival} / auto | " + " | ".join(f"{table[rival] / table['auto']:.2f} x" for table in tables) + " |")


def choices(paths):
    print("| P | size | auto us | best | best us | auto / best |\n|---|---|---|---|---|---|")
    for path in paths:
        for (size, _), row in times(path).items():
            best = min((name for name in row if name != "auto"), key=row.get)
            print(f"| {path.stem.removeprefix('auto')} | {label(size)} | {row['auto']:.1f} | {best} | {row[best]:.1f} "
                  f"| {row['auto'] / row[best]:.2f} |")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: summary.py DIRECTORY")
    folder = pathlib.Path(sys.argv[1])
    if (folder / "p2p.json").exists():
        print("### Neighbors\n")
        neighbors(folder / "p2p.json")
    if paths := sorted(folder.glob("scan*-2M.json")):
        print("\n### All-Scan, 2 MiB, float, diag\n")
        scans(paths)
    if paths := sorted(folder.glob("auto*.json")):
        print("\n### Auto and the best\n")
        choices(paths)


main()
