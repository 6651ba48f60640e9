"""Delta rule layers of transformers' models on contiguous shards: Gated DeltaNet (Qwen3-Next, Qwen3.5, OLMo Hybrid) and
Kimi Delta Attention."""

import torch
from torch.nn import functional as F

from ._conv import short_conv
from ._linear_functions import gated_delta_rule, kda


def _convolved(layer, mixed, sizes, comm, **shared):
    """Queries, keys and values [batch][tokens][heads][dim] after the convolution; sizes: (heads, dim) of each."""
    mixed = short_conv(mixed, layer.conv1d.weight, comm, bias=layer.conv1d.bias, activation=layer.activation, **shared)
    return (part.unflatten(-1, size) for part, size in zip(mixed.split([n * d for n, d in sizes], -1), sizes))


def _concatenated(layer, x):
    return torch.cat([project(x) for project in (layer.q_proj, layer.k_proj, layer.v_proj)], -1)


def _projections(layer, x):
    """(queries, keys and values for the convolution, gate of the output, b, a)."""
    if hasattr(layer, "q_proj"):
        return _concatenated(layer, x), layer.g_proj(x), layer.b_proj(x), layer.a_proj(x)
    if hasattr(layer, "in_proj_qkv"):
        return layer.in_proj_qkv(x), layer.in_proj_z(x), layer.in_proj_b(x), layer.in_proj_a(x)
    q, k, v, z, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(x), layer.in_proj_ba(x))
    return torch.cat([part.flatten(2) for part in (q, k, v)], -1), z, b, a


def _gated_delta_net(layer, x, comm, **shared):
    mixed, z, b, a = _projections(layer, x)
    keys = (layer.num_k_heads, layer.head_k_dim)
    q, k, v = _convolved(layer, mixed, (keys, keys, (layer.num_v_heads, layer.head_v_dim)), comm, **shared)
    beta = b.sigmoid() * (2 if getattr(layer, "allow_neg_eigval", False) else 1)
    log_decay = -layer.A_log.float().exp() * F.softplus(a.float() + layer.dt_bias)
    out = gated_delta_rule(q, k, v, log_decay, beta, comm, normalize=True, **shared)
    norm, project = (layer.o_norm, layer.o_proj) if hasattr(layer, "o_proj") else (layer.norm, layer.out_proj)
    return project(norm(out.reshape(-1, layer.head_v_dim), z.reshape(-1, layer.head_v_dim)).reshape(*out.shape[:2], -1))


def _kimi_delta_attention(layer, x, comm, **shared):
    q, k, v = _convolved(layer, _concatenated(layer, x), ((layer.num_heads, layer.head_dim),) * 3, comm, **shared)
    out = kda(q, k, v, layer.forget_gate(x), layer.b_proj(x).sigmoid(), comm, normalize=True, **shared)
    gate = layer.g_b_proj(layer.g_a_proj(x)).unflatten(-1, (-1, layer.head_dim))
    return layer.o_proj(layer.o_norm(out, gate).flatten(2))


LAYERS = {**dict.fromkeys(("Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet", "OlmoHybridGatedDeltaNet"),
                          _gated_delta_net),
          "KimiLinearDeltaAttention": _kimi_delta_attention}
