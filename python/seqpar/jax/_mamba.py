"""Mamba-2's SSD over sharded sequences, with the arguments of mamba_ssm's mamba_chunk_scan_combined."""

import jax
import jax.numpy as jnp

from .. import _shapes
from ._attention import _linear
from ._collectives import is_floating


def mamba2(x, dt, A, B, C, chunk_size=None, D=None, z=None, dt_bias=None, initial_states=None, cu_seqlens=None,
           dt_softplus=False, dt_limit=(0.0, float("inf")), return_final_states=False, *, comm, algorithm="auto", wire=None,
           reserve=None):
    """Mamba-2's SSD (arXiv 2405.21060) over a sequence in contiguous shards on the ranks, with the arguments of mamba_ssm's
    mamba_chunk_scan_combined, except seq_idx. Differentiable.

        x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit   as in seqpar.torch.mamba2()
        chunk_size             without effect
        cu_seqlens             bounds of packed sequences in the whole, batch 1: tuple of ints
        initial_states         float32 [batch][heads][head dim][state]; only rank 0's is used
        return_final_states    returns (y, states after this rank's last token)
        algorithm, wire, reserve   as in gla()
    """
    arrays = dict(x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias)
    _shapes.require_mamba2({name: None if array is None else array.shape for name, array in arrays.items()})
    _shapes.require_floating("mamba2", {name: None if array is None else array.dtype for name, array in arrays.items()}, is_floating)
    _shapes.require_mamba2_type(x.dtype, B.dtype, C.dtype)
    if initial_states is not None and initial_states.shape != (fits := (x.shape[0], *x.shape[2:], B.shape[3])):
        raise ValueError(f"mamba2: initial_states has the shape {initial_states.shape}, expected {fits}")
    steps = dt.astype(jnp.float32) if dt_bias is None else dt.astype(jnp.float32) + dt_bias.astype(jnp.float32)
    steps = jnp.clip(jax.nn.softplus(steps) if dt_softplus else steps, *dt_limit)
    found = _linear("scalar", C, B, x, (steps * A.astype(jnp.float32), steps), comm, scale=1.0, output_final_state=return_final_states,
                    initial_state=None if initial_states is None else jnp.swapaxes(initial_states, 2, 3), cu_seqlens=cu_seqlens,
                    algorithm=algorithm, wire=wire, reserve=reserve, input_gate=True, name="mamba2")
    out, states = found if return_final_states else (found, None)
    if D is not None:
        out = out + x * (D if D.ndim == 2 else D[:, None]).astype(x.dtype)
    if z is not None:
        out = out * jax.nn.silu(z)
    return (out, jnp.swapaxes(states, 2, 3)) if return_final_states else out
