"""Gated DeltaProduct (arXiv 2502.10297) over sharded sequences: the delta rule with several updates of a token."""

import jax.numpy as jnp

from .. import _shapes
from ._attention import _linear
from ._comm import require_comm


def gated_delta_product(q, k, v, log_decay, beta, num_householder, comm, *, scale=None, initial_state=None, output_final_state=False,
                        cu_seqlens=None, algorithm="auto", wire=None, reserve=None, normalize=False):
    """Gated DeltaProduct (arXiv 2502.10297): a token has n = num_householder keys, values and betas. Its state is
    decayed once, S = exp(g_t) S_(t-1), then updated n times, S = (I - b k k^T) S + b k v^T, and read after the last
    update: o_t = scale q_t^T S_t. Differentiable. Computed as gated_delta_rule() of n times as many tokens; queries of
    all except the last of each n are 0.

        q                  [batch][local tokens][key heads][dk]; key heads divide heads
        k                  [batch][n x local tokens][key heads][dk]: all updates of a token, then those of the next
        v                  [batch][n x local tokens][heads][dv]
        log_decay          [batch][local tokens][heads], natural logarithms, at most 0; float32 or bfloat16. None: no
                           decay, as in DeltaProduct
        beta               [batch][n x local tokens][heads], in [0, 1], or [0, 2] for negative eigenvalues; float32 or
                           bfloat16
        cu_seqlens         of tokens, not of updates
        the other options  as in gated_delta_rule()
    """
    name = "gated_delta_product"
    require_comm(name, comm)
    updates = _shapes.updates_of_delta_product(num_householder, q=q, k=k, v=v, log_decay=log_decay, beta=beta)
    if cu_seqlens is not None:
        bounds = _shapes.integers(f"{name}: cu_seqlens", cu_seqlens, 2)
        _shapes.require_bounds(name, bounds, q.shape[1] * comm.size)
        cu_seqlens = tuple(updates * bound for bound in bounds)

    def spread(x, before, behind):
        """A row of each token as a row of each update: zeros except one."""
        padded = jnp.pad(x[:, :, None], ((0, 0), (0, 0), (before, behind), *((0, 0),) * (x.ndim - 2)))
        return padded.reshape(x.shape[0], updates * x.shape[1], *x.shape[2:])

    q = spread(q, updates - 1, 0)
    family, gates = ("delta", (beta,)) if log_decay is None else ("gated_delta", (spread(log_decay, 0, updates - 1), beta))
    found = _linear(family, q, k, v, gates, comm, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                    cu_seqlens=cu_seqlens, algorithm=algorithm, wire=wire, reserve=reserve, normalize=normalize, name=name)
    out, state = found if output_final_state else (found, None)
    out = out[:, updates - 1::updates]
    return (out, state) if output_final_state else out
