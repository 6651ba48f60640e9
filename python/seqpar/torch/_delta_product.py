"""Gated DeltaProduct (arXiv 2502.10297) over sharded sequences: the delta rule with several updates of a token."""

from torch.nn import functional as F

from .. import _shapes
from . import _linear
from ._define import require_tensors
from ._layout import bounds_of, in_order, require_fit
from ._refusals import collective

_NAME = "gated_delta_product"


def _require_layout(layout, comm, tokens):
    require_fit(f"{_NAME}: layout", layout, comm, local=tokens)
    if layout.slices != 1 or not in_order(layout):
        raise ValueError(f"{_NAME}: layout is {layout}, expected a contiguous one with slices 1 and without cu_seqlens")


def _as_delta_rule(q, k, v, log_decay, beta, num_householder, comm, cu_seqlens, layout):
    """(updates of a token, family, queries and gates of updates, bounds) of the delta rule that computes the call."""
    require_tensors(_NAME, q, k, v, log_decay=log_decay, beta=beta)
    updates = _shapes.updates_of_delta_product(num_householder, q=q, k=k, v=v, log_decay=log_decay, beta=beta)
    tokens, bounds = q.shape[1], bounds_of(cu_seqlens)
    if layout is not None:
        _require_layout(layout, comm, tokens)
    if bounds is not None:
        _shapes.require_bounds(_NAME, bounds, tokens * comm.size if layout is None else layout.tokens)
    if updates > 1:  # queries of last updates, decays of first ones
        q = F.pad(q.unsqueeze(2), (0, 0, 0, 0, updates - 1, 0)).flatten(1, 2)
        log_decay = None if log_decay is None else F.pad(log_decay.unsqueeze(2), (0, 0, 0, updates - 1)).flatten(1, 2)
    family, gates = ("delta", (beta,)) if log_decay is None else ("gated_delta", (log_decay, beta))
    return updates, family, q, gates, bounds


def describe(q, k, v, log_decay, beta, num_householder, comm, *, cu_seqlens=None, layout=None, **options):
    """(description, queries, gates) of the plan of gated_delta_product() with these arguments."""
    updates, family, q, gates, bounds = _as_delta_rule(q, k, v, log_decay, beta, num_householder, comm, cu_seqlens, layout)
    return _linear.describe(family, q, k, v, gates, comm, cu_seqlens=bounds, layout=layout, updates=updates, **options), q, gates


@collective
def gated_delta_product(q, k, v, log_decay, beta, num_householder, comm, *, scale=None, initial_state=None, output_final_state=False,
                        cu_seqlens=None, layout=None, algorithm="auto", wire=None, reserve=None, normalize=False):
    """Gated DeltaProduct (arXiv 2502.10297): a token has n = num_householder keys, values and betas. Its state is
    decayed once, S = exp(g_t) S_(t-1), then updated n times, S = (I - b k k^T) S + b k v^T, and read after the last
    update: o_t = scale q_t^T S_t. Differentiable; the backward pass is also collective. Computed as gated_delta_rule()
    of n times as many tokens; queries of all except the last of each n are 0. A shard has all updates of its tokens.

        q                   [batch][local tokens][key heads][dk]; key heads divide heads
        k                   [batch][n x local tokens][key heads][dk]: all updates of a token, then those of the next
        v                   [batch][n x local tokens][heads][dv]
        log_decay           [batch][local tokens][heads], natural logarithms, at most 0; float32 or bfloat16. None: no
                            decay, as in DeltaProduct
        beta                [batch][n x local tokens][heads], in [0, 1], or [0, 2] for negative eigenvalues; float32 or
                            bfloat16
        cu_seqlens, layout  of tokens, not of updates
        the other options   as in gated_delta_rule()
    """
    updates, family, rows, gates, bounds = _as_delta_rule(q, k, v, log_decay, beta, num_householder, comm, cu_seqlens, layout)
    out = _linear._run(family, rows, k, v, gates, comm, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                       cu_seqlens=bounds, layout=layout, algorithm=algorithm, wire=wire, reserve=reserve, normalize=normalize,
                       updates=updates)
    out, state = out if output_final_state else (out, None)
    if updates > 1:
        out = out.unflatten(1, (q.shape[1], updates))[:, :, -1].contiguous()  # a view would keep all outputs alive
    return (out, state) if output_final_state else out
