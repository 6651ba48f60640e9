"""Masks as slices, and layouts that balance them."""

import numpy as np

from .. import _bands, _masks
from ._layout import Layout


def _edges(seen):
    return seen.shape[0], np.argwhere(np.diff(np.pad(seen.astype(np.int8), ((0, 0), (1, 1))), axis=1)).tolist()


class Mask(_masks.SliceMask):
    __doc__ = _masks.SliceMask.__doc__

    @classmethod
    def from_dense(cls, seen):
        """The mask of an array of booleans [tokens][tokens]: whether a query sees a key. See from_block_mask()."""
        if seen.ndim != 2 or seen.shape[0] != seen.shape[1] or seen.dtype != bool:
            raise ValueError(f"Mask.from_dense: {seen.dtype} {list(seen.shape)}, expected bool [tokens][tokens]")
        return cls.from_block_mask(np.asarray(seen))

    @classmethod
    def from_block_mask(cls, mask):
        """The mask of a splash attention Mask, or of anything that has a `shape` (tokens, tokens) and returns an array of
        booleans for `mask[rows, keys]` with slices. Rows with runs of keys that start and end at the same keys, or one key
        later in each row, become one slice. A mask of scattered keys becomes a slice for each run of keys in a row, which is
        correct and slow. One mask for all heads."""
        if len(mask.shape) != 2 or mask.shape[0] != mask.shape[1]:
            raise ValueError(f"Mask.from_block_mask: shape {tuple(mask.shape)}, expected (tokens, tokens)")
        tokens, rows = mask.shape[0], 128
        blocks = (np.asarray(mask[i:min(i + rows, tokens), 0:tokens]).astype(bool) for i in range(0, tokens, rows))
        return cls(tuple(_bands.slices(map(_edges, blocks))), tokens)

    def dense(self):
        """bool [tokens][tokens]: whether a query sees a key, for tests."""
        seen = np.zeros((self.tokens, self.tokens), bool)
        for row, rows, column, columns, lower, upper in self.slices:
            offset = np.arange(columns)[None] - np.arange(rows)[:, None]
            seen[row:row + rows, column:column + columns] |= (offset >= lower) & (offset <= upper)
        return seen


def solve_layout(mask, ranks):
    """The layout of the mask's tokens that gives each rank equally many tokens and nearly equal work, as at most
    2 * ranks - 1 pieces. Ranks must divide the tokens, as shard_map's shards are equal."""
    if mask.tokens % ranks:
        raise ValueError(f"solve_layout: {mask.tokens} tokens on {ranks} ranks, expected a multiple of {ranks}")
    bounds, owners = _masks.solve(mask, ranks)
    return Layout("pieces", mask.tokens, ranks, bounds=bounds, owners=owners)
