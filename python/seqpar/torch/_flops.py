"""FLOP counts of the operators for torch.utils.flop_counter: the products of a rank's share. As in PyTorch's formulas,
they include pairs of tokens that a causal mask or a window hides; pairs of different packed sequences, and those that
no slice of a mask contains, are not counted."""

import functools

import torch
from torch.utils.flop_counter import register_flop_formula

from .. import _masks
from . import _plans
from ._comm import find
from ._layout import Layout

_ops = torch.ops.seqpar


@functools.lru_cache(maxsize=64)
def _pairs_of_mask(key, layout):
    return _masks.scores(key, Layout.from_key(layout))


def _pairs(q, k, spec, name):
    """Pairs of this rank's queries and all keys, for one head of one sequence of the batch."""
    fields, comm = _plans.fields_of(spec), find(name)
    layout = Layout.from_key(fields["layout"]) if "layout" in fields else None
    if "mask" in fields:
        shards = layout or Layout(fields.get("shards", "contiguous"), q[1] * comm.size, comm.size)
        return _pairs_of_mask(fields["mask"], shards.key)[comm.rank]
    if "cu_seqlens" in fields:
        bounds = tuple(map(int, fields["cu_seqlens"].split(",")))
        layout = layout or Layout(fields.get("shards", "contiguous"), bounds[-1], comm.size)
        mine = layout.local_cu_seqlens(comm.rank, bounds).diff().tolist()
        return sum(own * (end - begin) for own, begin, end in zip(mine, bounds, bounds[1:]))
    if "kv_layout" in fields:
        return q[1] * Layout.from_key(fields["kv_layout"]).tokens
    return q[1] * (k[1] * comm.size if layout is None or "cross" in fields else layout.tokens)


def _softmax(q, k, v, spec, name, of_qk, of_v):
    batch, _, heads, dim = q
    return 2 * batch * heads * _pairs(q, k, spec, name) * (of_qk * dim + of_v * v[3])


@register_flop_formula(_ops.attention)
def _attention(q, k, v, sinks, spec, name, *ignored, out_shape=None, **more):
    return _softmax(q, k, v, spec, name, 1, 1)


@register_flop_formula(_ops.attention_backward)
def _attention_backward(grad, q, k, v, out, lse, sinks, *rest, out_shape=None, **more):
    return _softmax(q, k, v, *rest[-2:], 3, 2)


def _recurrence(q, v):
    """The products of a state of each token and head with a vector."""
    return 2 * v[0] * v[1] * v[2] * q[3] * v[3]


@register_flop_formula(_ops.linear_attention)
def _linear(q, k, v, *ignored, out_shape=None, **more):
    return 2 * _recurrence(q, v)  # the state, the output


@register_flop_formula(_ops.linear_attention_backward)
def _linear_backward(grad, d_final, q, k, v, *ignored, out_shape=None, **more):
    return 5 * _recurrence(q, v)  # the recomputed state, its gradient, and those of q, k and v


@register_flop_formula(_ops.short_conv)
def _short_conv(x, weight, *ignored, out_shape=None, **more):
    return 2 * x[0] * x[1] * x[2] * weight[1]


@register_flop_formula(_ops.short_conv_backward)
def _short_conv_backward(grad, x, weight, *ignored, out_shape=None, **more):
    return 4 * x[0] * x[1] * x[2] * weight[1]
