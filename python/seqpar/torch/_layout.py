"""Which rank holds which tokens."""

import ctypes
import dataclasses
import functools

import torch

from .. import _abi, _shapes
from ._comm import call


def bounds_of(cu_seqlens):
    """cu_seqlens as a tuple of ints, or None. A tensor is read on the host, which waits for a GPU."""
    if cu_seqlens is None:
        return None
    if isinstance(cu_seqlens, torch.Tensor):
        cu_seqlens = cu_seqlens.tolist()
    return _shapes.integers("cu_seqlens", cu_seqlens, 2)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which of `ranks` ranks holds which of `tokens` tokens. On every rank tokens ascend. Any length is allowed.

    kind        "contiguous"; "zigzag", two chunks per rank, which balance causal attention; "striped", round robin
    stripe      tokens of a block of "striped"
    slices      hybrids of all-to-all and ring: ranks that share a part, see seqparLayout_t
    cu_seqlens  packed sequences that are each laid out separately; None: all tokens as a whole
    bounds      "pieces": the start of each piece and the number of tokens; solve_layout() returns pieces that balance a mask
    owners      "pieces": the rank of each piece
    lengths     (out) the number of tokens on every rank
    """

    kind: str
    tokens: int
    ranks: int
    stripe: int = 1
    slices: int = 1
    cu_seqlens: "tuple[int, ...] | None" = None
    bounds: "tuple[int, ...] | None" = None
    owners: "tuple[int, ...] | None" = None
    lengths: tuple = dataclasses.field(init=False, repr=False, compare=False, default=())
    key: str = dataclasses.field(init=False, repr=False, compare=False, default="")
    # Contiguous shards of these tokens, for compiled graphs, which cannot create a Layout; None: this one's are.
    straight: "Layout | None" = dataclasses.field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self):
        _abi.choose("Layout: kind", self.kind, _abi.LAYOUTS)
        for name, bits in (("tokens", 64), ("ranks", 32), ("stripe", 64), ("slices", 32)):
            _shapes.integers(f"Layout: {name}", (getattr(self, name),), 1, bits)
        bounds = bounds_of(self.cu_seqlens)
        object.__setattr__(self, "cu_seqlens", bounds)
        packing = "" if bounds is None else ",".join(map(str, bounds))
        pieces = ""
        if self.kind == "pieces":
            for name, bits in (("bounds", 64), ("owners", 32)):
                object.__setattr__(self, name, _shapes.integers(f"Layout: {name}", getattr(self, name) or (), 1, bits))
            if len(self.bounds) != len(self.owners) + 1:
                raise ValueError(f"Layout: bounds are {len(self.bounds)} and owners {len(self.owners)} numbers, expected one bound more")
            pieces = ":" + ",".join(map(str, self.bounds)) + ":" + ",".join(map(str, self.owners))
        elif self.bounds is not None or self.owners is not None:
            raise ValueError(f"Layout: bounds and owners were given for {self.kind!r}, expected none: only \"pieces\" have them")
        object.__setattr__(self, "key", f"{self.kind}:{self.tokens}:{self.ranks}:{self.stripe}:{self.slices}:{packing}{pieces}")
        struct, length, lengths = self.struct(), ctypes.c_int64(), []
        for rank in range(max(1, self.ranks)):  # refuses an invalid layout
            call(_abi.check, _abi.lib.seqparLayoutLocalLength(ctypes.byref(struct), rank, ctypes.byref(length)))
            lengths.append(length.value)
        object.__setattr__(self, "lengths", tuple(lengths))
        if self.kind != "contiguous" or self.slices != 1 or bounds is not None:
            object.__setattr__(self, "straight", Layout("contiguous", self.tokens, self.ranks))

    def __hash__(self):
        return hash(self.key)

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def from_key(key):
        """The layout with this `key`: operators take it as a string."""
        kind, tokens, ranks, stripe, slices, packing, *pieces = key.split(":")
        return Layout(kind, int(tokens), int(ranks), int(stripe), int(slices),
                      tuple(map(int, packing.split(","))) if packing else None, *(tuple(map(int, x.split(","))) for x in pieces))

    def struct(self):
        """The seqparLayout_t; it keeps the memory that it points to alive."""
        value = _abi.LayoutStruct(kind=_abi.LAYOUTS[self.kind], ranks=self.ranks, tokens=self.tokens,
                                  stripe=self.stripe, slices=self.slices)
        if self.cu_seqlens is not None:
            value.bounds = _abi.int64s(self.cu_seqlens)
            value.sequences, value.cuSeqlens = len(self.cu_seqlens) - 1, ctypes.addressof(value.bounds)
        if self.kind == "pieces":
            value.at, value.of = _abi.int64s(self.bounds), (ctypes.c_int * len(self.owners))(*self.owners)
            value.pieces = len(self.owners)
            value.pieceBounds, value.pieceOwners = ctypes.addressof(value.at), ctypes.addressof(value.of)
        return value

    def local_length(self, rank):
        """The number of tokens on `rank`."""
        if not 0 <= rank < self.ranks:
            raise ValueError(f"Layout: rank is {rank}, expected 0 to {self.ranks - 1}")
        return self.lengths[rank]

    def positions(self, rank, *, cu_seqlens=None, device=None):
        """int64 [tokens of the rank]: each token's position in the whole, or with cu_seqlens in its sequence, for
        example for rotary embeddings."""
        found = torch.empty(self.local_length(rank), dtype=torch.int64, device="cpu")  # for any default device
        call(_abi.check, _abi.lib.seqparLayoutGlobals(ctypes.byref(self.struct()), rank, found.data_ptr()))
        bounds = bounds_of(cu_seqlens)
        _shapes.require_bounds("Layout.positions", bounds, self.tokens)
        if bounds is not None:
            starts = torch.tensor(bounds, dtype=torch.int64, device="cpu")
            found = found - starts[torch.searchsorted(starts, found, right=True) - 1]
        return found.to(device) if device is not None else found

    def local_cu_seqlens(self, rank, cu_seqlens):
        """int64 [sequences + 1]: the number of the rank's tokens before each packed sequence."""
        bounds = bounds_of(cu_seqlens)
        found = torch.empty(len(bounds), dtype=torch.int64, device="cpu")
        call(_abi.check, _abi.lib.seqparLayoutLocalCuSeqlens(ctypes.byref(self.struct()), rank, _abi.int64s(bounds),
                                                             len(bounds) - 1, found.data_ptr()))
        return found

    def order(self):
        """int64 [tokens]: the positions of rank 0's tokens, then rank 1's, and so on."""
        return torch.cat([self.positions(rank) for rank in range(self.ranks)])


def in_order(layout):
    """Whether the ranks' tokens, one rank after the other, are the sequence."""
    packed = getattr(layout, "cu_seqlens", None) or ()
    return layout.kind == "contiguous" and sum(a < b for a, b in zip(packed, packed[1:])) <= 1


def require_fit(what, layout, comm, tokens=None, local=None):
    """Raises ValueError unless the layout is for the communicator's ranks and for the given numbers of tokens."""
    if not isinstance(layout, Layout):
        raise TypeError(f"{what}: got {_shapes.shown(layout)}, expected a seqpar.torch.Layout")
    if layout.ranks != comm.size:
        raise ValueError(f"{what}: layout.ranks is {layout.ranks}, expected {comm.size}, the ranks of the communicator")
    if tokens is not None and tokens != layout.tokens:
        raise ValueError(f"{what}: got {tokens} tokens, expected {layout.tokens}, the tokens of the layout")
    if local is not None and local != layout.local_length(comm.rank):
        raise ValueError(f"{what}: got {local} tokens, expected {layout.local_length(comm.rank)}, which the layout gives "
                         f"rank {comm.rank}")
