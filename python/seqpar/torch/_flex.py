"""The part of a mask that no slices describe: flex_attention on gathered keys, merged with the attention of the slices."""

import dataclasses
import functools

import torch

from ._collectives import all_gather
from ._define import without_autocast
from ._first_order import first_order
from ._layout import Layout


@dataclasses.dataclass(frozen=True, eq=False)
class Rest:
    """Some blocks of a FlexAttention BlockMask.

    mask_mod  the BlockMask's
    size      (queries, keys) of a block
    blocks    bool [blocks of queries][blocks of keys], on the host
    """

    mask_mod: object
    size: tuple
    blocks: torch.Tensor

    def cells(self, queries, keys, batch=0, head=0):
        """Whether queries see keys: tensors of positions that broadcast."""
        blocks = self.blocks.to(queries.device)
        return blocks[queries // self.size[0], keys // self.size[1]] & self.mask_mod(batch, head, queries, keys)


def _visible(rest, queries, keys, causal, left, right):
    """A mask_mod for indices of `queries` and `keys`, which are positions."""
    blocks = rest.blocks.to(queries.device)

    def mask_mod(batch, head, i, j):
        p, n = queries[i], keys[j]
        seen = blocks[p // rest.size[0], n // rest.size[1]] & rest.mask_mod(batch, head, p, n)
        if causal:
            seen = seen & (n <= p)
        if left >= 0:
            seen = seen & (n >= p - left)
        return seen & (n <= p + right) if right >= 0 else seen

    return mask_mod


@functools.lru_cache(maxsize=16)
def _mask_mod(rest, layout, kv_layout, rank, of_keys, causal, window, device):
    """The mask_mod of a rank's queries and the keys of the ranks `of_keys`."""
    layout, kv_layout = Layout.from_key(layout), Layout.from_key(kv_layout)
    with torch.inference_mode(False):  # a later call may need a gradient
        queries = layout.positions(rank).to(device, torch.int32)
        keys = torch.cat([kv_layout.positions(r) for r in of_keys]).to(device, torch.int32)
    return _visible(rest, queries, keys, causal, *window)


@functools.lru_cache(maxsize=16)
def _block_mask(mask_mod, queries, keys, device):
    from torch.nn.attention.flex_attention import create_block_mask
    with torch.inference_mode(False):
        return create_block_mask(mask_mod, None, None, queries, keys, device=device)


@functools.cache
def _compiled():
    from torch.nn.attention.flex_attention import flex_attention
    return torch.compile(flex_attention)


@without_autocast
def _dense(q, k, v, mask_mod, scale, softcap):
    """flex_attention with its logarithms, for hosts, where it has no backward pass. [batch][heads][tokens][dim]."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).float() for x in (k, v))
    scores = (q.float() @ k.transpose(2, 3)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    zero = torch.zeros((), dtype=torch.int32)
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    hidden = ~mask_mod(zero, zero, i, j).broadcast_to(scores.shape)
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(scores, 3)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    return (weights @ v).to(q.dtype), lse


def attention(rest, q, k, v, comm, layout, kv_layout, *, local, causal, window, scale, softcap):
    """(out, lse) of the attention to the keys of `rest`, differentiable, as attention() returns them. local: to the rank's own
    keys. Collective unless `local`."""
    if not local:
        k, v = (all_gather(x, comm, tokens=kv_layout.lengths) for x in (k, v))
    of_keys = (comm.rank,) if local else tuple(range(comm.size))
    mask_mod = _mask_mod(rest, layout.key, kv_layout.key, comm.rank, of_keys, causal, tuple(window), q.device)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if not q.shape[2] or not q.is_cuda:
        out, lse = _dense(q, k, v, mask_mod, scale, softcap)
    else:
        from torch.nn.attention.flex_attention import AuxRequest
        capped = None if not softcap else lambda score, b, h, i, j: softcap * torch.tanh(score / softcap)
        # Without the option, PyTorch 2.11 has no kernel for fewer than 128 queries with a block mask.
        block_mask = _block_mask(mask_mod, q.shape[2], k.shape[2], q.device)
        out, aux = _compiled()(q, k, v, score_mod=capped, block_mask=block_mask, scale=scale,
                               enable_gqa=k.shape[1] != q.shape[1], return_aux=AuxRequest(lse=True),
                               kernel_options={"FORCE_USE_FLEX_ATTENTION": True})
        lse = aux.lse
    return out.transpose(1, 2), lse


def _shares(lse, other):
    """(the sum's logarithm, the share of `other`); shares of rows without keys are 0."""
    total = torch.logaddexp(lse, other)
    return total, torch.exp(other - total.masked_fill(total == -torch.inf, 0))


class Merged(torch.autograd.Function):
    """The attention of the slices, computed by the operators (forward, backward), merged with out and lse of the rest. The
    operators' backward pass takes the output and the logarithms over all keys."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, out_rest, lse_rest, spec, comm, forward, backward):
        out, lse, reserve = forward(q, k, v, sinks, spec, comm)
        total, share = _shares(lse, lse_rest)
        of_slices = torch.exp(lse - total.masked_fill(total == -torch.inf, 0))
        rows = lambda x: x.transpose(1, 2)[..., None]
        merged = (rows(of_slices) * out + rows(share) * out_rest).to(out.dtype)
        ctx.save_for_backward(q, k, v, merged, total, sinks, out_rest, share, reserve)
        ctx.rest = spec, comm, backward
        ctx.mark_non_differentiable(total)
        return merged, total

    @staticmethod
    @first_order
    def backward(ctx, grad, _):
        q, k, v, merged, total, sinks, out_rest, share, reserve = ctx.saved_tensors
        spec, comm, backward = ctx.rest
        dq, dk, dv, d_sinks = backward(grad, q, k, v, merged, total, sinks, reserve, spec, comm)
        d_out = (share.transpose(1, 2)[..., None] * grad).to(out_rest.dtype)
        d_lse = share * (grad.float() * (out_rest.float() - merged.float())).sum(3).transpose(1, 2)
        return dq, dk, dv, None if sinks is None else d_sinks, d_out, d_lse, None, None, None, None
