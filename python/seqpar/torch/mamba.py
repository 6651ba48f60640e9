"""Mamba2 layers of mamba_ssm with a sharded sequence: short convolution and SSD cross ranks.

    import seqpar.torch.mamba
    with seqpar.torch.mamba.context_parallel(model, comm, cu_seqlens=bounds):
        out = model(sp.shard(u, layout, comm))
    out.sum().backward()

Tokens are in contiguous shards. Decoding, and layers of mamba_ssm's tensor parallelism, are refused.
"""

import contextlib
import functools

import torch
from torch.nn import functional as F

from ._conv import short_conv
from ._mamba import mamba2
from ._refusals import telling
from ._sequence_index import bounds_from

__all__ = ["context_parallel", "forward", "sizes_of"]


def sizes_of(layer):
    """The widths of the results of in_proj: gate and values of the layer's MLP, z, the convolution's channels, dt."""
    channels = layer.conv1d.in_channels
    mlp = (layer.in_proj.out_features - layer.d_ssm - channels - layer.nheads) // 2
    return mlp, mlp, layer.d_ssm, channels, layer.nheads


def forward(layer, u, comm, *, seq_idx=None, cu_seqlens=None, layout=None):
    """The output of a Mamba2 layer for this rank's tokens u [batch][local tokens][model]. Collective, as its backward pass;
    gradients of parameters are this rank's share. seq_idx, cu_seqlens, layout: as in mamba2()."""
    if layer.activation not in ("silu", "swish"):
        raise ValueError(f"mamba: activation is {layer.activation!r}, expected 'silu'")
    if seq_idx is not None:
        lengths = [u.shape[1]] * comm.size if layout is None else list(layout.lengths)
        found = bounds_from("mamba", seq_idx, u.shape[1], lengths, comm)
        if cu_seqlens is None:
            cu_seqlens, seq_idx = found, None
    shared, heads = dict(cu_seqlens=cu_seqlens, layout=layout), (layer.nheads, layer.headdim)
    mlp_gate, mlp_values, z, mixed, dt = layer.in_proj(u).split(sizes_of(layer), -1)
    mixed = short_conv(mixed, layer.conv1d.weight, comm, bias=layer.conv1d.bias, activation=layer.activation, **shared)
    state = layer.ngroups * layer.d_state
    values, b, c = mixed.split([layer.d_ssm, state, state], -1)
    groups = (layer.ngroups, layer.d_state)
    y = mamba2(values.unflatten(-1, heads), dt, -layer.A_log.float().exp(), b.unflatten(-1, groups), c.unflatten(-1, groups),
               layer.chunk_size, D=layer.D.unflatten(0, heads) if layer.D_has_hdim else layer.D,
               z=None if layer.rmsnorm else z.unflatten(-1, heads), dt_bias=layer.dt_bias, dt_softplus=True, seq_idx=seq_idx,
               dt_limit=layer.dt_limit, comm=comm, **shared).flatten(2)
    y = layer.norm(y, z) if layer.rmsnorm else y
    if mlp_gate.shape[-1]:
        y = torch.cat([F.silu(mlp_gate) * mlp_values, y], -1)
    return layer.out_proj(y)


def _bound(layer, comm, layout, bounds):
    @functools.wraps(layer.forward)
    @telling(comm)
    def sharded(u, seqlen=None, seq_idx=None, cu_seqlens=None, inference_params=None):
        for name, value in (("seqlen", seqlen), ("inference_params", inference_params)):
            if value is not None:
                raise ValueError(f"mamba: got {name}, expected None: tokens are [batch][local tokens], and there is no decoding")
        return forward(layer, u, comm, seq_idx=seq_idx, cu_seqlens=bounds if cu_seqlens is None else cu_seqlens, layout=layout)

    return sharded


@contextlib.contextmanager
def context_parallel(model, comm, *, cu_seqlens=None, layout=None):
    """Inside, mamba_ssm's Mamba2 layers of `model` (or a subclass's) compute on the tokens of all ranks. Backward passes may
    run outside, except with activation checkpointing. cu_seqlens: bounds of packed sequences in the whole, batch 1, unless
    the layer is called with them; layout: a contiguous Layout, None: shards of equal length."""
    layers = [module for module in model.modules() if any(kind.__name__ == "Mamba2" for kind in type(module).__mro__)]
    if not layers:
        raise ValueError(f"mamba: {type(model).__name__} contains no layer of the class Mamba2")
    for layer in layers:
        if getattr(layer, "process_group", None) is not None:
            raise ValueError("mamba: a Mamba2 layer has a process_group, expected None: tensor parallelism is not supported")
    try:
        for layer in layers if comm.size > 1 or cu_seqlens is not None else ():
            layer.forward = _bound(layer, comm, layout, cu_seqlens)
        yield model
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)
