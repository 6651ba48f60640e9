"""Gated DeltaNet layers of transformers' models (Qwen3-Next, Qwen3.5) with a sharded sequence: the convolution and the
recurrence cross ranks on contiguous shards, to which the hidden states move from the layout of the attention layers."""

import functools

import torch
from torch.nn import functional as F

from .. import _abi
from . import _plans
from ._collectives import redistribute
from ._conv import short_conv
from ._layout import Layout
from ._linear import gated_delta_rule
from ._refusals import tell

_CLASSES = frozenset({"Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet"})


def supported(module):
    return type(module).__name__ in _CLASSES


def follow(module, config, registrations):
    """From now on the layer computes on all ranks' tokens while `config` has a registered attn_implementation."""
    kind = type(module)
    if not getattr(kind.forward, "seqpar_follows", False):
        kind.forward = _following(kind.forward, registrations)
    module.seqpar_config = config


def _following(original, registrations):
    @functools.wraps(original)
    def forward(self, hidden_states, *arguments, **named):
        name = getattr(getattr(self, "seqpar_config", None), "_attn_implementation", None)
        registration = registrations.get(name)
        if registration is None or registration.comm.size == 1:
            return original(self, hidden_states, *arguments, **named)
        chosen = name.rpartition(":")[2]
        try:
            registration.called.add(self)
            return _forward(self, registration, chosen if chosen in _abi.ATTN_ALGORITHMS else registration.algorithm,
                            hidden_states, *arguments, **named)
        except Exception as error:
            if not torch.compiler.is_compiling():
                tell(registration.comm, error)
            raise

    forward.seqpar_follows = True
    return forward


def _projections(layer, x):
    """(queries, keys and values for the convolution, z, b, a)."""
    if not hasattr(layer, "in_proj_qkvz"):
        return layer.in_proj_qkv(x), layer.in_proj_z(x).unflatten(-1, (-1, layer.head_v_dim)), layer.in_proj_b(x), layer.in_proj_a(x)
    q, k, v, z, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(x), layer.in_proj_ba(x))
    return torch.cat([part.flatten(2) for part in (q, k, v)], -1), z, b, a


def _forward(layer, registration, algorithm, hidden_states, cache=None, attention_mask=None, position_ids=None,
             cu_seq_lens_q=None, cu_seq_lens_k=None, **_):
    kind = type(layer).__name__
    if cache is not None:
        raise ValueError(f"seqpar attention: {kind} got a cache, expected none: call the model with use_cache=False")
    if attention_mask is not None:
        raise ValueError(f"seqpar attention: {kind} got an attention mask with padding, expected none: pack sequences, with "
                         "position_ids that restart at each")
    comm = registration.comm
    hidden_states, bounds = registration.packing(hidden_states, 1, algorithm, position_ids, cu_seq_lens_q, cu_seq_lens_k)
    layout = registration.layout or Layout(_plans.kind_of(algorithm), hidden_states.shape[1] * comm.size, comm.size)
    straight = Layout("contiguous", layout.tokens, comm.size)
    moves = layout.kind != "contiguous"
    if moves:
        hidden_states = redistribute(hidden_states, layout, straight, comm)
    shared = dict(cu_seqlens=bounds, layout=straight)
    mixed, z, b, a = _projections(layer, hidden_states)
    mixed = short_conv(mixed, layer.conv1d.weight, comm, bias=layer.conv1d.bias, activation=layer.activation, **shared)
    sizes = (layer.num_k_heads, layer.head_k_dim), (layer.num_k_heads, layer.head_k_dim), (layer.num_v_heads, layer.head_v_dim)
    q, k, v = (part.unflatten(-1, size) for part, size in zip(mixed.split([n * d for n, d in sizes], -1), sizes))
    log_decay = -layer.A_log.float().exp() * F.softplus(a.float() + layer.dt_bias)
    out = gated_delta_rule(q, k, v, log_decay, b.sigmoid(), comm, normalize=True, **shared)
    out = layer.norm(out.reshape(-1, layer.head_v_dim), z.reshape(-1, layer.head_v_dim)).reshape(*out.shape[:2], -1)
    out = layer.out_proj(out)
    return redistribute(out, straight, layout, comm) if moves else out
