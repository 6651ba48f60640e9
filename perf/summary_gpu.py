#!/usr/bin/env python3
"""Summarizes the JSON files that figures_gpu.sh wrote: Markdown tables of times and ratios."""
import json
import math
import pathlib
import sys


def label(size):
    for suffix, unit in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {suffix}"
    return f"{size} B"


def names(row):
    """A row's identity except its size: its panel and its series. `row`: labels."""
    if "pass" in row:
        return " ".join(row[key] for key in ("mask", "pass") if key in row), " ".join(
            row[key].lstrip("*") for key in ("shape", "by") if key in row)
    if "by" in row:
        return row.get("pattern") or f"{row['type']} {row['operation']}", row["by"]
    who = "auto" if row["algo"].startswith("a:") else row["algo"]
    if who == "nccl_chain":
        who += f" K={row['K']}"
    return f"{row['type']} {row['op']} {row['dir']}", who


def tables(data):
    """{panel: {size: {series: us}}}; the choice of auto is under "choice"."""
    found = {}
    for row in data["results"]:
        labels = row["seqpar"]["labels"]
        panel, who = names(labels)
        times = found.setdefault(panel, {}).setdefault(row["size"], {})
        times[who] = row["out_of_place"]["time"]
        if who == "auto":
            times["choice"] = labels["algo"][2:]
    return found


def least(times, wanted):
    """The fastest of the wanted series: (us, series)."""
    return min(((us, who) for who, us in times.items() if wanted(who)), default=(float("nan"), "-"))


def is_peer(who):
    return who.startswith("nccl")


def is_algorithm(who):
    return not is_peer(who) and not who.startswith("limit") and who not in ("auto", "choice")


def cell(number):
    """Two decimals; "-" for a value that was not measured."""
    return "-" if math.isnan(number) else f"{number:.2f}"


def scans(sizes):
    print("| size | auto us | chose | best | auto / best | best peer | its us | peer / auto | LASP-2 / auto | chain's limit | any limit |")
    print("|---" * 11 + "|")
    for size, times in sizes.items():
        auto = times.get("auto", float("nan"))
        best, who = least(times, is_algorithm)
        peer, rival = least(times, is_peer)
        lasp2 = times.get("nccl_lasp2", float("nan"))
        numbers = peer, peer / auto, lasp2 / auto, *(times.get(name, float("nan")) for name in ("limit:chain", "limit:any"))
        print(f"| {label(size)} | {cell(auto)} | {times.get('choice', '-')} | {'-' if math.isnan(best) else f'{who} {best:.2f}'} "
              f"| {cell(auto / best)} | {rival} | " + " | ".join(map(cell, numbers)) + " |")


def neighbors(sizes):
    print("| size | seqpar us | NCCL us | copy engine us | NCCL / seqpar | copy / seqpar |\n|---|---|---|---|---|---|")
    for size, times in sizes.items():
        ours, nccl, copy = (times.get(name, float("nan")) for name in ("seqpar", "nccl", "copy"))
        numbers = ours, nccl, copy, nccl / ours, copy / ours
        print(f"| {label(size)} | " + " | ".join(map(cell, numbers)) + " |")


def plainly(sizes):
    everybody = list(dict.fromkeys(who for times in sizes.values() for who in times))
    print("| size | " + " | ".join(f"{who} us" for who in everybody) + " |\n" + "|---" * (1 + len(everybody)) + "|")
    for size, times in sizes.items():
        print(f"| {label(size)} | " + " | ".join(f"{times[who]:.1f}" if who in times else "-" for who in everybody) + " |")


SHAPES = {"all_scan_perf": scans, "sendrecv_perf": neighbors}


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: summary_gpu.py DIRECTORY")
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        data = json.loads(path.read_text())
        config, limits = data["seqpar"]["config"], data["seqpar"].get("limits")
        link = f", flag {limits['alpha_us']:.2f} us, stores {limits['bandwidth_bytes_per_s'] / 1e9:.0f} GB/s" if limits else ""
        mode = "isolated" if config["barrier"] else "back to back"
        print(f"### {path.stem}: {config['nranks']} ranks, {mode}{', graph' if config['graph'] else ''}{link}; "
              f"wrong elements: {data['out_of_bounds']['count']}\n")
        for panel, sizes in tables(data).items():
            print(f"{panel}\n")
            SHAPES.get(data["seqpar"]["program"], plainly)(sizes)
            print()


main()
