"""Attention on whole sequences by its definition: slow, in the tensors' type, differentiable by autograd."""

import torch


def visible(queries, keys, causal=False, window=(-1, -1), cu_seqlens=None, device=None):
    """bool [queries][keys]: the keys that each query sees."""
    i, j = torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)[None, :]
    i = i + (keys - queries)  # cross-attention: the last query is aligned with the last key
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    left, right = window
    if causal:
        right = 0
    if left >= 0:
        seen &= j >= i - left
    if right >= 0:
        seen &= j <= i + right
    if cu_seqlens is not None:
        starts = torch.tensor(cu_seqlens, device=device)
        number = torch.searchsorted(starts, j[0], right=True)
        seen &= number[:, None] == number[None, :]
    return seen


def softmax(q, k, v, causal=False, window=(-1, -1), scale=None, softcap=0.0, sinks=None, cu_seqlens=None):
    """Softmax attention of [batch][tokens][heads][dim]."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    seen = visible(q.shape[1], k.shape[1], causal, window, cu_seqlens, q.device)
    scores = scores.masked_fill(~seen, -torch.inf)
    top = scores.amax(-1, keepdim=True).detach().clamp(min=-1e30)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks[None, :, None, None] - top)
    return torch.einsum("bhij,bjhd->bihd", weights / torch.where(total == 0, 1, total), v)


def linear(family, q, k, v, log_decay=None, scale=None, initial_state=None, cu_seqlens=None):
    """(out, final state) of the recurrence of "gla", "scalar", "fixed" or "sum", token by token."""
    batch, tokens, _, dk = q.shape
    heads, dv = v.shape[2:]
    q, k = (x.repeat_interleave(heads // x.shape[2], 2) for x in (q, k))
    state = q.new_zeros(batch, heads, dk, dv) if initial_state is None else initial_state[:batch].to(q.dtype)
    starts = set() if cu_seqlens is None else set(cu_seqlens[1:-1])
    out = []
    for t in range(tokens):
        if t in starts:
            number = max(s for s, start in enumerate(cu_seqlens[:-1]) if start == t)
            state = torch.zeros_like(state) if initial_state is None else initial_state[number:number + 1].to(q.dtype)
        if log_decay is not None:
            decay = {"gla": lambda: log_decay[:, t, :, :, None], "scalar": lambda: log_decay[:, t, :, None, None],
                     "fixed": lambda: log_decay[None, :, None, None]}[family]()
            state = state * torch.exp(decay)
        state = state + k[:, t, :, :, None] * v[:, t, :, None, :]
        out.append(torch.einsum("bhd,bhde->bhe", q[:, t], state) * (dk ** -0.5 if scale is None else scale))
    return torch.stack(out, 1) if out else v.clone(), state


def delta(q, k, v, log_decay, beta, scale=None, initial_state=None, cu_seqlens=None, normalize=False):
    """(out, final state) of the delta rule, token by token. log_decay: [batch][tokens][heads], with another dimension
    for decays per channel, or None."""
    batch, tokens, _, dk = q.shape
    heads, dv = v.shape[2:]
    if normalize:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(heads // x.shape[2], 2) for x in (q, k))
    first = lambda number: (q.new_zeros(batch, heads, dk, dv) if initial_state is None else
                            initial_state[number:number + batch].to(q.dtype))
    state, starts, out = first(0), {} if cu_seqlens is None else {start: i for i, start in enumerate(cu_seqlens[:-1])}, []
    for t in range(tokens):
        if t in starts:
            state = first(starts[t])
        if log_decay is not None:
            decay = torch.exp(log_decay[:, t])
            state = state * (decay[..., None] if decay.dim() == 3 else decay[..., None, None])
        error = v[:, t] - torch.einsum("bhd,bhde->bhe", k[:, t], state)
        state = state + (beta[:, t, :, None] * k[:, t])[..., None] * error[:, :, None]
        out.append(torch.einsum("bhd,bhde->bhe", q[:, t], state) * (dk ** -0.5 if scale is None else scale))
    return torch.stack(out, 1) if out else v.clone(), state
