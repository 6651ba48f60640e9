#!/usr/bin/env python3
"""Draws time against size from the JSON of perf binaries (-J): a panel for each problem, a line for each series.

usage: plot.py FILE.json [-o PICTURE]    (PICTURE: FILE.svg; .png and .pdf work as well)
"""
import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")  # there may be no display
import matplotlib.pyplot as plt  # noqa: E402

STYLES = {"library": {"linestyle": "-", "marker": "o"}, "peer": {"linestyle": "--", "marker": "s"},
          "limit": {"linestyle": ":", "marker": "", "color": "gray"}}


def lines(results):
    """{panel: {(kind, series): [(bytes, us), ...]}} of what can be drawn on logarithmic axes."""
    panels = {}
    for row in results:
        ours, size = row["seqpar"], row["size"]
        out = row["out_of_place"]
        us = out.get("time", out.get("cpu_time"))
        if size > 0 and us is not None and us > 0:
            panels.setdefault(ours["panel"], {}).setdefault((ours["kind"], ours["series"]), []).append((size, us))
    return panels


def label(size, _position=None):
    for factor, unit in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= factor:
            return f"{size / factor:g}{unit}"
    return f"{size:g}"


def draw(data, title):
    panels = lines(data["results"])
    if not panels:
        raise SystemExit(f"{title}: no row has a size and a time above 0")
    figure, axes = plt.subplots(1, len(panels), figsize=(7 * len(panels), 5), squeeze=False)
    for axis, (panel, series) in zip(axes[0], panels.items()):
        for (kind, name), points in series.items():
            axis.plot(*zip(*sorted(points)), label=name, linewidth=1.2, markersize=4, **STYLES[kind])
        axis.set(title=panel, xlabel="bytes", ylabel="us")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_formatter(label)
        axis.grid(True, which="major", alpha=0.4)
        axis.legend(fontsize="small")
    ours = data["seqpar"]
    ranks = len(data["config"]["devices"])
    device = data["config"]["devices"][0]["device_info"]
    figure.suptitle(f"{ours['program']}: {ranks} ranks, {device}\n{ours['config']['mode']}", fontsize="medium")
    figure.tight_layout()
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, help="the picture (FILE with the suffix .svg)")
    arguments = parser.parse_args()
    output = arguments.output or arguments.file.with_suffix(".svg")
    draw(json.loads(arguments.file.read_text()), arguments.file.name).savefig(output)
    print(output)


if __name__ == "__main__":
    main()
