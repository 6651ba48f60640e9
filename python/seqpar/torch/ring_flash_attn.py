"""The functions of ring-flash-attention with their arguments, on seqpar's algorithms.

    from seqpar.torch.ring_flash_attn import zigzag_ring_flash_attn_func
    out = zigzag_ring_flash_attn_func(q, k, v, causal=True, group=group)

Unsupported arguments are errors.
"""

import functools

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
