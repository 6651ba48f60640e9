"""Mamba-2's SSD (arXiv 2405.21060) over sharded sequences, with the arguments of mamba_ssm's mamba_chunk_scan_combined."""

import math

import torch
from torch.nn import functional as F

from .. import _shapes
from ._define import autocasts
from ._layout import bounds_of, require_fit
from ._linear import _run
from ._refusals import collective
from ._sequence_index import bounds_from


def _is_floating(kind):
    return kind.is_floating_point


def _require_shapes(x, dt, A, B, C, D, z, dt_bias):
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) and not (tensor is None and name in ("D", "z", "dt_bias")):
            raise TypeError(f"mamba2: {name} is {type(tensor).__name__}, expected a tensor")
    if not autocasts(x):
        _shapes.require_mamba2_type(x.dtype, B.dtype, C.dtype)
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16) and not autocasts(x):
        raise TypeError(f"mamba2: x is {x.dtype}, expected float32, float16 or bfloat16")
    _shapes.require_floating("mamba2", {name: None if tensor is None else tensor.dtype for name, tensor in tensors.items()},
                             _is_floating)
    _shapes.require_mamba2({name: None if tensor is None else tuple(tensor.shape) for name, tensor in tensors.items()})


def _steps(dt, dt_bias, dt_softplus, dt_limit):
    """float32 [batch][tokens][heads]: the step sizes."""
    dt = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    least, most = map(float, dt_limit)
    if dt_softplus:
        dt = F.softplus(dt)
    return dt if dt_softplus and least <= 0 and most == math.inf else dt.clamp(least, most)


@collective
def mamba2(x, dt, A, B, C, chunk_size=None, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, cu_seqlens=None,
           dt_softplus=False, dt_limit=(0.0, math.inf), return_final_states=False, return_varlen_states=False, state_dtype=None,
           *, comm, layout=None, algorithm="auto", wire=None, reserve=None):
    """Mamba-2's SSD (arXiv 2405.21060), S_t = exp(dt_t A) S_(t-1) + dt_t x_t B_t^T, y_t = S_t C_t + D x_t, over a sequence
    in contiguous shards on the ranks, with the arguments of mamba_ssm's mamba_chunk_scan_combined. Differentiable; the
    backward pass is also collective, and gradients of A, D and dt_bias are this rank's share.

        x             [batch][local tokens][heads][head dim]
        dt            [batch][local tokens][heads]; the step is dt + dt_bias, after softplus if dt_softplus, within
                      dt_limit, in float32
        A             [heads], at most 0
        B, C          [batch][local tokens][groups][state]; groups divide heads
        chunk_size    without effect: the library selects its chunks
        D             [heads] or [heads][head dim]
        z             as x: the result is multiplied by silu(z)
        dt_bias       [heads]
        initial_states  float32 [batch or packed sequences][heads][head dim][state]; only rank 0's is used (packed: equal
                      on all ranks)
        seq_idx       integers [batch][local tokens], the sequence of each token: a change starts a packed sequence.
                      Read on all ranks at the first use of the tensor; not under torch.compile
        cu_seqlens    bounds of packed sequences in the whole, batch 1: tuple of ints, or a tensor
        return_final_states  returns (y, states): float32 [batch][heads][head dim][state] after this rank's last token; the
                      last rank's are final, and only their gradient is used
        layout, algorithm, wire, reserve  gla()'s
    """
    _require_shapes(x, dt, A, B, C, D, z, dt_bias)
    if return_varlen_states:
        raise ValueError("mamba2: got return_varlen_states, expected False: states of all packed sequences are not returned")
    if state_dtype not in (None, torch.float32):
        raise ValueError(f"mamba2: state_dtype is {state_dtype}, expected None or torch.float32, the type of states")
    bounds = bounds_of(cu_seqlens)
    if layout is not None:
        require_fit("mamba2: layout", layout, comm, local=x.shape[1])
    if seq_idx is not None:
        found = bounds_from("mamba2", seq_idx, x.shape[1], list(layout.lengths) if layout else [x.shape[1]] * comm.size, comm)
        if bounds is not None and found != (None if len(bounds) == 2 else bounds):
            raise ValueError(f"mamba2: seq_idx changes at {found}, expected the bounds in cu_seqlens, {bounds}")
        bounds = found
    states = (x.shape[0] if bounds is None else len(bounds) - 1, *x.shape[2:], B.shape[3])
    _shapes.require_floating("mamba2", {"initial_states": None if initial_states is None else initial_states.dtype},
                             _is_floating)
    if initial_states is not None and tuple(initial_states.shape) != states:
        raise ValueError(f"mamba2: initial_states has the shape {tuple(initial_states.shape)}, expected {states}")
    steps = _steps(dt, dt_bias, dt_softplus, dt_limit)
    out = _run("scalar", C, B, x, (steps * A.float(), steps), comm, scale=1.0, output_final_state=return_final_states,
               cu_seqlens=bounds, initial_state=None if initial_states is None else initial_states.float().transpose(2, 3),
               layout=layout, algorithm=algorithm, wire=wire, reserve=reserve, input_gate=True)
    out, states = out if return_final_states else (out, None)
    if D is not None:
        out = torch.addcmul(out, x.to(out.dtype), (D if D.dim() == 2 else D.unsqueeze(-1)).to(out.dtype))
    if z is not None:
        out = out * F.silu(z)
    return (out, states.transpose(2, 3)) if return_final_states else out
