#!/usr/bin/env python3
"""Draws the pictures of docs/algorithms.md and of the design pages: docs/pictures.py [--check]

Writes docs/pictures/*.svg; --check fails if a file differs. A column is a rank, a row is a step, an arrow is a transfer. The
color of a box is the rank that owns the data in it.
"""

import html
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "pictures"
COLORS = ["#cfe2f3", "#d9ead3", "#fff2cc", "#f4cccc", "#d9d2e9", "#fce5cd", "#d0e0e3", "#ead1dc"]
IDLE, LINE, TEXT = "#f3f3f3", "#555555", "#222222"
LABEL, COLUMN, HEIGHT, GAP = 176, 170, 42, 54


def text(x, y, words, size=12, anchor="middle", color=TEXT, weight="normal", halo=False):
    width = 0.62 * size * len(words)
    around = f'<rect x="{x - width / 2:g}" y="{y - size:g}" width="{width:g}" height="{size + 4}" fill="#ffffff"/>' if halo else ""
    return (f'{around}<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')


def box(x, y, width, height, fill, stroke=LINE):
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" stroke="{stroke}"/>'


def page(width, height, body, title):
    style = "font-family: 'DejaVu Sans', Verdana, sans-serif"
    arrow = ('<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             f'<path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/></marker></defs>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" style="{style}" role="img">\n<title>{html.escape(title)}</title>\n{arrow}\n'
            f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n")


class Steps:
    """Ranks side by side, steps from top to bottom."""

    def __init__(self, title, ranks=4, names=None, column=COLUMN):
        self.title, self.ranks, self.column = title, ranks, column
        self.names = names or [f"rank {r}" for r in range(ranks)]
        self.rows = []  # (label, [(words, owner)], [(source, target, words)])

    def row(self, label, cells, arrows=(), note=""):
        self.rows.append((label, cells, list(arrows), note))
        return self

    def center(self, rank):
        return LABEL + self.column * (rank + 0.5)

    def arrow(self, source, target, y, words, count):
        a, b, top, bottom = self.center(source), self.center(target), y + HEIGHT + 1, y + HEIGHT + GAP - 2
        spread = 7 * (target - source) / max(1, self.ranks - 1)
        wrap = abs(target - source) > 1
        path = (f'<path d="M{a + spread:g},{top:g} C{a + spread:g},{top + 26:g} {b - spread:g},{bottom - 26:g} {b - spread:g},'
                f'{bottom:g}" fill="none" stroke="{LINE}" stroke-width="1.2" marker-end="url(#a)"'
                + (' stroke-dasharray="5 3"' if wrap and count <= self.ranks else "") + "/>")
        if not words:
            return path, ""
        share = 0.5 if not wrap else 0.16
        x = a + (b - a) * share
        return path, text(x, top + (30 if not wrap else 17), words, 11, color="#333333", halo=True)

    def draw(self):
        width = LABEL + self.column * self.ranks + 10
        body = [text(self.center(r), 20, self.names[r], 13, weight="bold") for r in range(self.ranks)]
        y = 32
        for label, cells, arrows, note in self.rows:
            for i, line in enumerate(label.split("\n")):
                body.append(text(8, y + 18 + 15 * i, line, 12, "start"))
            for rank, cell in enumerate(cells):
                if cell is None:
                    continue
                words, owner = cell
                fill = IDLE if owner is None else COLORS[owner % len(COLORS)]
                size = self.column - 24
                body.append(box(self.center(rank) - size / 2, y, size, HEIGHT, fill))
                lines = words.split("\n")
                for i, line in enumerate(lines):
                    body.append(text(self.center(rank), y + HEIGHT / 2 + 4 + 14 * (i - (len(lines) - 1) / 2), line, 11.5))
            drawn = [self.arrow(source, target, y, words, len(arrows)) for source, target, words in arrows]
            body += [path for path, _ in drawn] + [label for _, label in drawn if label]
            if note:
                body.append(text(8, y + HEIGHT + GAP / 2 + 4, note, 11, "start", "#777777"))
            y += HEIGHT + (GAP if arrows else 16)
        return page(width, y + 4, body, self.title)


def ring(words, ranks=4):
    return [(r, (r + 1) % ranks, words if r + 1 < ranks else "") for r in range(ranks)]


def all_pairs(words="", ranks=4, groups=None):
    return [(a, b, words) for group in (groups or [range(ranks)]) for a in group for b in group if a != b]


def ring_keys():
    s = Steps("Ring Attention: keys and values rotate")
    for t in range(4):
        s.row(f"step {t}", [(f"Q{r} x K{(r - t) % 4} V{(r - t) % 4}", (r - t) % 4) for r in range(4)], ring("K, V") if t < 3 else ())
    return s


def ring_backward():
    s = Steps("Ring Attention, backward: sums of gradients follow one step behind")
    s.row("step 0", [(f"dQ{r}, dK{r} dV{r}: own part", r) for r in range(4)], ring("K, V"))
    for t in range(1, 4):
        s.row(f"step {t}", [(f"dQ{r} += ...\ndK{(r - t) % 4} dV{(r - t) % 4} += ...", (r - t) % 4) for r in range(4)],
              ring("K, V, dK, dV" if t < 3 else "dK, dV"))
    return s.row("end", [(f"dQ{r} dK{r} dV{r}", r) for r in range(4)])


def pass_q():
    s = Steps("Pass-Q: queries rotate, partial outputs follow one step behind")
    for t in range(4):
        s.row(f"step {t}", [(f"Q{(r - t) % 4} x K{r} V{r}", (r - t) % 4) for r in range(4)],
              ring("Q" if t == 0 else "Q, O" if t < 3 else "O"))
    return s.row("end", [(f"O{r}", r) for r in range(4)])


def double_ring():
    s = Steps("Double ring: windows of two ranks")
    source = [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]
    inner = [(0, 1, "K, V"), (1, 0, ""), (2, 3, "K, V"), (3, 2, "")]
    outer = [(0, 2, "K, V"), (1, 3, ""), (2, 0, "K, V"), (3, 1, "")]
    for t, moves in enumerate((inner, outer, inner, ())):
        s.row(f"step {t}" + ("\n(next window)" if t == 2 else ""), [(f"Q{r} x K{source[t][r]} V{source[t][r]}", source[t][r]) for r in range(4)], moves)
    return s


def gather_keys():
    s = Steps("All-gather of keys and values")
    s.row("own", [(f"K{r} V{r}", r) for r in range(4)], all_pairs(), note="K, V to all ranks")
    return s.row("all keys,\nhead by head", [(f"Q{r} x K V of all", r) for r in range(4)])


def ulysses():
    s = Steps("Ulysses: tokens to heads and back")
    s.row("own tokens", [(f"tokens {r}, heads 0 to 3", r) for r in range(4)], all_pairs(), note="Q, K, V: all-to-all")
    s.row("own head", [(f"all tokens, head {r}\nattention", None) for r in range(4)], all_pairs(), note="O: all-to-all")
    return s.row("own tokens", [(f"O{r}, all heads", r) for r in range(4)])


def usp():
    s = Steps("USP: all-to-all in groups {0 1} {2 3}, rings {0 2} {1 3}")
    s.row("own tokens", [(f"tokens {r}, all heads", r) for r in range(4)], all_pairs(groups=[(0, 1), (2, 3)]),
          note="Q, K, V in the group")
    across = [(0, 2, "K, V"), (2, 0, "K, V"), (1, 3, ""), (3, 1, "")]
    s.row("ring, step 0", [(f"Q{g} x K{g} V{g}\nheads {h}", o) for g, h, o in (("01", "0 1", 0), ("01", "2 3", 0), ("23", "0 1", 2), ("23", "2 3", 2))], across)
    s.row("ring, step 1", [(f"Q{q} x K{k} V{k}\nheads {h}", o) for q, k, h, o in (("01", "23", "0 1", 2), ("01", "23", "2 3", 2), ("23", "01", "0 1", 0), ("23", "01", "2 3", 0))],
          all_pairs(groups=[(0, 1), (2, 3)]), note="O in the group")
    return s.row("own tokens", [(f"O{r}, all heads", r) for r in range(4)])


def mesh():
    s = Steps("Mesh-Attention 2 x 2: Q groups {0 1} {2 3}, KV groups {0 2} {1 3}")
    s.row("step 0", [(f"Q{r} x KV{r}", r) for r in range(4)], [(0, 2, "K, V"), (2, 0, ""), (1, 3, "K, V"), (3, 1, "")],
          note="in KV groups")
    s.row("step 1", [(f"Q{r} x KV{(r + 2) % 4}", (r + 2) % 4) for r in range(4)],
          [(0, 1, "Q"), (1, 0, ""), (2, 3, "Q"), (3, 2, "")], note="in Q groups")
    s.row("step 2", [(f"Q{r ^ 1} x KV{r}\nQ{r ^ 1} x KV{(r + 2) % 4}", r ^ 1) for r in range(4)],
          [(0, 1, "O"), (1, 0, ""), (2, 3, "O"), (3, 2, "")], note="in Q groups")
    return s.row("end", [(f"O{r} merged", r) for r in range(4)])


def dist_attn():
    s = Steps("LightSeq: idle ranks of a causal ring help")
    s.row("step 0", [(f"Q{r} x KV{r}", r) for r in range(4)], [(0, 1, "K, V"), (1, 2, "K, V"), (2, 3, "K, V"), (3, 0, "Q")])
    s.row("step 1", [("Q3 x KV0", 3), ("Q1 x KV0", 0), ("Q2 x KV1", 1), ("Q3 x KV2", 2)], [(0, 3, ""), (0, 2, ""), (1, 3, "")],
          note="K, V: 0 to 2, 1 to 3; O: 0 to 3")
    return s.row("step 2", [("idle", None), ("idle", None), ("Q2 x KV0", 0), ("Q3 x KV1", 1)])


def startrail():
    s = Steps("StarTrail: teams {0 1} {2 3}")
    s.row("own", [(f"Q{r} K{r} V{r}", r) for r in range(4)], all_pairs(groups=[(0, 1), (2, 3)]), note="gather in teams")
    s.row("in the team", [("Q01, KV01", 0), ("Q01, KV01", 0), ("Q23, KV23", 2), ("Q23, KV23", 2)], [(3, 1, "KV23"), (1, 3, "KV01")],
          note="keys to start with")
    s.row("attention", [("Q01 x KV01", 0), ("Q01 x KV23", 2), ("Q23 x KV23", 2), ("Q23 x KV01", 0)],
          all_pairs(groups=[(0, 1), (2, 3)]), note="O: reduce-scatter")
    return s.row("end", [(f"O{r}", r) for r in range(4)])


def ring_self():
    s = Steps("Ring Self-Attention: keys, then values", 3)
    for t in range(3):
        s.row(f"step {t}", [(f"keep K{(r - t) % 3}", (r - t) % 3) for r in range(3)], ring("K" if t < 2 else "V", 3))
    for t in range(3):
        own = (t + 1) % 3
        s.row(f"step {t + 3}", [(f"Q{r} x K{(r - own) % 3} V{(r - own) % 3}", (r - own) % 3) for r in range(3)], ring("V", 3) if t < 2 else ())
    return s


def megatron():
    s = Steps("Megatron-LM: gather tokens, share heads, reduce-scatter")
    s.row("own tokens", [(f"tokens {r}, all heads", r) for r in range(4)], all_pairs(), note="all-gather")
    s.row("own head", [(f"all tokens, head {r}\nattention", None) for r in range(4)], all_pairs(), note="to the tokens' ranks")
    return s.row("own tokens", [(f"O{r}, all heads", r) for r in range(4)])


def zeco():
    s = Steps("ZeCO: one pipelined All-Scan, hidden behind local work")
    s.row("pass 1", [(f"map {r}: A{r}, S{r}", r) for r in range(4)])
    s.row("block 0 of\nthe state", [("x1 = S0", 0), None, None, None], [(0, 1, "block 0")])
    s.row("", [("x1, block 1", 0), ("x2 = A1 x1 + S1", 1), None, None], [(0, 1, "block 1"), (1, 2, "block 0")])
    s.row("meanwhile:\nwork within\nchunks", [None, ("x2, block 1", 1), ("x3 = A2 x2 + S2", 2), None], [(1, 2, "block 1"), (2, 3, "block 0")])
    return s.row("pass 3", [("outputs from x0", 0), ("outputs from x1", 1), ("outputs from x2", 2), ("outputs from x3", 3)])


def lasp1():
    s = Steps("LASP: whole states, one rank after the other")
    s.row("step 0", [("S0, outputs", 0), ("waits", None), ("waits", None), ("waits", None)], [(0, 1, "x1")])
    s.row("step 1", [None, ("A1 x1 + S1, outputs", 1), ("waits", None), ("waits", None)], [(1, 2, "x2")])
    s.row("step 2", [None, None, ("A2 x2 + S2, outputs", 2), ("waits", None)], [(2, 3, "x3")])
    return s.row("step 3", [None, None, None, ("outputs", 3)])


def lasp2():
    s = Steps("LASP-2: all-gather of states")
    s.row("pass 1", [(f"A{r}, S{r}", r) for r in range(4)], all_pairs(), note="A, S to all ranks")
    return s.row("combine,\noutputs", [("x0 = 0", 0), ("x1 = S0", 1), ("x2 from maps 0, 1", 2), ("x3 from maps 0 to 2", 3)])


def oneshot():
    s = Steps("ONESHOT: every map to all later positions")
    s.row("publish", [(f"map {r}", r) for r in range(4)], [(a, b, "") for a in range(4) for b in range(a + 1, 4)])
    return s.row("combine", [("x0", 0), ("x1 = S0", 1), ("x2 from maps 0, 1", 2), ("x3 from maps 0 to 2", 3)])


def transposed():
    s = Steps("TRANSPOSED: shards to their owners and back")
    s.row("maps", [(f"map {r}: shards 0 to 3", r) for r in range(4)], all_pairs(), note="shard i to rank i")
    s.row("combine", [(f"shard {r} of all maps", None) for r in range(4)], all_pairs(), note="x of the shard")
    return s.row("results", [(f"x{r}: shards 0 to 3", r) for r in range(4)])


def doubling():
    s = Steps("DOUBLING: maps of 1, 2, 4 ranks", 6, column=122)
    s.row("round 0", [(f"map {r}", r) for r in range(6)], [(r, r + 1, "") for r in range(5)])
    s.row("round 1", [(f"map {r - 1}" if r else "-", max(0, r - 1)) for r in range(6)], [(r, r + 2, "") for r in range(4)])
    s.row("round 2", [("-" if r == 0 else "map 0" if r == 1 else f"maps {max(0, r - 3)} to {r - 1}", max(0, r - 1)) for r in range(6)], [(r, r + 3, "") for r in range(1, 3)] )
    return s.row("end", [("x0", 0)] + [(f"x{r}", r) for r in range(1, 6)])


def hier():
    s = Steps("HIER: nodes {0 1} {2 3}, shards on two rails")
    s.row("maps", [(f"map {r}", r) for r in range(4)], all_pairs(groups=[(0, 1), (2, 3)]), note="shards in the node")
    s.row("combine", [("shard 0, maps 0 1", 0), ("shard 1, maps 0 1", 0), ("shard 0, maps 2 3", 2), ("shard 1, maps 2 3", 2)],
          [(0, 2, "shard 0"), (1, 3, "shard 1")], note="between nodes")
    s.row("compose", [("x of shard 0", 0), ("x of shard 1", 0), ("x of shard 0", 2), ("x of shard 1", 2)],
          all_pairs(groups=[(0, 1), (2, 3)]), note="x in the node")
    return s.row("results", [(f"x{r}", r) for r in range(4)])


def score_grid(x, y, owners, title, cell=15):
    """The causal scores of 16 tokens, in the color of the rank that holds the query; a key shard's border is a line."""
    n = len(owners)
    body = [text(x + n * cell / 2, y - 8, title, 13, weight="bold")]
    for q in range(n):
        for k in range(n):
            fill = COLORS[owners[q]] if k <= q else "#ffffff"
            body.append(f'<rect x="{x + k * cell:g}" y="{y + q * cell:g}" width="{cell}" height="{cell}" fill="{fill}" stroke="#cccccc" stroke-width="0.6"/>')
    for i in range(1, n):
        if owners[i] != owners[i - 1]:
            body.append(f'<path d="M{x:g},{y + i * cell:g} h{n * cell} M{x + i * cell:g},{y:g} v{n * cell}" stroke="{LINE}" stroke-width="1"/>')
    body.append(f'<rect x="{x}" y="{y}" width="{n * cell}" height="{n * cell}" fill="none" stroke="{LINE}"/>')
    counts = [sum(q + 1 for q in range(n) if owners[q] == r) for r in range(4)]
    body.append(text(x + n * cell / 2, y + n * cell + 20, "scores per rank: " + ", ".join(map(str, counts)), 12))
    return body


LAYOUTS = {"contiguous": [i // 4 for i in range(16)], "zigzag": [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1, 0, 0],
           "striped": [i % 4 for i in range(16)]}


def rectangles():
    body = []
    for i, (name, owners) in enumerate(LAYOUTS.items()):
        body += score_grid(30 + 280 * i, 40, owners, name)
    for r in range(4):
        body += [box(30 + 110 * r, 322, 16, 16, COLORS[r]), text(52 + 110 * r, 335, f"rank {r}", 12, "start")]
    return page(860, 350, body, "Causal scores of 16 tokens on 4 ranks, by layout")


def timeline_rows(rows, x0, y, scale):
    body = []
    for label, spans in rows:
        body.append(text(8, y + 19, label, 12, "start"))
        for start, length, words, color in spans:
            body += [box(x0 + start * scale, y, length * scale, 28, COLORS[color]), text(x0 + (start + length / 2) * scale, y + 19, words, 11)]
        y += 34
    return body, y


def linear_timeline():
    body, y, x0, scale = [], 12, 190, 6
    parts = [("Forward, one GPU (schematic)", [
                ("launch 1", [(0, 40, "pass 1: segment maps", 0)]),
                ("launch 2", [(8, 32, "pass 3: first segments", 1), (40, 48, "pass 3: other segments: outputs", 1)])]),
             ("Backward, one GPU", [
                ("launch 1", [(0, 34, "pass 1 of the forward pass (states)", 0)]),
                ("launch 2", [(12, 34, "pass 1: segment maps of gradients", 2)]),
                ("launch 3", [(24, 26, "sweep: states", 1), (50, 54, "pass 3: gradients, last chunk to first", 3)])]),
             ("Forward, ZECO on two GPUs", [
                ("rank 0, launch 1", [(0, 44, "pass 1, all segments", 0)]),
                ("rank 0, launch 2", [(44, 12, "scan: send", 4)]),
                ("rank 0, launch 3", [(46, 50, "pass 3: outputs (starts before the scan ends)", 1)]),
                ("rank 1, launch 1", [(0, 38, "pass 1", 0)]),
                ("rank 1, launch 2", [(38, 14, "scan: receive", 4)]),
                ("rank 1, launch 3", [(52, 44, "pass 3: outputs", 1)])])]
    for title, rows in parts:
        body.append(text(8, y + 14, title, 13, "start", weight="bold"))
        more, y = timeline_rows(rows, x0, y + 24, scale)
        body += more
        y += 14
    body.append(text(x0, y + 6, "time", 12, "start", "#777777"))
    body.append(f'<path d="M{x0 + 34},{y + 2} h590" stroke="{LINE}" marker-end="url(#a)"/>')
    return page(840, y + 20, body, "Timeline of the passes of linear attention")


PICTURES = {"ring": ring_keys, "ring_backward": ring_backward, "ring_pass_q": pass_q, "double_ring": double_ring,
            "allgather_kv": gather_keys, "ulysses": ulysses, "usp": usp, "mesh": mesh, "dist_attn": dist_attn,
            "startrail": startrail, "ring_self_attention": ring_self, "megatron_sp": megatron, "zeco": zeco, "lasp1": lasp1,
            "lasp2": lasp2, "oneshot": oneshot, "transposed": transposed, "doubling": doubling, "hier": hier,
            "rectangles": rectangles, "linear_timeline": linear_timeline}


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit("usage: docs/pictures.py [--check]")
    FOLDER.mkdir(exist_ok=True)
    for name, function in PICTURES.items():
        made = function()
        svg = made if isinstance(made, str) else made.draw()
        path = FOLDER / f"{name}.svg"
        if not check:
            path.write_text(svg)
        elif not path.exists() or path.read_text() != svg:
            sys.exit(f"{path} differs from docs/pictures.py: run it")


if __name__ == "__main__":
    main()
