"""Masks as slices, and layouts that balance them."""

import ctypes

import torch

from .. import _abi, _bands, _masks, _shapes
from . import _bands as _blocks
from ._comm import call
from ._layout import Layout, bounds_of

fill = _masks.fill


class Mask(_masks.SliceMask):
    __doc__ = _masks.SliceMask.__doc__

    @classmethod
    def from_dense(cls, seen):
        """The mask of a tensor of booleans [tokens][tokens]: whether a query sees a key. See from_block_mask()."""
        if not isinstance(seen, torch.Tensor):
            raise TypeError(f"Mask.from_dense: got {_shapes.shown(seen)}, expected a torch.Tensor")
        if seen.ndim != 2 or seen.shape[0] != seen.shape[1] or seen.dtype != torch.bool:
            raise ValueError(f"Mask.from_dense: {seen.dtype} {list(seen.shape)}, expected torch.bool [tokens][tokens]")
        return cls(tuple(_bands.slices(map(_blocks.edges, seen.cpu().split(128)))), seen.shape[0])

    @classmethod
    def from_block_mask(cls, block_mask):
        """The mask of FlexAttention's BlockMask, for any mask_mod: rows with runs of keys that start and end at the same
        keys, or one key later in each row, become one slice. Partial blocks of scattered keys become `rest`: attention()
        computes them by flex_attention on gathered keys, compiled on GPUs, and merges the results. One mask for all batch
        entries and heads."""
        batch, heads = block_mask.kv_num_blocks.shape[:2]
        queries, keys = block_mask.seq_lengths
        if batch * heads != 1:
            raise ValueError(f"Mask.from_block_mask: B = {batch} and H = {heads}, expected 1: create_block_mask with None for both")
        if queries != keys:
            raise ValueError(f"Mask.from_block_mask: {queries} queries and {keys} keys, expected equally many")
        slices, rest = _blocks.of_blocks(block_mask)
        return cls(tuple(slices), queries, rest)

    @classmethod
    def of_pages(cls, cu_queries, lengths, pages, *, window=None):
        """Chunked prefill: causal attention of the new tokens of several requests to a paged KV cache, for attention() with a
        kv_layout of pieces, one for each page, and batch 1. The last query of a request has the position of its last key.

            cu_queries  bounds of the requests' new tokens in the queries, from 0
            lengths     keys of each request, its new tokens included
            pages       (column, request, position, keys) of each page: its first column in the keys of all ranks, its request
                        (-1: not in use), the position of its first key in the request, and its keys in use
            window      keys that a query sees, with itself; None: all before it
        """
        bounds, lengths = bounds_of(cu_queries), _shapes.integers("Mask.of_pages: lengths", lengths, 0)
        pages = [_shapes.integers("Mask.of_pages: a page", page, 4) for page in pages]
        if len(bounds) != len(lengths) + 1 or any(len(page) != 4 for page in pages):
            raise ValueError(f"Mask.of_pages: got {len(bounds)} bounds, {len(lengths)} lengths and pages of {sorted({len(p) for p in pages})} "
                             "numbers, expected one bound more than lengths and 4 numbers: column, request, position, keys")
        if window is not None and window < 1:
            raise ValueError(f"Mask.of_pages: window is {window}, expected None or at least 1")
        found, count = (_abi.AttnSlice * max(1, len(pages)))(), ctypes.c_int64()
        given = (_abi.AttnPage * max(1, len(pages)))(*map(tuple, pages))
        call(_abi.check_attn, _abi.attn_lib().seqparAttnPageSlices(
            _abi.int64s(bounds), _abi.int64s(lengths), len(lengths), given, len(pages), -1 if window is None else window - 1, found,
            ctypes.byref(count)))
        return cls(tuple((x.row, x.rows, x.column, x.columns, x.lower, x.upper) for x in found[:count.value]), bounds[-1])

    def dense(self, device=None):
        """bool [tokens][tokens]: whether a query sees a key, for tests."""
        seen = torch.zeros(self.tokens, self.tokens, dtype=torch.bool, device=device)
        for row, rows, column, columns, lower, upper in self.slices:
            offset = torch.arange(columns, device=device)[None] - torch.arange(rows, device=device)[:, None]
            seen[row:row + rows, column:column + columns] |= (offset >= lower) & (offset <= upper)
        if self.rest is not None:
            at = torch.arange(self.tokens, dtype=torch.int32, device=device)
            seen |= self.rest.cells(at[:, None], at[None])
        return seen


def solve_layout(mask, ranks):
    """The layout of the mask's tokens that gives each rank equally many tokens and nearly equal work, as at most
    2 * ranks - 1 pieces. Needs no communicator, so a data collator can call it; equal in every process."""
    more = ()
    if not isinstance(mask, Mask):
        raise TypeError(f"solve_layout: got {_shapes.shown(mask)}, expected a seqpar.torch.Mask")
    if mask.rest is not None:  # whole blocks, as flex_attention computes them
        high, wide = mask.rest.size
        more = tuple(_masks.full(i * high, min((i + 1) * high, mask.tokens), j * wide, min((j + 1) * wide, mask.tokens))
                     for i, j in mask.rest.blocks.nonzero().tolist())
    bounds, owners = _masks.solve(mask, ranks, lambda result: call(_abi.check_attn, result), more)
    return Layout("pieces", mask.tokens, ranks, bounds=bounds, owners=owners)
