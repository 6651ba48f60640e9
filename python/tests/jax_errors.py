"""The refusals of seqpar.jax, and the texts of its errors."""

from jax_support import MESH, SEQ, raises, same, sharded, whole  # first: it sets JAX up

import copy
import os
import pickle

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P

import seqpar.jax as sp


def errors(comm):
    n = comm.size
    if n > 1:
        unequal_programs_end(n)
    x = whole(17, 1, 2 * n, n + 1, 4)
    if n > 1:
        raises(ValueError, "equally many", lambda: sharded(lambda x: sp.to_heads(x, comm), (SEQ,), SEQ)(x))
        raises(ValueError, "expected as many", lambda: sp.Layout("zigzag", 4 * n + 1, n))
    assert copy.deepcopy({"comm": comm})["comm"] is comm and copy.copy(comm) is comm
    raises(TypeError, "cannot be pickled", lambda: pickle.dumps(comm))
    attend = lambda **options: sharded(lambda x: sp.attention(x, x, x, comm, **options), (SEQ,), SEQ)(x)
    call = lambda function, k, v: sharded(lambda x: function(x, k(x), v(x), comm), (SEQ,), SEQ)(x)
    all_of = lambda x: x
    for function, k, v in ((sp.attention, lambda x: x[..., :2], all_of), (sp.attention, all_of, lambda x: x[:, :, :1]),
                           (sp.attention, all_of, lambda x: x[:, :1]), (sp.attention, all_of, lambda x: x[0]),
                           (sp.linear_attention, lambda x: x[:, :, :1], all_of), (sp.linear_attention, all_of, lambda x: x[:, :1])):
        raises(ValueError, "shape", lambda: call(function, k, v))
    for function in (sp.all_gather, sp.to_heads, sp.halo, sp.ring_permute, sp.reduce_scatter,
                     lambda x, comm: sp.attention(x, x, x, comm), lambda x, comm: sp.gla(x, x, x, x, comm),
                     lambda x, comm: sp.mamba2(x, x[..., 0], x[0, 0, :, 0], x, x, comm=comm), lambda x, comm: sp.all_scan(x[0], None, comm, op="sum")):
        for other, kind in ((None, "NoneType"), (MESH, "Mesh")):
            raises(TypeError, f"comm: got {kind}, expected a seqpar.jax.Comm", lambda: function(x, other))
    raises(RuntimeError, "called outside, expected a call inside of jax.shard_map over the axis 'sp'",
           lambda: sp.attention(x, x, x, comm))
    a, b = (sp.Layout(kind, 2 * n, n) for kind in ("contiguous", "striped"))
    raises(ValueError, "the array has the shape (1, 1,", lambda: sharded(lambda x: sp.redistribute((x, x[:, :1]), a, b, comm), (SEQ,), SEQ)(x))
    convolve = lambda **named: sharded(lambda x: sp.short_conv(x[:, :, 0], jnp.ones((4, 3)), comm, **named), (SEQ,), SEQ)(x)
    raises(ValueError, f"expected ascending bounds from 0 to {2 * n}", lambda: convolve(cu_seqlens=(0, 2 * n + 1)))
    raises(ValueError, "bias has the shape (1,), expected (4,)", lambda: convolve(bias=jnp.ones(1)))
    raises(TypeError, "short_conv: bias is complex64, expected a real", lambda: convolve(bias=jnp.ones(4, complex)))
    raises(TypeError, "attention: sinks is int32, expected a real", lambda: attend(sinks=jnp.zeros(n + 1, int)))
    for function in (sp.all_gather, sp.reduce_scatter, sp.halo, lambda x, comm, axis: sp.redistribute(x, a, b, comm, axis=axis)):
        raises(ValueError, "axis is 4, expected one of", lambda: sharded(lambda x: function(x, comm, axis=4), (SEQ,), SEQ)(x))
    for function in (sp.all_gather, sp.ring_permute, lambda x, comm: sp.redistribute(x, a, b, comm)):
        raises(TypeError, "got int4, whose elements share bytes",
               lambda: sharded(lambda x: function(x[..., :2].astype(jnp.int4), comm), (SEQ,), SEQ)(x))
    adds = {"reduce_scatter": lambda x, comm: sp.reduce_scatter(jnp.tile(x, (1, n, 1, 1)), comm), "halo": lambda x, comm: sp.halo(x, comm, left=1)[0]}
    for name, function in adds.items():
        raises(TypeError, f"{name}: got int32", lambda: sharded(lambda x: function(x.astype(jnp.int32), comm), (SEQ,), SEQ)(x))
    raises(ValueError, "halo: left and right are -1 and 0", lambda: sharded(lambda x: sp.halo(x, comm, left=-1), (SEQ,), SEQ)(x))
    raises(ValueError, "one per head", lambda: attend(sinks=jnp.zeros(n + 2)))
    raises(ValueError, "attention: k has 3 heads, expected a divisor of the 4 heads of q",
           lambda: sharded(lambda x: sp.attention(x, *(x[:, :, :3],) * 2, comm), (SEQ,), SEQ)(jnp.ones((1, 2 * comm.size, 4, 4))))
    raises(TypeError, "attention() got an unexpected keyword argument 'casual', expected one of", lambda: attend(casual=True))
    raises(TypeError, "attention: scale: got 'x', expected a number", lambda: attend(scale="x"))
    raises(TypeError, "attention: causal: got 'no', expected True or False", lambda: attend(causal="no"))
    raises(TypeError, "of the shape (), expected a number",
           lambda: sharded(lambda x: sp.attention(x, x, x, comm, scale=x[0, 0, 0, 0]), (SEQ,), SEQ)(x))
    raises(TypeError, "attention: softcap: got [2], expected a number", lambda: attend(softcap=[2]))
    raises(TypeError, "retention() got an unexpected keyword argument 'layout'",
           lambda: sharded(lambda x: sp.retention(x, x, x, jnp.zeros(n), comm, layout=None), (SEQ,), SEQ)(x))
    raises(ValueError, "expected (left, right)", lambda: attend(window=5))
    raises(ValueError, "expected another number than 0", lambda: attend(scale=0.0))
    raises(TypeError, "expected a seqpar.jax.Layout", lambda: attend(layout="zigzag"))
    raises(TypeError, "expected a seqpar.jax.Mask", lambda: attend(mask=5))
    raises(ValueError, f"mask has 3 tokens, expected {2 * n}", lambda: attend(mask=sp.Mask.prefix_lm(1, 3)))
    raises(ValueError, "got cu_seqlens and mask", lambda: attend(mask=sp.Mask.prefix_lm(1, 2 * n), cu_seqlens=(0, 2 * n)))
    raises(ValueError, "one bound more", lambda: sp.Layout("pieces", 2, 1, bounds=(0, 2), owners=(0, 0)))
    told = lambda **options: sp.explain(x[:, :2], x[:, :2], x[:, :2], comm, **options)
    raises(ValueError, "expected one of attention, gla, simple_gla", lambda: told(function="mamba"))
    raises(ValueError, "gla: log_decay is None, expected (1, 2,", lambda: told(function="gla"))
    raises(ValueError, "simple_gla: log_decay has the shape (1, 2,", lambda: told(function="simple_gla", log_decay=x[:, :2]))
    for function in ("attention", "linear_attention"):
        raises(ValueError, "expected none", lambda: told(function=function, log_decay=x[:, :2]))
    raises(TypeError, "retention() got an unexpected keyword argument 'causal'",
           lambda: told(function="retention", log_decay=jnp.zeros(n + 1), causal=True))
    state = jnp.zeros((2, 3, 4))
    scan = lambda **named: sharded(lambda x: sp.all_scan(state, **named, comm=comm)[0], (SEQ,), P())(x)
    raises(ValueError, "all_scan: transition", lambda: scan(transition=jnp.zeros(2)))
    raises(ValueError, "all_scan: initial", lambda: scan(transition=jnp.zeros((2, 3)), initial=jnp.zeros((2, 3))))
    raises(TypeError, "expected float32 or bfloat16",
           lambda: sharded(lambda x: sp.gla(x, x, x, -abs(x).astype(jnp.float16), comm), (SEQ,), SEQ)(x))
    raises(ValueError, "expected one of", lambda: attend(algorithm="rings"))
    raises(sp.Error, "striped", lambda: attend(algorithm="striped", layout=sp.Layout("contiguous", 2 * n, n)))
    raises(TypeError, "int32", lambda: sharded(lambda x: sp.reduce_scatter(x.astype(jnp.int32), comm), (P(),), SEQ)(x))
    raises(ValueError, "axis is 'cp'", lambda: sp.Comm(MESH, "cp"))
    attend = lambda x: sharded(lambda x: sp.attention(x, x, x, comm), (SEQ,), SEQ)(x)
    if n > 1 and comm.platform == "cpu":
        reverse = Mesh(MESH.devices[::-1], ("sp",))
        with sp.Comm(MESH, "sp") as lost:  # device 0 would be rank 0 with the last shard
            raises(RuntimeError, "in the mesh of jax.shard_map, expected", lambda: sharded(lambda x: sp.all_gather(x, lost), SEQ, P(), reverse)(x))
    eager = lambda x: jax.shard_map(lambda x: sp.all_gather(x, comm), mesh=MESH, in_specs=SEQ, out_specs=P(), check_vma=False)(x)
    once = lambda x: jax.grad(lambda x: (attend(x) ** 2).sum())(x)
    raises(NotImplementedError, "attention under jax.vmap", lambda: jax.vmap(attend)(x[None]))
    raises(NotImplementedError, "all_gather under jax.vmap", lambda: jax.vmap(eager)(x[None]))
    raises(NotImplementedError, "attention under jax.vmap", lambda: jax.jacrev(attend)(x))
    raises(TypeError, "a derivative of attention in forward mode, or a second one", lambda: jax.grad(lambda x: once(x).sum())(x))
    raises(TypeError, "forward-mode autodiff (jvp) to a custom_vjp function", lambda: jax.jvp(attend, (x,), (x,)))  # JAX's words
    raises(TypeError, "expected reverse mode", lambda: jax.jvp(eager, (x,), (x,)))
    for keep in (True, False):  # the communicator is closed while the result is under way
        busy = sp.Comm(MESH, "sp")

        def repeated(y):
            for _ in range(20):
                y = sp.to_sequence(sp.to_heads(y, busy), busy, heads=2 * n)
            return y

        y = whole(18, 1, 64 * n, 2 * n, 16)
        function = sharded(repeated, (SEQ,), SEQ)
        function(y).block_until_ready()  # compiled
        result = function(y)
        if not keep:
            del result
        busy.close()
        if keep:
            same(result, y)
    with sp.Comm(MESH, "sp") as other:
        function = sharded(lambda x: sp.all_gather(x, other), (SEQ,), P())
        function(x)
        other.check()
    raises(Exception, "closed", lambda: function(x))
    raises(RuntimeError, "closed", other.check)


def unequal_programs_end(n):
    """A device that takes another branch: an error after the timeout, on all devices."""
    os.environ["SEQPAR_TIMEOUT"] = "1"
    try:
        other = sp.Comm(MESH, "sp")
    finally:
        del os.environ["SEQPAR_TIMEOUT"]
    with other:
        for steps in ((1, 2), (2, 1), (1, 1 + 2 * n)):  # by 2 of 2 ranks: a call that needs no other rank
            branches = [lambda x, by=by: sp.ring_permute(x, other, by=by) for by in steps]
            function = sharded(lambda x: jax.lax.cond(other.rank() == 0, *branches, x), (P("sp"),), P("sp"))
            try:
                jax.block_until_ready(function(whole(1, n, 8)))
                other.check()  # GPUs: the wait ends after the call has returned
            except Exception as error:
                expected = ("seqparSendRecv", "devices run different calls", "the GPU waited 1000 ms for rank")
                assert any(text in str(error) for text in expected), error
            else:
                raise AssertionError("devices that take different branches raised no error")
