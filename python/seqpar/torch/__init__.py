"""Sequence parallelism for PyTorch: collectives and attention over sharded sequences, as differentiable operators.

    import seqpar.torch as sp
    comm = sp.comm(mesh["cp"])                                  # or a ProcessGroup; torch.distributed's world by default
    layout = sp.Layout("zigzag", tokens=ids.shape[1], ranks=comm.size)
    ids, labels, positions = sp.shard_batch(ids, layout, comm)
    out = sp.attention(q, k, v, comm, causal=True, layout=layout)

Host communicators (gloo) take tensors in host memory; device communicators (NCCL) take those of their GPU, work on
torch's current stream and do not synchronize. Each function's backward pass is its adjoint, and collective too. The
operators are torch.ops.seqpar.*, functional and with fakes, so that torch.compile(fullgraph=True) takes them. Nothing is
compiled against torch. docs/pytorch.md has examples.
"""

from ._attention import attention, explain
from ._collectives import all_gather, all_scan, halo, redistribute, reduce_scatter, to_heads, to_sequence, token_mean
from ._comm import Comm, Error, close, comm
from ._dropin import (ring_flash_attn_func, ring_flash_attn_kvpacked_func, ring_flash_attn_qkvpacked_func,
                      stripe_flash_attn_func, stripe_flash_attn_kvpacked_func, stripe_flash_attn_qkvpacked_func,
                      zigzag_ring_flash_attn_func, zigzag_ring_flash_attn_kvpacked_func,
                      zigzag_ring_flash_attn_qkvpacked_func)
from ._layout import Layout, positions, shard, shard_batch, shift_labels, unshard
from ._linear import gla, linear_attention, retention, simple_gla
from . import _attention, _linear, _ops

# What selective activation checkpointing saves rather than sends again.
SAVE_OPS = frozenset({_ops.to_heads, _ops.to_sequence, _ops.all_gather, _ops.reduce_scatter, _ops.halo,
                      _ops.redistribute, _ops.all_scan, _attention._forward, _linear._forward})

__all__ = ["Comm", "Error", "Layout", "SAVE_OPS", "all_gather", "all_scan", "attention", "close", "comm", "explain", "gla",
           "halo", "linear_attention", "positions", "redistribute", "reduce_scatter", "retention", "shard", "shard_batch",
           "shift_labels", "simple_gla", "to_heads", "to_sequence", "token_mean", "unshard",
           "ring_flash_attn_func", "ring_flash_attn_kvpacked_func", "ring_flash_attn_qkvpacked_func",
           "stripe_flash_attn_func", "stripe_flash_attn_kvpacked_func", "stripe_flash_attn_qkvpacked_func",
           "zigzag_ring_flash_attn_func", "zigzag_ring_flash_attn_kvpacked_func", "zigzag_ring_flash_attn_qkvpacked_func"]
