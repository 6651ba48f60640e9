"""Sequence parallelism for PyTorch: collectives and attention over sharded sequences, as differentiable operators.

    import seqpar.torch as sp
    comm = sp.comm(mesh["cp"])                                  # or a ProcessGroup; torch.distributed's world by default
    layout = sp.Layout("zigzag", tokens=ids.shape[1], ranks=comm.size)
    ids, labels, positions = sp.shard_batch(ids, layout, comm)
    out = sp.attention(q, k, v, comm, causal=True, layout=layout)

Host communicators (gloo) take tensors in host memory; device communicators (NCCL) take tensors of their GPU, work on
torch's current stream and do not synchronize. Each function's backward pass is its adjoint, which is also collective.
The operators are torch.ops.seqpar.*, functional and with fakes, so that torch.compile(fullgraph=True) supports them.
Nothing is compiled against torch. docs/pytorch.md has examples.
"""

from ._attention import attention, explain
from ._cache_attention import cached_attention, local_attention
from ._collectives import (all_gather, halo, merge, redistribute, reduce_scatter, shift, start_all_gather, start_halo,
                           start_redistribute, start_reduce_scatter, start_shift, start_to_heads, start_to_sequence, to_heads,
                           to_sequence, token_mean)
from ._comm import Comm, Error
from ._connect import close, comm
from ._context import context_parallel, context_parallel_unshard
from ._conv import short_conv
from ._delta_product import gated_delta_product
from ._kernels import LocalCall, flex, sdpa
from ._layout import Layout
from ._linear_functions import *
from ._lse import all_reduce_lse, decode, reduce_scatter_lse
from ._mamba import mamba2
from ._mask import Mask, solve_layout
from ._ring import Ring, ring
from ._scan import all_scan, start_all_scan
from ._sharding import positions, shard, shard_batch, shift_labels, unshard
from ._work import Work
from . import _attention, _conv, _flops, _linear, _linear_functions, _ops

# Operators with results that selective activation checkpointing saves instead of sending again.
SAVE_OPS = frozenset({
    *(operator.overload for operator in (
        _ops.to_heads, _ops.to_sequence, _ops.all_gather, _ops.reduce_scatter, _ops.halo, _ops.redistribute, _ops.shift,
        _ops.merge, _ops.all_scan, _attention._forward, _conv._forward, _linear._forward)),
    _ops.start_to_heads, _ops.start_to_sequence, _ops.start_all_gather, _ops.start_reduce_scatter, _ops.start_halo,
    _ops.start_redistribute, _ops.start_shift, _ops.start_all_scan, _ops.wait_to_heads, _ops.wait_to_sequence,
    _ops.wait_all_gather, _ops.wait_reduce_scatter, _ops.wait_halo, _ops.wait_redistribute, _ops.wait_shift,
    _ops.wait_all_scan})

__all__ = [
    "Comm", "Error", "Layout", "LocalCall", "Mask", "Ring", "SAVE_OPS", "Work", "all_gather", "all_reduce_lse", "all_scan",
    "attention", "cached_attention", "close", "comm", "context_parallel", "context_parallel_unshard", "decode",
    "explain", "flex", "gated_delta_product", "halo", "local_attention", "mamba2",
    "merge", "positions", "redistribute", "reduce_scatter", "reduce_scatter_lse", "ring", "sdpa", "shard",
    "shard_batch", "shift", "shift_labels", "short_conv", "solve_layout",
    "start_all_gather", "start_all_scan", "start_halo", "start_redistribute", "start_reduce_scatter", "start_shift",
    "start_to_heads", "start_to_sequence", "to_heads", "to_sequence", "token_mean", "unshard", *_linear_functions.__all__]
