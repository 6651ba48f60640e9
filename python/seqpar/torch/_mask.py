"""Masks as slices, and layouts that balance them."""

import torch

from .. import _abi, _masks
from . import _bands
from ._comm import call
from ._layout import Layout

fill = _masks.fill


class Mask(_masks.SliceMask):
    __doc__ = _masks.SliceMask.__doc__

    @classmethod
    def from_dense(cls, seen):
        """The mask of a tensor of booleans [tokens][tokens]: whether a query sees a key. See from_block_mask()."""
        if seen.ndim != 2 or seen.shape[0] != seen.shape[1] or seen.dtype != torch.bool:
            raise ValueError(f"Mask.from_dense: {seen.dtype} {list(seen.shape)}, expected torch.bool [tokens][tokens]")
        return cls(tuple(_bands.slices((0, rows) for rows in seen.cpu().split(128))), seen.shape[0])

    @classmethod
    def from_block_mask(cls, block_mask):
        """The mask of FlexAttention's BlockMask, for any mask_mod: rows whose keys start and end at the same keys, or one
        key later in each row, become one slice. A mask of scattered keys becomes a slice for each run of keys in a row,
        which is correct and slow. One mask for all batch entries and heads."""
        batch, heads = block_mask.kv_num_blocks.shape[:2]
        queries, keys = block_mask.seq_lengths
        if batch * heads != 1:
            raise ValueError(f"Mask.from_block_mask: B = {batch} and H = {heads}, expected 1: create_block_mask with None for both")
        if queries != keys:
            raise ValueError(f"Mask.from_block_mask: {queries} queries and {keys} keys, expected equally many")
        return cls(tuple(_bands.slices(_bands.rows_of_blocks(block_mask))), queries)

    def dense(self, device=None):
        """bool [tokens][tokens]: whether a query sees a key, for tests."""
        seen = torch.zeros(self.tokens, self.tokens, dtype=torch.bool, device=device)
        for row, rows, column, columns, lower, upper in self.slices:
            offset = torch.arange(columns, device=device)[None] - torch.arange(rows, device=device)[:, None]
            seen[row:row + rows, column:column + columns] |= (offset >= lower) & (offset <= upper)
        return seen


def solve_layout(mask, ranks):
    """The layout of the mask's tokens that gives each rank equally many tokens and nearly equal work, as at most
    2 * ranks - 1 pieces. Needs no communicator, so a data collator can call it; equal in every process."""
    bounds, owners = _masks.solve(mask, ranks, lambda result: call(_abi.check_attn, result))
    return Layout("pieces", mask.tokens, ranks, bounds=bounds, owners=owners)
