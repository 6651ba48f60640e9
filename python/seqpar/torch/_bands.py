"""Masks of booleans as blocks of rows for _bands.slices()."""

import torch

from .. import _bands
from ._flex import Rest

_MOST_BANDS = 16  # of a block; blocks with more are left to flex_attention


def edges(seen):
    """(rows, edges) of bool [rows][columns]."""
    return seen.shape[0], torch.nn.functional.pad(seen.to(torch.int8), (1, 1)).diff(dim=1).nonzero().tolist()


def _few_bands(cells):
    rows, found = edges(cells)
    return len(found) <= 2 * _MOST_BANDS * rows and len(_bands.slices([(rows, found)])) <= _MOST_BANDS


def of_blocks(block_mask):
    """(slices, Rest or None) of a BlockMask. The Rest has the partial blocks that are not a few bands."""
    tokens, (high, wide) = block_mask.seq_lengths[0], block_mask.BLOCK_SIZE
    count = [(tokens + size - 1) // size for size in (high, wide)]
    rest = torch.zeros(count, dtype=torch.bool)
    slices = _bands.slices(map(edges, _rows_of_blocks(block_mask, rest)))
    return slices, Rest(block_mask.mask_mod, (high, wide), rest) if rest.any() else None


def _rows_of_blocks(block_mask, rest):
    """bool [rows][tokens] for each row of blocks, without the blocks that are then set in `rest`."""
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
                if not len(keys):
                    continue
                cells = seen_by(zero, zero, rows, keys).cpu()
                if _few_bands(cells):
                    seen[:, block * wide:(block + 1) * wide] = cells
                else:
                    rest[i, block] = True
        yield seen
