"""Definitions of the operators for jax_checks.py, on the whole sequence."""

import jax
import jax.numpy as jnp
import numpy as np


def softmax(q, k, v, causal=False, window=-1, sinks=None, bounds=None, mask=None):
    group = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, group, 2) for x in (k, v))
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) * q.shape[3] ** -0.5
    i, j = np.arange(q.shape[1])[:, None], np.arange(q.shape[1])[None]
    seen = (j <= i) | (not causal)
    if window >= 0:
        seen = seen & (j >= i - window)
    if bounds is not None:
        number = np.searchsorted(bounds, np.arange(q.shape[1]), side="right")
        seen = seen & (number[:, None] == number[None])
    if mask is not None:
        seen = seen & mask
    scores = jnp.where(seen, scores, -jnp.inf)
    if sinks is not None:
        extra = jnp.broadcast_to(sinks[None, :, None, None], (*scores.shape[:3], 1))
        weights = jax.nn.softmax(jnp.concatenate((scores, extra), -1), -1)[..., :-1]
    else:
        weights = jax.nn.softmax(scores, -1)
    return jnp.einsum("bhij,bjhd->bihd", weights, v)


def convolved(x, weight, bias, activation, bounds):
    parts = []
    for begin, end in zip(bounds, bounds[1:]):
        padded = jnp.pad(x[:, begin:end], ((0, 0), (weight.shape[1] - 1, 0), (0, 0)))
        parts.append(sum(padded[:, i:i + end - begin] * weight[:, i] for i in range(weight.shape[1])) + bias)
    z = jnp.concatenate(parts, 1)
    return jax.nn.silu(z) if activation else z


def delta(q, k, v, log_decay, beta):
    """The delta rule with normalized q and k, token by token."""
    q, k = (x / jnp.sqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    state, out = jnp.zeros((*k.shape[:1], *k.shape[2:], v.shape[-1])), []
    for t in range(k.shape[1]):
        if log_decay is not None:
            decay = jnp.exp(log_decay[:, t])
            state = state * (decay[..., None] if decay.ndim == 3 else decay[..., None, None])
        error = v[:, t] - jnp.einsum("bhd,bhde->bhe", k[:, t], state)
        state = state + (beta[:, t, :, None] * k[:, t])[..., None] * error[:, :, None]
        out.append(jnp.einsum("bhd,bhde->bhe", q[:, t], state) * k.shape[-1] ** -0.5)
    return jnp.stack(out, 1)


def recurrence(q, k, v, decay=None, initial=None):
    """decay: linear, [batch][tokens][heads][dk] or less at the end."""
    heads = v.shape[2]
    q, k = (jnp.repeat(x, heads // x.shape[2], 2) for x in (q, k))
    state, out = (jnp.zeros((q.shape[0], heads, q.shape[3], v.shape[3])) if initial is None else initial), []
    for t in range(q.shape[1]):
        if decay is not None:
            d = decay[:, t]
            state = state * (d[..., None] if d.ndim == 3 else d[..., None, None])
        state = state + k[:, t, :, :, None] * v[:, t, :, None, :]
        out.append(jnp.einsum("bhd,bhde->bhe", q[:, t], state) * q.shape[3] ** -0.5)
    return jnp.stack(out, 1)
