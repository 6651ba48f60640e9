#!/usr/bin/env python3
"""Writes docs/PERFORMANCE.md and the figures in README.md from the tables in docs/perf, so that no figure stands in two
places by hand.

    perf/performance_page.py [--check]

--check changes nothing and fails if the pages are not what the tables give. A table is taken where a comment before it
says how:

    <!-- headline: title=All-Scan, 4 GPUs; group=GPUs; size=size; ours=auto; peers=A + B; limit=C; rows=1 KiB / 1 MiB -->

Columns are named by their headings, or by #number; of several columns the least counts. `scale` makes microseconds of
the table's unit. `by=row` takes a table whose rows are the contenders and whose columns are the sizes. Of the rows, those
in `front` stand in README.md too, beside the peers that `beside` names.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PERF, PAGE, FRONT = ROOT / "docs" / "perf", ROOT / "docs" / "PERFORMANCE.md", ROOT / "README.md"
FRONT_BEGIN, FRONT_END = (f"<!-- made by perf/performance_page.py: {end} -->" for end in ("begin", "end"))
MOST_LINES = 120

HEAD = """# Performance

Times of collectives on hosts and GPUs, beside the fastest alternative that was measured with them, and the least time
that the links allow. Written by `perf/performance_page.py` from the tables in `docs/perf`, which have the commands,
the other sizes and what was measured beside; [perf/notes.md](perf/notes.md) says what bounds the figures and what was
tried.

Every result was compared exactly with its definition, without a wrong element, unless its table says otherwise.

## Machines

- **Hosts**: a virtual machine with four processors of an AMD EPYC (Zen 4, 32 MiB of L3 cache as the guest sees it), of
  which two were used unless a table says otherwise; Linux 6.18, OpenMPI 4.1.4, UCX 1.13.1. It was not idle: ratios of
  one run are worth more than times.
- **GPUs**: two or four NVIDIA H200 of one host, NVLink between all; CUDA 13.0, NCCL 2.28.9 with `NCCL_NVLS_ENABLE=0`;
  ranks are threads, one a GPU. Of 8 GPUs there is softmax attention alone; several hosts were not measured.

*ours* is the library's time, us. *best peer*: the fastest of the alternatives of the same table. *ratio*: peer over
ours, so above 1 ours is faster. *limit*, where the table has one: the copy engine alone, the links' latency and
bandwidth, half of one GPU's time, or the same attention without exchange. Times of attention on hosts are the
processor's.
"""

TAIL = """
Other movements: [mesh.md](perf/mesh.md); matrix products on hosts: [host_products.md](perf/host_products.md).

![All-Scan on four GPUs, time against size](all_scan_4gpus.svg)

## Reproduce

    perf/figures.sh build/host NEW_DIRECTORY         # hosts: two processors, ranks of mpirun
    perf/figures_gpu.sh build/cuda NEW_DIRECTORY     # 2 to 8 GPUs of one host

