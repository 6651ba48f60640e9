"""Slices of a mask that is given row by row."""

import dataclasses

_UNBOUNDED = -2 ** 63, 2 ** 63 - 1


@dataclasses.dataclass
class Band:
    """Consecutive rows with one run of keys each. The start (end) of the run stays if `starts` (`ends`) has 0, and moves by
    one key a row if it has 1; after one row both are possible."""

    row: int
    first: tuple
    last: tuple
    rows: int = 1
    starts: frozenset = frozenset((0, 1))
    ends: frozenset = frozenset((0, 1))

    def takes(self, start, end):
        """Adds a row with this run if it continues the band."""
        starts, ends = self.starts & {start - self.last[0]}, self.ends & {end - self.last[1]}
        if not starts or not ends:
            return False
        self.rows, self.last, self.starts, self.ends = self.rows + 1, (start, end), starts, ends
        return True

    def slice(self):
        column, end = self.first[0], self.last[1]
        lower = 0 if 0 not in self.starts else _UNBOUNDED[0]
        upper = self.first[1] - 1 - column if 0 not in self.ends else _UNBOUNDED[1]
        return self.row, self.rows, column, end - column, lower, upper


def slices(blocks):
    """The slices of a mask, from blocks of consecutive rows: (number of rows, [row][column] of the starts and the ends of
    the runs of keys that each row sees, in turn)."""
    done, open_bands, row = [], [], 0
    for rows, edges in blocks:
        runs = [[] for _ in range(rows)]
        for (i, start), (_, end) in zip(edges[::2], edges[1::2]):
            runs[i].append((start, end))
        for of_row in runs:
            bands = []
            for start, end in of_row:
                band = next((b for b in open_bands if b.takes(start, end)), None)
                if band:
                    open_bands.remove(band)
                bands.append(band or Band(row, (start, end), (start, end)))
            done += open_bands
            open_bands, row = bands, row + 1
    return [band.slice() for band in sorted(done + open_bands, key=lambda b: (b.row, b.first))]
