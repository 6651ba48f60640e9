"""Gated DeltaProduct (arXiv 2502.10297) over sharded sequences: the delta rule with several updates of a token."""

from .. import _families
from ._attention import _linear, as_delta_rule
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
    require_comm(_families.PRODUCT, comm)
    updates, family, rows, gates, bounds = as_delta_rule(q, k, v, log_decay, beta, num_householder, comm, cu_seqlens)
    found = _linear(family, rows, k, v, gates, comm, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                    cu_seqlens=bounds, algorithm=algorithm, wire=wire, reserve=reserve, normalize=normalize, name=_families.PRODUCT)
    out, state = found if output_final_state else (found, None)
    out = out[:, updates - 1::updates]
    return (out, state) if output_final_state else out
