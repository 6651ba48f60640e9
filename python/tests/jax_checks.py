"""Checks of seqpar.jax on CPU devices, ranks of one process: values and gradients against the whole on one device.

    jax_checks.py DEVICES [CHECK...]          test_jax.py runs it in its environment; SEQPAR_SEED repeats random inputs

SEQPAR_TEST_DEVICE=cuda runs it on the first DEVICES GPUs.
"""

import contextlib
import inspect
import pathlib
import sys
import unittest.mock

from jax_support import DK, DV, MESH, ON_GPU, SEED, SEQ, compare, raises, same, sharded, whole  # first: it sets JAX up

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P

import seqpar.jax as sp
import stub_file
from jax_delta_product import delta_products
from jax_errors import errors
from jax_masks import masks_of_other_forms
from jax_reference import convolved, delta, recurrence, softmax
from seqpar import _abi, _families
from seqpar.jax import _attention


def collectives(comm):
    n = comm.size
    x, weight = whole(0, 2, 4 * n, 2 * n, 3), whole(1, 2, 4 * n, 2 * n, 3)
    compare(comm, lambda x, w: sp.to_sequence(jnp.sin(sp.to_heads(x, comm)), comm, heads=2 * n) * w,
            lambda x, w: jnp.sin(x) * w, (x, weight), (SEQ, SEQ))
    kv = whole(2, 2, 4 * n, 1, 3)  # one head for all ranks: gradients are summed
    compare(comm, lambda x, kv: sp.to_sequence(sp.to_heads(x, comm) * sp.to_heads(kv, comm, query_heads=2 * n), comm,
                                               heads=2 * n), lambda x, kv: x * kv, (x, kv), (SEQ, SEQ))
    compare(comm, lambda x, w: sp.reduce_scatter(sp.all_gather(x, comm) * sp.all_gather(w, comm), comm), lambda x, w: n * x * w,
            (x, weight), (SEQ, SEQ), terms=80)
    compare(comm, lambda x: sp.ring_permute(x, comm, by=1), lambda x: jnp.roll(x, x.shape[1] // n, 1), (x,), (SEQ,))

    def smoothed(x):
        left, right = sp.halo(x, comm, left=2, right=1)
        y = jnp.concatenate((left, x, right), 1)
        return y[:, :-3] * y[:, 3:]

    def smooth(x):
        y = jnp.pad(x, ((0, 0), (2, 1), (0, 0), (0, 0)))
        return y[:, :-3] * y[:, 3:]

    compare(comm, smoothed, smooth, (x,), (SEQ,))
    signal, taps, bias = whole(20, 1, 4 * n, 5), whole(21, 5, 3), whole(22, 5)
    for bounds, activation in ((None, "silu"), ((0, 1, 3, 4 * n), None), ((0, 3, 3, 4 * n - 1, 4 * n), "swish")):
        compare(comm, lambda x, w, b: sp.short_conv(x, w, comm, bias=b, activation=activation, cu_seqlens=bounds),
                lambda x, w, b: convolved(x, w, b, activation, bounds or (0, 4 * n)), (signal, taps, bias), (SEQ, P(), P()))
    a, b = (sp.Layout(kind, 4 * n, n) for kind in ("contiguous", "zigzag"))
    compare(comm, lambda x: sp.redistribute(x, a, b, comm) ** 2, lambda x: sp.shard(x, b) ** 2, (x,), (SEQ,))
    same(sp.unshard(sp.shard(x, b), b), x)
    ids = jnp.arange(4 * n)[None]
    moved = sharded(lambda i, x: sp.redistribute((i, x), a, b, comm), (SEQ, SEQ), (SEQ, SEQ))
    assert (moved(ids, x)[0][0] == sp.positions(b)).all()
    assert (moved(ids % 3 == 0, x)[0][0] == (sp.positions(b) % 3 == 0)).all()  # tokens of one byte
    gradient = jax.grad(lambda x: (moved(ids, x)[1] * sp.shard(weight, b)).sum())(x)
    same(gradient, weight)

    def indexed(x):  # integers, between calls that are differentiated
        ids = (comm.rank() * 4 + jnp.arange(4))[None]
        x = sp.ring_permute(x, comm)
        factor = sp.all_gather(ids, comm).sum() + sp.ring_permute(ids, comm)
        return sp.ring_permute(x * factor[..., None, None], comm, by=-1)

    compare(comm, indexed, lambda x: x * (ids + ids.sum())[..., None, None], (x,), (SEQ,), terms=80 * n * n)
    pairs = sharded(lambda i: sp.all_gather(jnp.stack((i, i + 1), -1).astype(jnp.uint8), comm), (SEQ,), P())
    assert (pairs(ids)[0, :, 1] == ids[0] + 1).all()


def merging_partial_attention(comm):
    n = comm.size
    shape = (2, 2 * n, 3, 4)
    outs, lses = whole(23, n, *shape), whole(24, n, 2, 3, 2 * n)
    lses = lses.at[1 % n, 0, 0, 1].set(-jnp.inf)  # one rank has no key for the row; for the next row, no rank has one
    lses = lses.at[:, 1, 2, 0].set(-jnp.inf)

    def exact(outs, lses):
        top = jnp.where((lses == -jnp.inf).all(0), 0.0, lses.max(0))
        weights = jnp.where(lses == -jnp.inf, 0.0, jnp.exp(jnp.where(lses == -jnp.inf, 0.0, lses) - top))
        total = weights.sum(0)
        share = (weights / jnp.where(total == 0, 1.0, total)).swapaxes(2, 3)[..., None]
        return (share * outs).sum(0), jnp.where(total == 0, 0.0, jnp.log(jnp.where(total == 0, 1.0, total)) + top)

    both = sharded(lambda o, l: sp.merge(o[0], l[0], comm), (P("sp"), P("sp")), (SEQ, P(None, None, "sp")))
    mine = lambda o, l: (lambda out, lse: (out, jnp.where(lse == -jnp.inf, 0.0, lse)))(*both(o, l))
    grads = whole(25, *shape), whole(26, 2, 3, 2 * n)
    loss = lambda function: lambda o, l: sum((x * g).sum() for x, g in zip(function(o, l), grads))
    for one, other in zip(mine(outs, lses), exact(outs, lses)):
        same(one, other, 50)
    for one, other in zip(*(jax.grad(loss(f), (0, 1))(outs, lses) for f in (mine, exact))):
        same(one, other, 100)


def scans(comm):
    n, heads, dk, dv = comm.size, 2, 3, 4
    for op, shape in (("sum", None), ("scalar", ()), ("diag", (dk,)), ("matrix", (dk, dk))):
        for reverse in (False, True):
            for decay in ("linear", "log") if op in ("scalar", "diag") else ("linear",):
                state, initial = whole(3, n, heads, dk, dv), whole(5, heads, dk, dv)
                raw = None if shape is None else whole(4, n, heads, *shape)
                raw = -abs(raw) if decay == "log" else raw

                def exact(state, initial, *raw):
                    x, seen = initial, {}
                    for p in sorted(range(n), reverse=reverse):
                        a = jnp.exp(raw[0][p]) if decay == "log" else raw[0][p] if raw else None
                        before = x
                        x = state[p] + (x if a is None else a[:, None, None] * x if op == "scalar" else
                                        a[:, :, None] * x if op == "diag" else (a.mT if reverse else a) @ x)
                        seen[p] = jnp.stack((before, x))
                    return jnp.stack([seen[p] for p in range(n)])

                def mine(state, initial, *raw):
                    return jnp.stack(sp.all_scan(state[0], raw[0][0] if raw else None, comm, op=op, initial=initial,
                                                 reverse=reverse, decay=decay))[None]

                arrays, specs = [state, initial], [P("sp"), P()]
                if raw is not None:
                    arrays, specs = arrays + [raw], specs + [P("sp")]
                compare(comm, mine, exact, arrays, tuple(specs), P("sp"), terms=200)


def operators(comm):
    n = comm.size
    tokens = 4 * n
    q, k, v = whole(6, 2, tokens, 2 * n, DK), whole(7, 2, tokens, n, DK), whole(8, 2, tokens, n, DV)
    straight = sp.Layout("contiguous", tokens, n)
    for algorithm in ("ring", "ulysses", "allgather_kv", "auto"):
        compare(comm, lambda *a: sp.attention(*a, comm, causal=True, algorithm=algorithm, layout=straight),
                lambda *a: softmax(*a, causal=True), (q, k, v), (SEQ,) * 3, terms=100)
    compare(comm, lambda *a: sp.attention(*a, comm, causal=True), lambda *a: softmax(*a, causal=True), (q, k, v), (SEQ,) * 3,
            terms=100)  # without a layout, shards are as shard_map cuts them
    sinks = whole(9, 2 * n)
    compare(comm, lambda q, k, v, s: sp.attention(q, k, v, comm, causal=True, window=(3, -1), sinks=s, algorithm="ring"),
            lambda q, k, v, s: softmax(q, k, v, causal=True, window=3, sinks=s), (q, k, v, sinks), (SEQ,) * 3 + (P(),),
            terms=100)
    for options in ({"wire": "float16"}, {"algorithm": "usp", "inner": n}):
        compare(comm, lambda *a: sp.attention(*a, comm, causal=True, layout=straight, **{"algorithm": "ring", **options}),
                lambda *a: softmax(*a, causal=True), (q, k, v), (SEQ,) * 3,
                terms=100 if "inner" in options else 2.0 ** 12)  # fp16 rounds to 11 bits
    for options in ({"algorithm": "ulysses"}, {"algorithm": "allgather_kv"}, {"algorithm": "usp", "inner": n},
                    {"algorithm": "ring"}):
        reserving = lambda *a: sp.attention(*a, comm, causal=True, reserve=True, **options)
        compare(comm, reserving, lambda *a: softmax(*a, causal=True), (q, k, v), (SEQ,) * 3, terms=100)
        twice = lambda x: reserving(*(reserving(x, x, x),) * 3)  # each of the calls keeps its own reserve
        compare(comm, twice, lambda x: softmax(*(softmax(x, x, x, True),) * 3, True), (q,), (SEQ,), terms=200)
        shapes = [jax.ShapeDtypeStruct((x.shape[0], x.shape[1] // n, *x.shape[2:]), x.dtype) for x in (q, k, v)]
        size = sp.explain(*shapes, comm, causal=True, reserve=True, **options)["reserveBytes"]
        assert (size > 0) == (n > 1 and options["algorithm"] != "ring"), (options, size)
        passes = sharded(reserving, (SEQ,) * 3, SEQ)
        both = str(jax.make_jaxpr(jax.grad(lambda *a: passes(*a).sum()))(q, k, v))
        assert (f"u8[{size}]" in both) == (size > 0), both  # passed from one pass to the other,
        assert "u8[" not in str(jax.make_jaxpr(passes)(q, k, v))  # and absent without differentiation
    shard = jax.ShapeDtypeStruct((2, 4, 2 * n, DK), jnp.float32)
    told = sp.explain(shard, shard, shard, comm, causal=True)
    assert told["ranks"] == n and told["algorithm"], told
    of_head = lambda *shape: jax.ShapeDtypeStruct((*shape, 2 * n), jnp.float32)
    decays = {"gla": shard, "simple_gla": of_head(2, 4), "retention": of_head(), "linear_attention": None}
    for function, decay in decays.items():
        told = sp.explain(shard, shard, shard, comm, function=function, log_decay=decay, algorithm="lasp2")
        assert (told["ranks"], told["algorithm"]) == (n, "lasp2"), told
    bounds, layout = (0, 1, tokens // 2 + 1, tokens), sp.Layout("zigzag", tokens, n)
    compare(comm, lambda *a: sp.attention(*a, comm, causal=True, cu_seqlens=bounds, layout=layout, algorithm="zigzag"),
            lambda *a: sp.shard(softmax(*(sp.unshard(x, layout) for x in a), causal=True, bounds=bounds), layout),
            tuple(x[:1] for x in (q, k, v)), (SEQ,) * 3, terms=100)
    for mask in (sp.Mask.shared_prefix(n, (2 * n - 1, n, 1)), sp.Mask.block_causal((0, 1, 2 * n, tokens)),
                 sp.Mask.window(tokens, 2)):
        for layout, algorithm in ((straight, "ring"), (sp.solve_layout(mask, n), "allgather_kv")):
            compare(comm, lambda *a: sp.attention(*a, comm, mask=mask, layout=layout, algorithm=algorithm),
                    lambda *a: sp.shard(softmax(*(sp.unshard(x, layout) for x in a), mask=mask.dense()), layout),
                    (q, k, v), (SEQ,) * 3, terms=100)
    masks_of_other_forms()
    assert len({sp.Mask.prefix_lm(1, 4), sp.Mask.prefix_lm(1, 4), sp.Mask.prefix_lm(2, 4)}) == 2
    assert sp.explain(shard, shard, shard, comm, mask=mask)["slices"] == 1
    gate, initial = -abs(whole(10, 2, tokens, n, DK)), whole(11, 2, n, DK, DV)
    k_like_q = whole(12, 2, tokens, n, DK)
    first = lambda s: jnp.where(jax.lax.axis_index("sp") == 0, s, jax.lax.stop_gradient(s))
    compare(comm, lambda q, k, v, g, s: sp.gla(q, k, v, g, comm, initial_state=first(s)),
            lambda q, k, v, g, s: recurrence(q, k, v, jnp.exp(g), s), (k_like_q, k, v, gate, initial),
            (SEQ,) * 4 + (P(),), terms=300)
    compare(comm, lambda q, k, v, g: sp.simple_gla(q, k, v, g, comm, algorithm="lasp2"),
            lambda q, k, v, g: recurrence(q, k, v, jnp.exp(g)), (k_like_q, k, v, gate[..., 0]), (SEQ,) * 4, terms=300)
    compare(comm, lambda q, k, v, g: sp.retention(q, k, v, g, comm),
            lambda q, k, v, g: recurrence(q, k, v, jnp.exp(jnp.broadcast_to(g, (2, tokens, n)))),
            (k_like_q, k, v, -abs(whole(13, n))), (SEQ, SEQ, SEQ, P()), terms=500)
    compare(comm, lambda *a: sp.linear_attention(*a, comm), recurrence, (k_like_q, k, v), (SEQ,) * 3, terms=200)
    beta = jax.nn.sigmoid(whole(14, 2, tokens, n))
    for name, gates in (("delta_rule", ()), ("gated_delta_rule", (gate[..., 0],)), ("kda", (gate,))):
        compare(comm, lambda *a, f=getattr(sp, name): f(*a, comm, normalize=True),
                lambda q, k, v, *rest: delta(q, k, v, rest[0] if rest[1:] else None, rest[-1]),
                (k_like_q, k, v, *gates, beta), (SEQ,) * (4 + len(gates)), terms=1000)
    final = sharded(lambda q, k, v: sp.linear_attention(q, k, v, comm, output_final_state=True)[1][None], (SEQ,) * 3, P("sp"))
    same(final(k_like_q, k, v)[-1], jnp.einsum("bthd,bthe->bhde", k, v), 100)


def mamba(comm):
    n, heads, groups, dim, state = 5 * comm.size, 4, 2, 16, 16
    x, z = whole(30, 1, n, heads, dim), whole(31, 1, n, heads, dim)
    dt, decay, bias, skip = whole(32, 1, n, heads), -jnp.exp(whole(33, heads)), whole(34, heads), whole(35, heads)
    b, c = whole(36, 1, n, groups, state), whole(37, 1, n, groups, state)

    def exact(x, dt, decay, b, c, skip, z, bias, bounds=(0,)):
        steps = jnp.clip(jax.nn.softplus(dt + bias), 0.01, 2.0)
        b, c = (jnp.repeat(y, heads // groups, 2) for y in (b, c))
        rows, kept = [], None
        for t in range(n):
            kept = jnp.zeros((1, heads, dim, state)) if t in bounds else kept
            update = (steps[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
            kept = kept * jnp.exp(steps[:, t] * decay)[..., None, None] + update
            rows.append((kept * c[:, t, :, None]).sum(-1))
        return (jnp.stack(rows, 1) + x * skip[:, None]) * jax.nn.silu(z)

    for bounds in (None, (0, 3, 4, n)):
        compare(comm, lambda x, dt, a, b, c, d, z, bias: sp.mamba2(x, dt, a, b, c, 64, D=d, z=z, dt_bias=bias, dt_softplus=True,
                                                                  dt_limit=(0.01, 2.0), cu_seqlens=bounds, comm=comm),
                lambda *given: exact(*given, bounds=bounds or (0,)), (x, dt, decay, b, c, skip, z, bias),
                (SEQ, SEQ, P(), SEQ, SEQ, P(), SEQ, P()), terms=400)
    raises(ValueError, "B has 3 groups", lambda: sp.mamba2(x, dt, decay, jnp.zeros((1, n, 3, state)), c, comm=comm))
    raises(ValueError, "mamba2: x has the shape", lambda: sp.mamba2(x[..., :0], dt, decay, b, c, comm=comm))
    raises(TypeError, "mamba2: x, B and C are bfloat16, float32 and float32", lambda: sp.mamba2(x.astype(jnp.bfloat16), dt, decay, b, c, comm=comm))
    raises(ValueError, "mamba2: initial_states has the shape", lambda: sp.mamba2(x, dt, decay, b, c, initial_states=x, comm=comm))
    raises(TypeError, "mamba2: A is complex64, expected a real", lambda: sp.mamba2(x, dt, decay + 0j, b, c, comm=comm))
    batched = lambda x, b: jax.vmap(lambda y: sp.mamba2(y, y[..., 0], decay, b, b, comm=comm))(x[None])
    raises(NotImplementedError, "mamba2 under jax.vmap", lambda: sharded(batched, (SEQ,) * 2, SEQ)(x, b))


def linear_attention_reserves_memory(comm):
    """Its forward pass leaves data on GPUs, if the shard has several segments. On hosts the size is fake, and the library
    does not use it."""
    n, tokens = comm.size, 520 if ON_GPU else 4  # per rank
    inputs = lambda t: [*(whole(i, 2, t * n, n, d) for i, d in ((30, DK), (31, DK), (32, DV))), -abs(whole(34, 2, t * n, n, DK))]
    (q, k, v, gate), many, x, slow = inputs(4), inputs(tokens), whole(33, 1, 4 * n, n, 16), -abs(whole(35, 1, 4 * n, n))
    gla = lambda options: sharded(lambda *a: sp.gla(*a, comm, **options), (SEQ,) * 4, SEQ)

    def passes(**options):
        """The jaxprs of forward, and of forward and backward."""
        function = gla(options)
        return [str(jax.make_jaxpr(f)(*many)) for f in (function, jax.grad(lambda *a: function(*a).sum()))]

    assert all("u8[" not in text for text in passes(reserve=False))
    shapes = [jax.ShapeDtypeStruct((a.shape[0], tokens, *a.shape[2:]), a.dtype) for a in many]
    sizes = [sp.explain(*shapes[:3], comm, function="gla", log_decay=shapes[3], reserve=reserve)["reserveBytes"]
             for reserve in (False, True)]
    assert sizes[0] == 0 and (sizes[1] > 0) == ON_GPU, sizes
    both = passes()[1]
    assert (f"u8[{sizes[1]}]" in both) == ("u8[" in both) == ON_GPU
    with contextlib.nullcontext() if ON_GPU else unittest.mock.patch.object(_attention, "_reserve_size", lambda *_: 64):
        forward, both = passes()
        assert "u8[" in both and "u8[" not in forward
        kept, again = (jax.jit(jax.grad(lambda *a: (gla(options)(*a) ** 2).sum(), (0, 1, 2, 3)))(*many)
                       for options in ({}, {"reserve": False}))
        for one, other in zip(kept, again):
            same(one / abs(other).max(), other / abs(other).max(), 100)
        for options in ({}, {"reserve": False}, {"algorithm": "lasp2"}):
            compare(comm, lambda *a: sp.gla(*a, comm, **options), lambda q, k, v, g: recurrence(q, k, v, jnp.exp(g)),
                    (q, k, v, gate), (SEQ,) * 4, terms=300)
        final = sharded(lambda *a: sp.linear_attention(*a, comm, output_final_state=True)[1][None], (SEQ,) * 3, P("sp"))
        exact = lambda q, k, v: jnp.einsum("bthd,bthe->bhde", k, v)
        of_last = lambda *a: (final(*a)[-1] ** 2).sum()
        for one, other in zip(*(jax.grad(f, (1, 2))(q, k, v) for f in (of_last, lambda *a: (exact(*a) ** 2).sum()))):
            same(one / abs(other).max(), other / abs(other).max(), 200)
        layer = lambda x, g: jnp.tanh(sp.simple_gla(x, x, x, g, comm))
        once = lambda x, g: jnp.tanh(recurrence(x, x, x, jnp.exp(g)))
        for block in (layer, jax.checkpoint(layer)):  # each of the calls keeps its own reserve
            compare(comm, lambda x, g: block(block(x, g), g), lambda x, g: once(once(x, g), g), (x, slow), (SEQ, SEQ), terms=300)


def shifted_with_gradients(moved, arrays):
    """moved() shifts the arrays by one rank; gradients do not depend on its results."""

    def weighted(*x):
        results = moved(*x)
        return sum((y * w).sum() for y, w in zip(results, arrays)), results

    both = jax.jit(jax.grad(weighted, tuple(range(len(arrays))), has_aux=True))
    for _ in range(10):
        gradients, results = both(*arrays)
        for w, g, y in zip(arrays, gradients, results):
            assert (y == jnp.roll(w, 1, 0)).all() and (g == jnp.roll(w, -1, 0)).all()


def order_and_composition(comm):
    """Independent calls, which XLA may reorder, many times; rematerialization that saves the calls; a second axis."""
    n = comm.size
    x = whole(14, 1, 2 * n, 3)

    def many(x):
        parts = [sp.all_gather(x * (i + 1), comm) for i in range(12)]
        parts += [sp.ring_permute(x * (i + 1), comm, by=i) for i in range(6)]
        return sum(p[:, :2] for p in parts)

    def expected(x):
        shards = [x[:, 2 * r:2 * r + 2] for r in range(n)]
        return jnp.concatenate([78 * shards[0] + sum((i + 1) * shards[(r - i) % n] for i in range(6)) for r in range(n)], 1)

    function = sharded(many, (SEQ,), SEQ)
    gradient = jax.jit(jax.grad(lambda x: (function(x) ** 2).sum()))
    for i in range(20):
        same(function(x + i), expected(x + i), 100)
    same(gradient(x) / 1e4, jax.grad(lambda x: (expected(x) ** 2).sum())(x) / 1e4, 100)

    arrays = [whole(i, n, 100000) for i in range(8)]  # XLA runs calls of large arrays concurrently
    moved = sharded(lambda *x: tuple(sp.ring_permute(y, comm) for y in x), (P("sp"),) * len(arrays), (P("sp"),) * len(arrays))

    shifted_with_gradients(moved, arrays)

    policy = jax.checkpoint_policies.save_only_these_names("seqpar")
    q = whole(15, 1, 4 * n, n, 8)
    block = lambda q: jnp.tanh(sp.attention(q, q, q, comm, causal=True, algorithm="ring"))
    saved = jax.checkpoint(block, policy=policy)
    compare(comm, lambda q: saved(saved(q)), lambda q: jnp.tanh(softmax(*(jnp.tanh(softmax(q, q, q, True)),) * 3, True)), (q,),
            (SEQ,), terms=200)
    scan = jax.checkpoint(lambda x: jnp.tanh(sp.all_scan(jnp.tanh(x[0]), None, comm, op="sum")[0])[None], policy=policy)
    squares = jax.jit(jax.grad(lambda q: (sharded(scan, (SEQ,), SEQ)(q) ** 2).sum()))
    program = squares.lower(whole(18, 1, 2 * n, 2, 4)).compile().as_text()
    assert program.count('custom_call_target="seqpar_') == 2, program  # forward and backward: the forward call is not repeated
    scanned = sharded(lambda q: jax.lax.scan(lambda c, _: (block(c), None), q, length=3)[0], (SEQ,), SEQ)
    out = q
    for _ in range(3):
        out = jnp.tanh(softmax(out, out, out, True))
    same(scanned(q), out, 300)

    if n % 2 == 0:
        mesh = Mesh(MESH.devices.reshape(n // 2, 2), ("dp", "sp"))
        with sp.Comm(mesh, "sp") as row:
            y = whole(16, n, 4, 2, 4)
            both = sharded(lambda y: sp.to_sequence(jnp.sin(sp.to_heads(y, row)), row, heads=2), (P("dp", "sp"),),
                           P("dp", "sp"), mesh)
            same(both(y), jnp.sin(y))


def independent_calls(comm):
    """Calls that XLA does not order: of functions, and of nested jits, checkpoints and loops of them, on two
    communicators. Each call has another operand, so exchanged operands of two calls show."""
    n = comm.size
    arrays = [whole(i, n, 50000) for i in range(12)]  # XLA runs calls of large arrays concurrently
    specs = (P("sp"),) * len(arrays)
    with sp.Comm(MESH, "sp") as other:
        move = lambda x, own=comm: sp.ring_permute(x, own)
        nested = jax.jit(move)  # traced once: the same call in several places
        loop = lambda x: jax.lax.scan(lambda c, _: (move(c), None), x, length=n + 1)[0]
        kinds = (move, nested, jax.checkpoint(move), loop, nested, lambda x: move(x, other))
        moved = sharded(lambda *x: tuple(kinds[i % len(kinds)](y) for i, y in enumerate(x)), specs, specs)
        shifted_with_gradients(moved, arrays)


def stubs(comm):
    """The type stubs match the functions."""
    stub = stub_file.read(pathlib.Path(sp.__file__).with_suffix(".pyi"))
    linear = {name: _families.options_of(family, _attention._LINEAR_OPTIONS) for name, family in _families.FUNCTIONS.items()}
    stub_file.compare(stub, sp, {"attention": _attention._OPTIONS, "explain": {"**options"}, **linear})
    stub_file.compare_names(_abi)
    for name, family in _families.FUNCTIONS.items():  # the functions take their families' gates
        parameters = list(inspect.signature(getattr(sp, name)).parameters)
        assert parameters[:parameters.index("comm")] == ["q", "k", "v", *(gate for gate, _ in _families.GATES[family])], name
        assert _families.GATES[family] == _families.gates_of_library(family), family


def main():
    with sp.Comm(MESH, "sp") as comm:
        for check in (collectives, merging_partial_attention, scans, operators, linear_attention_reserves_memory,
                      order_and_composition, independent_calls, mamba, delta_products, errors, stubs):
            if len(sys.argv) > 2 and check.__name__ not in sys.argv[2:]:
                continue
            check(comm)
            print(f"{check.__name__} ... ok ({comm.size} ranks, seed {SEED})", flush=True)


if __name__ == "__main__":
    main()
