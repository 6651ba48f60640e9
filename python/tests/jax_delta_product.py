"""seqpar.jax's Gated DeltaProduct against matrices, token by token."""

from jax_support import DK, DV, SEQ, compare, raises, same, sharded, whole  # first: it sets JAX up

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import seqpar.jax as sp

_HEADS, _KEYS = 4, 2


def _exact(q, k, v, beta, log_decay=None, updates=1, initial=None, bounds=(0,)):
    """(outputs, last state) with q and k normalized: an update multiplies the state by a matrix."""
    q, k = (jnp.repeat(x / jnp.sqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6), _HEADS // _KEYS, 2) for x in (q, k))
    rows, state = [], initial
    for t in range(q.shape[1]):
        if t in bounds and initial is None:
            state = jnp.zeros((len(q), _HEADS, q.shape[3], v.shape[3]))
        if log_decay is not None:
            state = state * jnp.exp(log_decay[:, t])[..., None, None]
        for row in range(t * updates, (t + 1) * updates):
            key, factor = k[:, row, :, :, None], beta[:, row, :, None, None]
            state = (jnp.eye(q.shape[3]) - factor * key @ key.mT) @ state + factor * key @ v[:, row, :, None]
        rows.append((q[:, t, :, None] @ state)[..., 0, :] * q.shape[3] ** -0.5)
    return jnp.stack(rows, 1), state


def delta_products(comm):
    n = comm.size
    for updates, tokens, bounds in ((1, n, None), (2, 3 * n, None), (3, 5 * n, (0, 1, 3 * n, 5 * n))):
        batch = 1 if bounds else 2
        q, k, v = whole(40, batch, tokens, _KEYS, DK), whole(41, batch, updates * tokens, _KEYS, DK), whole(42, batch, updates * tokens, _HEADS, DV)
        beta = 2 * jax.nn.sigmoid(whole(43, batch, updates * tokens, _HEADS))
        log_decay = -abs(whole(44, batch, tokens, _HEADS)) * jnp.array([0.0, 1.0, 20.0, 300.0])  # e^-300 is 0 in fp32
        options = dict(normalize=True, cu_seqlens=bounds)
        given = dict(updates=updates, bounds=bounds or (0,))
        compare(comm, lambda q, k, v, b, g: sp.gated_delta_product(q, k, v, g, b, updates, comm, **options),
                lambda *a: _exact(*a, **given)[0], (q, k, v, beta, log_decay), (SEQ,) * 5, terms=1000)
        compare(comm, lambda q, k, v, b: sp.gated_delta_product(q, k, v, None, b, updates, comm, **options),
                lambda *a: _exact(*a, **given)[0], (q, k, v, beta), (SEQ,) * 4, terms=1000)
        if updates == 1:
            rule = sharded(lambda *a: sp.gated_delta_rule(*a, comm, **options), (SEQ,) * 5, SEQ)
            product = sharded(lambda q, k, v, g, b: sp.gated_delta_product(q, k, v, g, b, 1, comm, **options), (SEQ,) * 5, SEQ)
            assert (rule(q, k, v, log_decay, beta) == product(q, k, v, log_decay, beta)).all()
        elif not bounds:
            initial = whole(45, batch, _HEADS, DK, DV)
            first = lambda s: jnp.where(jax.lax.axis_index("sp") == 0, s, jax.lax.stop_gradient(s))
            compare(comm, lambda q, k, v, b, g, s: sp.gated_delta_product(q, k, v, g, b, updates, comm, initial_state=first(s), **options),
                    lambda q, k, v, b, g, s: _exact(q, k, v, b, g, updates, s)[0], (q, k, v, beta, log_decay, initial), (SEQ,) * 5 + (P(),),
                    terms=1000)
            final = sharded(lambda q, k, v, b: sp.gated_delta_product(q, k, v, None, b, updates, comm, output_final_state=True,
                                                                      **options)[1][None], (SEQ,) * 4, P("sp"))
            same(final(q, k, v, beta)[-1], _exact(q, k, v, beta, None, updates)[1], 1000)

    def call(**changed):
        arguments = lambda b: {"log_decay": None, "beta": b, "num_householder": 3, **changed}
        return sharded(lambda q, k, v, b: sp.gated_delta_product(q, k, v, **arguments(b), comm=comm), (SEQ,) * 4, SEQ)(q, k, v, beta)

    for text, changed in {f"k has the shape (1, 15, 2, {DK}), expected (1, 10, 2, {DK})": dict(num_householder=2),
                          "num_householder is 0, expected at least 1": dict(num_householder=0),
                          f"cu_seqlens is (0, {15 * n}), expected ascending bounds from 0 to {5 * n}": dict(cu_seqlens=(0, 15 * n)),
                          "log_decay has the shape (1, 15, 4), expected (1, 5, 4)": dict(log_decay=jnp.zeros((1, 15, 4))),
                          "beta is None, expected (1, 15, 4)": dict(beta=None)}.items():
        raises(ValueError, f"gated_delta_product: {text}", lambda: call(**changed))
    raises(TypeError, "gated_delta_product: num_householder: got (2.5,), expected integers", lambda: call(num_householder=2.5))
    raises(TypeError, "gated_delta_product: log_decay is float16", lambda: call(log_decay=jnp.zeros((1, 5, 4), jnp.float16)))
    batched = lambda q, k, v, b: jax.vmap(lambda q: sp.gated_delta_product(q, k, v, None, b, 3, comm))(q[None])
    raises(NotImplementedError, "gated_delta_product under jax.vmap", lambda: sharded(batched, (SEQ,) * 4, SEQ)(q, k, v, beta))
    raises(TypeError, "gated_delta_product: comm: got NoneType", lambda: sp.gated_delta_product(q, k, v, None, beta, 3, None))
    for family, decay in (("gated_delta", jnp.zeros((1, 5, 4))), ("delta", None)):
        shards = [None if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q[:, :5], k[:, :15], v[:, :15], decay, beta[:, :15])]
        told = [sp.explain(*shards[:3], comm, function="gated_delta_product", log_decay=shards[3], beta=shards[4], num_householder=3,
                           algorithm="zeco", reserve=reserve) for reserve in (False, True)]
        assert all(one["family"] == family and one["algorithm"] == "zeco" for one in told), told
        assert "reserveBytes" in told[1], told
    raises(TypeError, "gated_delta_product: num_householder", lambda: sp.explain(*shards[:3], comm, function="gated_delta_product", beta=shards[4]))
    raises(ValueError, "explain: num_householder was given, expected none with attention",
           lambda: sp.explain(shards[0], shards[0], shards[0], comm, num_householder=3))
