"""Slices of a mask that is given row by row."""

import dataclasses

import torch

_UNBOUNDED = -2 ** 63, 2 ** 63 - 1


@dataclasses.dataclass
class _Band:
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
    """The slices of a mask, from blocks of consecutive rows: (the first column, bool [rows][columns])."""
    done, open_bands, row = [], [], 0
    for column, seen in blocks:
        edges = torch.nn.functional.pad(seen.to(torch.int8), (1, 1)).diff(dim=1)
        where = edges.nonzero().tolist()
        runs = [[] for _ in range(seen.shape[0])]
        for (i, start), (_, end) in zip(where[::2], where[1::2]):
            runs[i].append((column + start, column + end))
        for of_row in runs:
            bands = []
            for start, end in of_row:
                band = next((b for b in open_bands if b.takes(start, end)), None)
                if band:
                    open_bands.remove(band)
                bands.append(band or _Band(row, (start, end), (start, end)))
            done += open_bands
            open_bands, row = bands, row + 1
    return [band.slice() for band in sorted(done + open_bands, key=lambda b: (b.row, b.first))]


def rows_of_blocks(block_mask):
    """Each row of blocks of a BlockMask, as slices() takes them."""
    tokens, (high, wide) = block_mask.seq_lengths[0], block_mask.BLOCK_SIZE
    device = block_mask.kv_num_blocks.device
    zero = torch.zeros((), dtype=torch.int32, device=device)
    seen_by = torch.vmap(torch.vmap(block_mask.mask_mod, in_dims=(None, None, None, 0)), in_dims=(None, None, 0, None))

    def blocks(counts, indices, i):
        return [] if counts is None else indices[0, 0, i, :int(counts[0, 0, i])].tolist()

    for i in range((tokens + high - 1) // high):
        rows = torch.arange(i * high, min((i + 1) * high, tokens), dtype=torch.int32, device=device)
        seen = torch.zeros(len(rows), tokens, dtype=torch.bool)
        if i < block_mask.kv_num_blocks.shape[2]:
            for block in blocks(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, i):
                seen[:, block * wide:(block + 1) * wide] = True
            for block in blocks(block_mask.kv_num_blocks, block_mask.kv_indices, i):
                keys = torch.arange(block * wide, min((block + 1) * wide, tokens), dtype=torch.int32, device=device)
                if len(keys):
                    seen[:, block * wide:(block + 1) * wide] = seen_by(zero, zero, rows, keys).cpu()
        yield 0, seen