Each table's own command stands above it in `docs/perf`; `perf/README.md` says what the binaries' columns mean.
"""


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def number(cell):
    match = re.match(r"-?\d+(\.\d+)?", cell.replace("*", ""))
    return float(match[0]) if match else None


def least(row, columns):
    found = [value for value in (number(row[column]) for column in columns) if value is not None]
    return min(found) if found else None


class Table:
    """A headline of one file: its fields, and the table that follows."""

    def __init__(self, path, comment, lines):
        self.path = path
        self.fields = dict(part.strip().split("=", 1) for part in comment.split(";"))
        self.heading = cells(lines[0])
        self.body = [cells(line) for line in lines[2:]]

    def column(self, name):
        if name.startswith("#"):
            return int(name[1:])
        if self.heading.count(name) != 1:
            raise SystemExit(f"performance_page: {self.path.name}: {self.fields['title']}: no single column '{name}'")
        return self.heading.index(name)

    def columns(self, field):
        return [self.column(name.strip()) for name in self.fields[field].split(" + ")] if field in self.fields else []

    def rows(self):
        """(size, ours, best peer, limit)"""
        if self.fields.get("by") == "row":
            return self.rows_of_columns()
        sizes, ours, peers, limits = (self.columns(field) for field in ("size", "ours", "peers", "limit"))
        wanted = [name.strip() for name in self.fields["rows"].split(" / ")]
        found = []
        for row in self.body:
            size = " ".join(row[column] for column in sizes)
            size = re.sub(r" \(.*\)", "", size)
            if size in wanted:
                wanted.remove(size)
                scale = float(self.fields.get("scale", 1))
                values = [least(row, columns) if columns else None for columns in (ours, peers, limits)]
                found.append((size, *(None if value is None else scale * value for value in values)))
        if wanted:
            raise SystemExit(f"performance_page: {self.path.name}: {self.fields['title']}: no rows {wanted}")
        return found

    def rows_of_columns(self):
        lines = {row[0]: row for row in self.body}
        peers = [lines[name.strip()] for name in self.fields["peers"].split(" + ")]
        return [(size, number(lines[self.fields["ours"]][i]), min(number(row[i]) for row in peers), None)
                for i, size in enumerate(self.heading) if i > 0]


def tables():
    for path in sorted(PERF.glob("*.md")):
        lines = path.read_text().split("\n")
        for i, line in enumerate(lines):
            match = re.fullmatch(r"<!-- headline: (.*) -->", line)
            if not match:
                continue
            begin = next(j for j in range(i, len(lines)) if not lines[j].startswith("<!--"))
            end = next(j for j in range(begin, len(lines)) if not lines[j].startswith("|"))
            yield Table(path, match[1], lines[begin:end])


def figure(value):
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def page():
    text = HEAD
    for group in ("hosts", "GPUs"):
        text += f"\n## {group[0].upper() + group[1:]}\n\n"
        text += "| collective | size of a rank | ours, us | best peer, us | ratio | limit, us |\n|---|---|---|---|---|---|\n"
        for table in tables():
            if table.fields["group"] != group:
                continue
            title = f"[{table.fields['title']}](perf/{table.path.name})"
            for size, ours, peer, limit in table.rows():
                text += f"| {title} | {size} | {figure(ours)} | {figure(peer)} | {peer / ours:.2f} | {figure(limit)} |\n"
                title = ""
    text += TAIL
    if text.count("\n") > MOST_LINES:
        raise SystemExit(f"performance_page: {text.count(chr(10))} lines, expected at most {MOST_LINES}: name fewer rows")
    return text


def with_unit(us):
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{figure(us)} us"


def front():
    """README.md with its table of figures made again."""
    lines = ["| | size | ours | best peer | ratio | beside |", "|---|---|---|---|---|---|"]
    for table in sorted(tables(), key=lambda table: "attention" not in table.path.name):
        wanted = [name.strip() for name in table.fields.get("front", "").split(" / ") if name.strip()]
        for size, ours, peer, _ in table.rows():
            if size in wanted:
                title = f"[{table.fields['title']}](docs/perf/{table.path.name})"
                lines.append(f"| {title} | {size} | {with_unit(ours)} | {with_unit(peer)} | {peer / ours:.1f} | "
                             f"{table.fields['beside']} |")
    before, _, rest = FRONT.read_text().partition(FRONT_BEGIN)
    _, _, after = rest.partition(FRONT_END)
    return before + "\n".join([FRONT_BEGIN, *lines, FRONT_END]) + after


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        for path, text in ((PAGE, page()), (FRONT, front())):
            if path.read_text() != text:
                raise SystemExit(f"{path.relative_to(ROOT)} is not what docs/perf gives: run perf/performance_page.py")
    elif sys.argv[1:]:
        raise SystemExit("usage: perf/performance_page.py [--check]")
    else:
        PAGE.write_text(page())
        FRONT.write_text(front())
