"""Which rank holds which tokens, for arrays that jax.shard_map cuts into equal contiguous shards."""

import ctypes
import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from .. import _abi, _shapes


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which of `ranks` ranks holds which of `tokens` tokens; all ranks hold equally many, as shard_map's shards are
    equal.

    kind    "contiguous"; "zigzag", two chunks per rank, which balance causal attention; "striped", round robin
    stripe  tokens of a block of "striped"
    bounds  "pieces": the start of each piece and the number of tokens; solve_layout() returns pieces that balance a mask
    owners  "pieces": the rank of each piece
    """

    kind: str
    tokens: int
    ranks: int
    stripe: int = 1
    bounds: "tuple[int, ...] | None" = None
    owners: "tuple[int, ...] | None" = None

    def __post_init__(self):
        _abi.choose("Layout: kind", self.kind, _abi.LAYOUTS)
        for name, bits in (("tokens", 64), ("ranks", 32), ("stripe", 64)):
            _shapes.integers(f"Layout: {name}", (getattr(self, name),), 1, bits)
        if self.kind == "pieces":
            for name, bits in (("bounds", 64), ("owners", 32)):
                object.__setattr__(self, name, _shapes.integers(f"Layout: {name}", getattr(self, name) or (), 1, bits))
            if len(self.bounds) != len(self.owners) + 1:
                raise ValueError(f"Layout: bounds are {len(self.bounds)} and owners {len(self.owners)} numbers, expected one bound more")
        elif self.bounds is not None or self.owners is not None:
            raise ValueError(f"Layout: bounds and owners were given for {self.kind!r}, expected none: only \"pieces\" have them")
        length = ctypes.c_int64()
        for rank in range(self.ranks):
            _abi.check(_abi.lib.seqparLayoutLocalLength(ctypes.byref(self.struct()), rank, ctypes.byref(length)))
            if length.value * self.ranks != self.tokens:
                raise ValueError(f"Layout: rank {rank} has {length.value} of {self.tokens} tokens, expected as many on each of "
                                 f"the {self.ranks} ranks: shard_map's shards are equal")

    def struct(self):
        """The seqparLayout_t; it keeps the memory that it points to alive."""
        value = _abi.LayoutStruct(kind=_abi.LAYOUTS[self.kind], ranks=self.ranks, tokens=self.tokens, stripe=self.stripe)
        if self.kind == "pieces":
            value.of_bounds, value.of_owners = _abi.int64s(self.bounds), (ctypes.c_int * len(self.owners))(*self.owners)
            value.pieces, value.pieceBounds = len(self.owners), ctypes.addressof(value.of_bounds)
            value.pieceOwners = ctypes.addressof(value.of_owners)
        return value

    @functools.cached_property
    def order(self):
        """int64 [tokens]: the positions of rank 0's tokens, then rank 1's, and so on."""
        parts = np.empty((self.ranks, self.tokens // self.ranks), np.int64)
        for rank in range(self.ranks):
            _abi.check(_abi.lib.seqparLayoutGlobals(ctypes.byref(self.struct()), rank, parts[rank].ctypes.data))
        return parts.reshape(-1)


def shard(x, layout, axis=1):
    """The whole array with its tokens in shard_map's order of the ranks."""
    return jnp.take(x, layout.order, axis=axis)


def unshard(x, layout, axis=1):
    """The reverse of shard()."""
    return jnp.take(x, np.argsort(layout.order), axis=axis)


def positions(layout):
    """int32 [tokens]: the position of each token of a sharded whole, for example for rotary embeddings: sharded like
    the tokens."""
    return jnp.asarray(layout.order, jnp.int32)
