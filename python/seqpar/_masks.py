"""Masks as slices, for PyTorch and JAX."""

import ctypes
import dataclasses

from . import _abi, _shapes

_NONE = -2 ** 63, 2 ** 63 - 1


def full(q0, q1, k0, k1):
    return q0, q1 - q0, k0, k1 - k0, *_NONE


def causal(q0, q1, k0, k1):
    return q0, q1 - q0, k0, k1 - k0, _NONE[0], k1 - k0 - (q1 - q0)


def _bounds(what, given):
    found = _shapes.integers(what, given.tolist() if hasattr(given, "tolist") else given, 2)
    if found[0] != 0 or any(a > b for a, b in zip(found, found[1:])):
        raise ValueError(f"{what} are {found}, expected ascending numbers from 0")
    return found


def _counts(what, *given):
    found = _shapes.integers(what, given, 0)
    if min(found, default=0) < 0:
        raise ValueError(f"{what}: got {found}, expected numbers of tokens")
    return found


@dataclasses.dataclass(frozen=True)
class SliceMask:
    """The keys that each of `tokens` tokens sees: the union of slices without a common query and key. Hashable; create it
    once per batch.

    slices  (row, rows, column, columns, lower, upper): query row + i sees key column + j if i + lower <= j <= i + upper;
            see seqparAttnSlice_t
    rest    keys seen beside the slices; PyTorch only, set by from_block_mask()
    """

    slices: tuple
    tokens: int
    rest: object = None
    key: str = dataclasses.field(init=False, repr=False, compare=False, default="")

    def __post_init__(self):
        _counts("Mask: tokens", self.tokens)
        slices = tuple(_shapes.integers("Mask: a slice", x, 6) for x in self.slices) or (full(0, 0, 0, 0),)
        for x in slices:
            if len(x) != 6:
                raise ValueError(f"Mask: a slice has {len(x)} numbers, expected 6: row, rows, column, columns, lower, upper")
        object.__setattr__(self, "slices", slices)
        object.__setattr__(self, "key", ",".join(str(n) for x in slices for n in x))

    @classmethod
    def documents(cls, cu_seqlens):
        """Packed causal documents with these bounds."""
        bounds = _bounds("Mask.documents: cu_seqlens", cu_seqlens)
        return cls(tuple(causal(a, b, a, b) for a, b in zip(bounds, bounds[1:])), bounds[-1])

    @classmethod
    def prefix_lm(cls, prefix, tokens):
        """All tokens see the first `prefix` tokens; later tokens also see the tokens between, up to their own."""
        prefix, tokens = _counts("Mask.prefix_lm: prefix and tokens", prefix, tokens)
        if prefix > tokens:
            raise ValueError(f"Mask.prefix_lm: prefix is {prefix}, expected at most {tokens}, the tokens")
        return cls((full(0, prefix, 0, prefix), causal(prefix, tokens, 0, tokens)), tokens)

    @classmethod
    def shared_prefix(cls, prefix, lengths):
        """A causal prefix, and behind it causal answers of these lengths that see the prefix and themselves."""
        end, *lengths = _counts("Mask.shared_prefix: prefix and lengths", prefix, *lengths)
        prefix, slices = end, [causal(0, end, 0, end)]
        for length in lengths:
            slices += [full(end, end + length, 0, prefix), causal(end, end + length, end, end + length)]
            end += length
        return cls(tuple(slices), end)

    @classmethod
    def block_causal(cls, bounds):
        """Blocks, such as frames of a video, that see themselves and all earlier blocks."""
        bounds = _bounds("Mask.block_causal: bounds", bounds)
        return cls(tuple(full(a, b, 0, b) for a, b in zip(bounds, bounds[1:])), bounds[-1])

    @classmethod
    def window(cls, tokens, left, right=0):
        """Each token sees at most `left` tokens before its own and `right` tokens after it."""
        tokens, left, right = _counts("Mask.window: tokens, left and right", tokens, left, right)
        return cls(((0, tokens, 0, tokens, -left, right),), tokens)


def fill(desc, key):
    """Sets the slices of a seqparAttnDesc_t, which keeps their memory alive."""
    numbers = tuple(map(int, key.split(",")))
    desc.bands = _abi.int64s(numbers)
    desc.slices, desc.slice = len(numbers) // 6, ctypes.addressof(desc.bands)


def _desc(key, tokens):
    desc = _abi.AttnDesc(tokens=tokens, headDim=1)
    fill(desc, key)
    return desc


def solve(mask, ranks, check=_abi.check_attn, more=()):
    """(bounds, owners) of the pieces that balance the mask and `more` slices."""
    desc = _desc(mask.key if not more else SliceMask((*mask.slices, *more), mask.tokens).key, mask.tokens)
    bounds, owners, pieces = (ctypes.c_int64 * (2 * ranks))(), (ctypes.c_int * (2 * ranks))(), ctypes.c_int64()
    check(_abi.attn_lib().seqparAttnSolveLayout(ctypes.byref(desc), ranks, None, bounds, owners, ctypes.byref(pieces)))
    return tuple(bounds[:pieces.value + 1]), tuple(owners[:pieces.value])


def scores(key, layout):
    """The number of visible pairs of each rank's queries and all keys, with a layout that has struct()."""
    desc, struct = _desc(key, layout.tokens), layout.struct()
    loads = (_abi.AttnLoad * layout.ranks)()
    _abi.check_attn(_abi.attn_lib().seqparAttnLayoutLoad(ctypes.byref(desc), ctypes.byref(struct), loads))
    return [load.scores for load in loads]
