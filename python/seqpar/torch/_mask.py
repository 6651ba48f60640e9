"""Masks as slices, and layouts that balance them."""

import ctypes
import dataclasses

import torch

from .. import _abi, _shapes
from . import _bands
from ._comm import call
from ._layout import Layout, bounds_of

_NONE = -2 ** 63, 2 ** 63 - 1


def _full(q0, q1, k0, k1):
    return q0, q1 - q0, k0, k1 - k0, *_NONE


def _causal(q0, q1, k0, k1):
    return q0, q1 - q0, k0, k1 - k0, _NONE[0], k1 - k0 - (q1 - q0)


@dataclasses.dataclass(frozen=True)
class Mask:
    """The keys that each of `tokens` tokens sees: the union of slices without a common query and key. Hashable; create it
    once per batch.

    slices  (row, rows, column, columns, lower, upper): query row + i sees key column + j if i + lower <= j <= i + upper;
            see seqparAttnSlice_t
    """

    slices: tuple
    tokens: int
    key: str = dataclasses.field(init=False, repr=False, compare=False, default="")

    def __post_init__(self):
        slices = tuple(_shapes.integers("Mask: a slice", x, 6) for x in self.slices) or (_full(0, 0, 0, 0),)
        for x in slices:
            if len(x) != 6:
                raise ValueError(f"Mask: a slice has {len(x)} numbers, expected 6: row, rows, column, columns, lower, upper")
        object.__setattr__(self, "slices", slices)
        object.__setattr__(self, "key", ",".join(str(n) for x in slices for n in x))

    @classmethod
    def documents(cls, cu_seqlens):
        """Packed causal documents with these bounds."""
        bounds = bounds_of(cu_seqlens)
        return cls(tuple(_causal(a, b, a, b) for a, b in zip(bounds, bounds[1:])), bounds[-1])

    @classmethod
    def prefix_lm(cls, prefix, tokens):
        """All tokens see the first `prefix` tokens; later tokens also see the tokens between, up to their own."""
        return cls((_full(0, prefix, 0, prefix), _causal(prefix, tokens, 0, tokens)), tokens)

    @classmethod
    def shared_prefix(cls, prefix, lengths):
        """A causal prefix, and behind it causal answers of these lengths that see the prefix and themselves."""
        slices, end = [_causal(0, prefix, 0, prefix)], prefix
        for length in lengths:
            slices += [_full(end, end + length, 0, prefix), _causal(end, end + length, end, end + length)]
            end += length
        return cls(tuple(slices), end)

    @classmethod
    def block_causal(cls, bounds):
        """Blocks, such as frames of a video, that see themselves and all earlier blocks."""
        bounds = bounds_of(bounds)
        return cls(tuple(_full(a, b, 0, b) for a, b in zip(bounds, bounds[1:])), bounds[-1])

    @classmethod
    def window(cls, tokens, left, right=0):
        """Each token sees at most `left` tokens before its own and `right` tokens after it."""
        return cls(((0, tokens, 0, tokens, -left, right),), tokens)

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


def fill(desc, key):
    """Sets the slices of a seqparAttnDesc_t, which keeps their memory alive."""
    numbers = tuple(map(int, key.split(",")))
    desc.bands = _abi.int64s(numbers)
    desc.slices, desc.slice = len(numbers) // 6, ctypes.addressof(desc.bands)


def solve_layout(mask, ranks):
    """The layout of the mask's tokens that gives each rank equally many tokens and nearly equal work, as at most
    2 * ranks - 1 pieces. Needs no communicator, so a data collator can call it; equal in every process."""
    desc = _abi.AttnDesc(tokens=mask.tokens, headDim=1)
    fill(desc, mask.key)
    bounds, owners, pieces = (ctypes.c_int64 * (2 * ranks))(), (ctypes.c_int * (2 * ranks))(), ctypes.c_int64()
    call(_abi.check_attn, _abi.attn_lib().seqparAttnSolveLayout(ctypes.byref(desc), ranks, None, bounds, owners, ctypes.byref(pieces)))
    count = pieces.value
    return Layout("pieces", mask.tokens, ranks, bounds=tuple(bounds[:count + 1]), owners=tuple(owners[:count]))
