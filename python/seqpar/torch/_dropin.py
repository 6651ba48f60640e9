"""The functions of ring-flash-attention with their arguments, on seqpar's algorithms. What they cannot do is an error."""

from ._attention import attention
from ._comm import comm


def _run(algorithm, q, k, v, dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs,
         group):
    if dropout_p != 0.0:
        raise ValueError(f"{algorithm}: dropout_p is {dropout_p}, expected 0: there is no dropout")
    if alibi_slopes is not None:
        raise ValueError(f"{algorithm}: alibi_slopes are given, expected None: there is no ALiBi")
    out, lse = attention(q, k, v, comm(group), causal=causal, window=window_size, scale=softmax_scale,
                         deterministic=deterministic, algorithm=algorithm, return_lse=True)
    return (out, lse, None) if return_attn_probs else out


def _function(algorithm, name, what):
    def function(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None,
                 deterministic=False, return_attn_probs=False, group=None):
        return _run(algorithm, q, k, v, dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic,
                    return_attn_probs, group)

    def kvpacked(q, kv, *arguments, **named):
        return function(q, kv[:, :, 0], kv[:, :, 1], *arguments, **named)

    def qkvpacked(qkv, *arguments, **named):
        return function(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *arguments, **named)

    shapes = {function: "q, k, v [batch][tokens of the rank][heads][dim]", kvpacked: "kv [batch][tokens][2][heads][dim]",
              qkvpacked: "qkv [batch][tokens][3][heads][dim]"}
    for one, suffix in ((function, "func"), (kvpacked, "kvpacked_func"), (qkvpacked, "qkvpacked_func")):
        one.__name__ = one.__qualname__ = f"{name}_flash_attn_{suffix}"
        one.__doc__ = f"""Attention of {shapes[one]}, shards of equal length of {what}. With
        return_attn_probs: (out, lse [batch][heads][tokens], None). dropout_p and alibi_slopes are refused."""
    return function, kvpacked, qkvpacked


ring_flash_attn_func, ring_flash_attn_kvpacked_func, ring_flash_attn_qkvpacked_func = _function(
    "ring", "ring", "contiguous tokens")
zigzag_ring_flash_attn_func, zigzag_ring_flash_attn_kvpacked_func, zigzag_ring_flash_attn_qkvpacked_func = _function(
    "zigzag", "zigzag_ring", "the zigzag layout")
stripe_flash_attn_func, stripe_flash_attn_kvpacked_func, stripe_flash_attn_qkvpacked_func = _function(
    "striped", "stripe", "the striped layout, one token a stripe")
