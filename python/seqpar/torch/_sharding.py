"""Sharding whole tensors and batches, and gathering them again."""

import torch

from .. import _shapes
from ._collectives import _axis, all_gather
from ._kernels import layout_order
from ._layout import bounds_of, require_fit
from ._refusals import collective

IGNORED = -100  # the label that losses leave out


@collective
def shard(x, layout, comm, dim=1):
    """This rank's tokens of `x`, which is whole on every rank. Sends nothing. The backward pass stores the gradient of
    this rank's tokens in a gradient of `x` that is 0 elsewhere."""
    require_fit("shard", layout, comm, tokens=x.shape[_axis(x, dim)])
    begin = sum(layout.lengths[:comm.rank])
    return x.index_select(dim, layout_order(x, layout.key, False)[begin:begin + layout.lengths[comm.rank]])


@collective
def positions(layout, comm, cu_seqlens=None):
    """layout.positions() of this rank, on the communicator's device."""
    require_fit("positions", layout, comm)
    return layout.positions(comm.rank, cu_seqlens=cu_seqlens, device=comm.device)


@collective
def unshard(x, layout, comm, dim=1):
    """Collective: the whole tensor, on every rank, from all ranks' tokens. The backward pass sums the ranks' gradients
    of the whole."""
    require_fit("unshard", layout, comm, local=x.shape[_axis(x, dim)])
    return all_gather(x, comm, dim=dim, tokens=layout.lengths).index_select(dim, layout_order(x, layout.key, True))


def shift_labels(ids, cu_seqlens=None, ignore_index=IGNORED):
    """The label of each token, for whole sequences [batch][tokens]: the next token; ignore_index for the last token of
    each sequence."""
    if ids.dim() != 2:
        raise ValueError(f"shift_labels: ids has the shape {tuple(ids.shape)}, expected [batch][tokens]")
    bounds = bounds_of(cu_seqlens)
    _shapes.require_bounds("shift_labels", bounds, ids.shape[1])
    labels = torch.full_like(ids, ignore_index)
    labels[:, :-1] = ids[:, 1:]
    for end in bounds or ():
        if end > 0:
            labels[:, end - 1] = ignore_index
    return labels


@collective
def shard_batch(batch, layout, comm, *, cu_seqlens=None, ignore_index=IGNORED):
    """(ids, labels, positions) of this rank's tokens. Labels are shifted before they are sharded: the label of a shard's
    last token is on another rank, so shifting afterwards would be wrong there.

    batch       token ids [batch][tokens], whole; or a dictionary with "input_ids" and optionally "labels" in
                transformers' form: not shifted yet
    cu_seqlens  bounds of packed sequences: labels do not cross them, and positions restart
    """
    ids = batch["input_ids"] if not isinstance(batch, torch.Tensor) else batch
    source = ids if isinstance(batch, torch.Tensor) else batch.get("labels", ids)
    labels = shift_labels(source, cu_seqlens, ignore_index)
    return (shard(ids, layout, comm), shard(labels, layout, comm),
            layout.positions(comm.rank, cu_seqlens=cu_seqlens, device=ids.device))
