"""Sequence parallelism for JAX: collectives and attention over sharded sequences, inside of jax.shard_map.

    import seqpar.jax as sp
    comm = sp.Comm(mesh, "sp")

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(None, "sp"),) * 3, out_specs=P(None, "sp"), check_vma=False)
    def attend(q, k, v):
        return sp.attention(q, k, v, comm, causal=True)

Everything is differentiable; derivatives are the adjoints, which are also collective. Ranks are the devices along one
axis of a mesh, all of this process. Calls keep their order within a traced function, by a token that each call passes
to the next. Functions are custom calls of XLA by jax.ffi; a small library for them is compiled at first use.
docs/jax.md has examples.
"""

from .._abi import Error
from . import _linear_functions
from ._attention import attention, explain
from ._collectives import (all_gather, halo, merge, redistribute, reduce_scatter, ring_permute, short_conv, to_heads,
                           to_sequence)
from ._comm import Comm
from ._delta_product import gated_delta_product
from ._layout import Layout, positions, shard, unshard
from ._linear_functions import *
from ._mamba import mamba2
from ._mask import Mask, solve_layout
from ._scan import all_scan

__all__ = ["Comm", "Error", "Layout", "Mask", "all_gather", "all_scan", "attention", "explain", "gated_delta_product", "halo",
           "mamba2", "merge", "positions", "redistribute", "reduce_scatter", "ring_permute", "shard", "short_conv", "solve_layout", "to_heads",
           "to_sequence", "unshard", *_linear_functions.__all__]
