"""Mamba-2 layers of transformers' models on contiguous shards: the mixers share their parameters' names."""

from torch.nn import functional as F

from ._conv import short_conv
from ._mamba import mamba2


def _mixer(layer, x, comm, **shared):
    kind = type(layer).__name__
    if layer.activation not in ("silu", "swish"):
        raise ValueError(f"seqpar attention: {kind} has the activation {layer.activation!r}, expected 'silu'")
    width, state = layer.intermediate_size, layer.n_groups * layer.ssm_state_size
    projected = layer.in_proj(x * getattr(layer, "ssm_in_multiplier", 1))
    if hasattr(layer, "mup_vector"):
        projected = projected * layer.mup_vector
    gate, mixed, dt = projected.split([width, layer.conv_dim, layer.num_heads], -1)
    mixed = short_conv(mixed, layer.conv1d.weight, comm, bias=layer.conv1d.bias, activation=layer.activation, **shared)
    values, b, c = mixed.split([width, state, state], -1)
    groups = (layer.n_groups, layer.ssm_state_size)
    out = mamba2(values.unflatten(-1, (layer.num_heads, layer.head_dim)), dt, -layer.A_log.float().exp(), b.unflatten(-1, groups),
                 c.unflatten(-1, groups), layer.chunk_size, comm=comm, D=layer.D, dt_bias=layer.dt_bias, dt_softplus=True,
                 dt_limit=layer.time_step_limit, **shared).flatten(2)
    out = layer.norm(out, gate) if getattr(layer, "mamba_rms_norm", True) else out * F.silu(gate)
    return layer.out_proj(out.to(x.dtype))


LAYERS = dict.fromkeys(("Mamba2Mixer", "BambaMixer", "NemotronHMamba2Mixer", "GraniteMoeHybridMambaLayer", "FalconH1Mixer",
                        "Zamba2MambaMixer"), _mixer)
