"""Which packed sequences a batch's position_ids describe: read from the positions of all ranks, so that all agree."""

import torch

from . import _ops
from ._comm import find
from ._define import define
from ._layout import Layout, bounds_of
from ._remembered import Remembered

_WHAT = "position_ids"
_read = Remembered()   # tuples of cu_seq_lens
_known = Remembered()  # the bounds of position_ids


def bounds_once(cu_seqlens):
    """bounds_of() a tensor that all layers of a batch get: waits for a GPU only once."""
    if not isinstance(cu_seqlens, torch.Tensor):
        return bounds_of(cu_seqlens)
    return _read.of(cu_seqlens, None, lambda: bounds_of(cu_seqlens))


def _rank_of(layout, position):
    """(rank, index in its shard) of a position."""
    index = int((layout.order() == position).nonzero()[0, 0])
    for rank, length in enumerate(layout.lengths):
        if index < length:
            return rank, index
        index -= length


def _whole(positions, layout, comm):
    """int64 [rows][all tokens] on the host, in the order of the sequence. Collective."""
    if not isinstance(positions, torch.Tensor) or positions.dim() not in (1, 2):
        shape = tuple(positions.shape) if isinstance(positions, torch.Tensor) else type(positions).__name__
        raise ValueError(f"{_WHAT}: got {shape}, expected a tensor [batch][tokens of the rank]: one position a token")
    rows = positions.detach()[None] if positions.dim() == 1 else positions.detach()
    local = layout.local_length(comm.rank)
    if rows.shape[1] != local:
        raise ValueError(f"{_WHAT}: got {rows.shape[1]} positions, expected {local}, the tokens that the layout gives rank {comm.rank}")
    with torch.no_grad():
        gathered = _ops.all_gather.implementation(rows.to(torch.int32).contiguous(), 1, list(layout.lengths), comm.name)
    whole = torch.empty(gathered.shape, dtype=torch.int64, device="cpu")
    whole[:, layout.order()] = gathered.cpu().to(torch.int64)
    return whole


def _require_equal(row, expected, layout, why):
    wrong = (row != expected).nonzero()
    if len(wrong):
        position = int(wrong[0, 0])
        rank, index = _rank_of(layout, position)
        raise ValueError(f"{_WHAT}: {_WHAT}[{index}] of rank {rank} is {int(row[position])}, expected {int(expected[position])}: {why}")


def _within(bounds, tokens):
    """The position of each token in its packed sequence."""
    found = torch.arange(tokens, device="cpu")
    if bounds is None:
        return found
    starts = torch.tensor(bounds, device="cpu")
    return found - starts[torch.searchsorted(starts, found, right=True) - 1]


def _establish(positions, layout, bounds, comm):
    whole, tokens = _whole(positions, layout, comm), layout.tokens
    if not tokens:
        return bounds
    if bounds is not None and (bounds[0] != 0 or bounds[-1] != tokens):
        raise ValueError(f"{_WHAT}: cu_seqlens has the ends {bounds[0]} and {bounds[-1]}, expected 0 and {tokens}: the bounds of the whole "
                         "sequence, not of a shard")
    for i, row in enumerate(whole[1:], 1):
        if not row.equal(whole[0]):
            raise ValueError(f"{_WHAT}: row {i} of the batch differs from row 0, expected equal rows: packed sequences have batch 1")
    row, places = whole[0], "the positions that shard_batch() returns are those of the layout, and within each packed sequence"
    if bounds is not None:
        _require_equal(row, _within(bounds, tokens), layout, places)
        return bounds
    starts = (row == 0).nonzero()[:, 0].tolist()
    found = tuple(starts) + (tokens,)
    if not starts or starts[0] != 0:
        _require_equal(row[:1], torch.zeros(1, dtype=torch.int64), layout, places)
    _require_equal(row, _within(found, tokens), layout, places)
    shards = [int(layout.positions(rank)[0]) for rank in range(comm.size) if layout.lengths[rank]]
    if len(shards) > 1 and layout.kind == "contiguous" and starts == shards:
        raise ValueError(f"{_WHAT}: the positions start at 0 on every rank, expected those of shard_batch(): if there is one packed "
                         "sequence a rank, give cu_seqlens")
    return found if len(starts) > 1 else None


def packing_of(positions, layout, bounds, comm):
    """The bounds of the packed sequences in the whole, None: one sequence. Raises ValueError, on all ranks, unless the
    positions are the layout's, within each packed sequence. bounds: None: derived from the positions. Collective at the
    first use of a tensor of positions, and of a changed one."""
    return _known.of(positions, (layout.key, bounds, comm.name), lambda: _establish(positions, layout, bounds, comm))


def _check_launch(made, positions, like, layout, cu_seqlens, name):
    if positions.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    bounds = tuple(map(int, cu_seqlens.split(","))) if cu_seqlens else None
    found = packing_of(positions, Layout.from_key(layout), bounds, find(name))
    if found != bounds:
        raise ValueError(f"{_WHAT}: the batch is packed, expected one sequence in a compiled graph, or Registration.cu_seqlens")


# For compiled graphs, where the packing is a constant: 0 if the positions fit it.
check = define("check_positions(Tensor positions, Tensor like, str layout, str cu_seqlens, str comm) -> Tensor",
               lambda positions, like, layout, cu_seqlens, name: (like.new_zeros(()),), _check_launch)
