"""Gates that FLA's functions compute from projections inside their kernels, by the formulas of FLA's documentation, in float32."""

import torch
from torch.nn import functional as F


def beta_of(name, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval):
    """beta, from logits if use_beta_sigmoid_in_kernel."""
    if not use_beta_sigmoid_in_kernel:
        if allow_neg_eigval:
            raise ValueError(f"{name}: allow_neg_eigval is True, expected use_beta_sigmoid_in_kernel with it: it scales the sigmoid of beta")
        return beta
    return beta.float().sigmoid() * (2 if allow_neg_eigval else 1)


def _of_heads(name, what, x, shape):
    if x.numel() != shape.numel():
        raise ValueError(f"{name}: {what} has {x.numel()} elements, expected {shape.numel()}, those of {tuple(shape)}")
    return x.float().reshape(shape)


def decay_of(name, g, use_gate_in_kernel=False, A_log=None, dt_bias=None, safe_gate=False, lower_bound=None):
    """The logarithms of the decays, from projections [batch][tokens][heads] or [batch][tokens][heads][dk] if use_gate_in_kernel."""
    if not use_gate_in_kernel:
        for what, x in (("A_log", A_log), ("dt_bias", dt_bias)):
            if x is not None:
                raise ValueError(f"{name}: got {what}, expected use_gate_in_kernel=True with it")
        return g
    if lower_bound is None and (A_log is None or safe_gate):
        raise ValueError(f"{name}: got use_gate_in_kernel, expected {'a lower_bound with safe_gate' if safe_gate else 'A_log or lower_bound'}")
    if lower_bound is not None and not lower_bound < 0:
        raise ValueError(f"{name}: lower_bound is {lower_bound}, expected a negative logarithm")
    rows = g.float()
    if dt_bias is not None:
        rows = rows + _of_heads(name, "dt_bias", dt_bias, g.shape[2:])
    rate = 1.0 if A_log is None else _of_heads(name, "A_log", A_log, g.shape[2:3] + (1,) * (g.dim() - 3)).exp()
    return -rate * F.softplus(rows) if lower_bound is None else lower_bound * torch.sigmoid(rate * rows)
