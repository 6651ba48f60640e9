"""The functions of ring-flash-attention with their arguments, on seqpar's algorithms.

    from seqpar.torch.ring_flash_attn import zigzag_ring_flash_attn_func
    out = zigzag_ring_flash_attn_func(q, k, v, causal=True, group=group)

Unsupported arguments are errors.
"""

import bisect
import functools

import torch

from ._attention import attention
from ._connect import comm
from ._layout import Layout, bounds_of


@functools.lru_cache(maxsize=64)
def _packed(kind, local, ranks):
    """The Layout of packed sequences that are each cut into equal shards: `local` are the bounds of the shards."""
    return Layout(kind, local[-1] * ranks, ranks, cu_seqlens=tuple(x * ranks for x in local))


def _run(algorithm, q, k, v, dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs,
         group, **packing):
    if dropout_p != 0.0:
        raise ValueError(f"{algorithm}: dropout_p is {dropout_p}, expected 0: there is no dropout")
    if alibi_slopes is not None:
        raise ValueError(f"{algorithm}: alibi_slopes are given, expected None: there is no ALiBi")
    out, lse = attention(q, k, v, comm(group), causal=causal, window=window_size, scale=softmax_scale,
                         deterministic=deterministic, algorithm=algorithm, return_lse=True, **packing)
    return (out, lse, None) if return_attn_probs else out


