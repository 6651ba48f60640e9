"""Masks as slices, and layouts that balance them."""

import numpy as np

from .. import _masks
from ._layout import Layout


class Mask(_masks.SliceMask):
    __doc__ = _masks.SliceMask.__doc__

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