def _named(function, name, shapes, what):
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Attention of {shapes}, shards of equal length of {what}. With
        return_attn_probs: (out, lse [batch][heads][tokens], without batch where there is none, None). dropout_p and
        alibi_slopes are refused."""
    return function


def _function(algorithm, name, what):
    def function(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None,
                 deterministic=False, return_attn_probs=False, group=None):
        return _run(algorithm, q, k, v, dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic,
                    return_attn_probs, group)

    def kvpacked(q, kv, *arguments, **named):
        return function(q, kv[:, :, 0], kv[:, :, 1], *arguments, **named)

    def qkvpacked(qkv, *arguments, **named):
        return function(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *arguments, **named)

    return (_named(function, f"{name}_flash_attn_func", "q, k, v [batch][tokens of the rank][heads][dim]", what),
            _named(kvpacked, f"{name}_flash_attn_kvpacked_func", "kv [batch][tokens][2][heads][dim]", what),
            _named(qkvpacked, f"{name}_flash_attn_qkvpacked_func", "qkv [batch][tokens][3][heads][dim]", what))


def _varlen_function(algorithm, name, kind, what):
    def function(q, k, v, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
                 alibi_slopes=None, deterministic=False, return_attn_probs=False, group=None):
        members = comm(group)
        layout = _packed(kind, bounds_of(cu_seqlens), members.size)
        found = _run(algorithm, *(x[None] for x in (q, k, v)), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                     deterministic, return_attn_probs, members, layout=layout, cu_seqlens=layout.cu_seqlens)
        return (found[0][0], found[1][0], None) if return_attn_probs else found[0]

    def kvpacked(q, kv, *arguments, **named):
        return function(q, kv[:, 0], kv[:, 1], *arguments, **named)

    def qkvpacked(qkv, *arguments, **named):
        return function(qkv[:, 0], qkv[:, 1], qkv[:, 2], *arguments, **named)

    more = f"{what} of each packed sequence; cu_seqlens are those of the shards"
    return (_named(function, f"{name}_flash_attn_varlen_func", "q, k, v [tokens of the rank][heads][dim]", more),
            _named(kvpacked, f"{name}_flash_attn_varlen_kvpacked_func", "kv [tokens][2][heads][dim]", more),
            _named(qkvpacked, f"{name}_flash_attn_varlen_qkvpacked_func", "qkv [tokens][3][heads][dim]", more))


class _Begin(int):
    """The start of a local_k_slice, with the arguments of the function that returned it: the plans of all ranks need the bounds of
    the whole sequence."""

    def __new__(cls, begin, *prepared):
        value = int.__new__(cls, begin)
        value.prepared = prepared
        return value

    def __reduce__(self):
        return _Begin, (int(self), *self.prepared)


def llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, causal, rank, world_size):
    """The arguments cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k and local_k_slice of llama3_flash_attn_varlen_func():
    of packed sequences with the bounds `cu_seqlens`, cut into contiguous shards of equal length without regard to the bounds."""
    bounds = bounds_of(cu_seqlens)
    local, rest = divmod(bounds[-1], world_size)
    if rest or not local or not 0 <= rank < world_size:
        raise ValueError(f"llama3_flash_attn_prepare_cu_seqlens: got {bounds[-1]} tokens and rank {rank} of {world_size}, expected a multiple "
                         "of the ranks")
    begin, end = rank * local, (rank + 1) * local
    mine = bounds[bisect.bisect_right(bounds, begin) - 1:bisect.bisect_left(bounds, end) + 1]
    first, last = mine[0], min(mine[-1], end) if causal else mine[-1]
    queries, keys = [0, *(x - begin for x in mine[1:-1]), local], [*(x - first for x in mine[:-1]), last - first]
    like = {"dtype": cu_seqlens.dtype, "device": cu_seqlens.device} if isinstance(cu_seqlens, torch.Tensor) else {"dtype": torch.int32}
    return (torch.tensor(queries, **like), torch.tensor(keys, **like), max(b - a for a, b in zip(queries, queries[1:])),
            max(b - a for a, b in zip(keys, keys[1:])), slice(_Begin(first, bounds, bool(causal), rank, world_size), last))


def llama3_flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, heads_k_stride, local_k_slice,
                                  dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None,
                                  deterministic=False, return_attn_probs=False, group=None):
    """Attention of q, k, v [tokens of the rank][heads][dim] of packed sequences by an all-gather of keys and values, of
    heads_k_stride heads at a time. The bounds are those in local_k_slice, of llama3_flash_attn_prepare_cu_seqlens() of this module. With
    return_attn_probs: (out, lse [heads][tokens], None). dropout_p and alibi_slopes are refused."""
    members = comm(group)
    if not isinstance(getattr(local_k_slice, "start", None), _Begin):
        raise ValueError(f"llama3_flash_attn_varlen_func: local_k_slice is {local_k_slice!r}, expected the slice that "
                         "seqpar.torch.ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens() returns")
    bounds, *expected = local_k_slice.start.prepared
    for name, value, prepared in zip(("causal", "rank", "world_size"), (bool(causal), members.rank, members.size), expected):
        if value != prepared:
            raise ValueError(f"llama3_flash_attn_varlen_func: {name} is {value}, expected {prepared}, for which "
                             "llama3_flash_attn_prepare_cu_seqlens() was called")
    heads, queries = k.shape[1], q.shape[1]
    if heads_k_stride < 1 or heads % heads_k_stride or queries % heads:
        raise ValueError(f"llama3_flash_attn_varlen_func: heads_k_stride is {heads_k_stride}, expected a divisor of {heads} heads of k and v, "
                         f"which divide the {queries} of q")
    layout, each = Layout("contiguous", bounds[-1], members.size), queries // heads
    parts = [_run("allgather_kv", q[None, :, i * each:(i + heads_k_stride) * each], k[None, :, i:i + heads_k_stride],
                  v[None, :, i:i + heads_k_stride], dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, True,
                  members, layout=layout, cu_seqlens=bounds) for i in range(0, heads, heads_k_stride)]
    out, lse = (parts[0][i] if len(parts) == 1 else torch.cat([part[i] for part in parts], dim) for i, dim in ((0, 2), (1, 1)))
    return (out[0], lse[0], None) if return_attn_probs else out[0]


def llama3_flash_attn_varlen_kvpacked_func(q, kv, *arguments, **named):
    """llama3_flash_attn_varlen_func() of kv [tokens][2][heads][dim]."""
    return llama3_flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], *arguments, **named)


def llama3_flash_attn_varlen_qkvpacked_func(qkv, *arguments, **named):
    """llama3_flash_attn_varlen_func() of qkv [tokens][3][heads][dim]."""
    return llama3_flash_attn_varlen_func(qkv[:, 0], qkv[:, 1], qkv[:, 2], *arguments, **named)


ring_flash_attn_func, ring_flash_attn_kvpacked_func, ring_flash_attn_qkvpacked_func = _function(
    "ring", "ring", "contiguous tokens")
zigzag_ring_flash_attn_func, zigzag_ring_flash_attn_kvpacked_func, zigzag_ring_flash_attn_qkvpacked_func = _function(
    "zigzag", "zigzag_ring", "the zigzag layout")
stripe_flash_attn_func, stripe_flash_attn_kvpacked_func, stripe_flash_attn_qkvpacked_func = _function(
    "striped", "stripe", "the striped layout, one token a stripe")
(ring_flash_attn_varlen_func, ring_flash_attn_varlen_kvpacked_func,
 ring_flash_attn_varlen_qkvpacked_func) = _varlen_function("ring", "ring", "contiguous", "contiguous tokens")
(zigzag_ring_flash_attn_varlen_func, zigzag_ring_flash_attn_varlen_kvpacked_func,
 zigzag_ring_flash_attn_varlen_qkvpacked_func) = _varlen_function("zigzag", "zigzag_ring", "zigzag", "the zigzag layout")
