"""The collectives with their derivatives, inside of jax.shard_map. Shards are equal, as shard_map's are."""

import ctypes
import math

import jax
import jax.numpy as jnp

from .. import _abi, _shapes
from ._call import COMM, STREAM, Call, Filled, Operand, Result
from ._comm import custom_call, takes_comm
from ._differentiable import Operator, apply


def data_type(what, x):
    """The seqparDataType_t of an array."""
    if x.dtype.name not in _abi.TYPES:
        raise TypeError(f"{what}: got {x.dtype.name}, expected {', '.join(_abi.TYPES)}")
    return _abi.TYPES[x.dtype.name]


def is_floating(kind):
    """Whether a type is a real floating-point type."""
    return jnp.issubdtype(kind, jnp.floating)


def _like(x, shape=None):
    return jax.ShapeDtypeStruct(x.shape if shape is None else tuple(shape), x.dtype)


def _axis(x, axis):
    """The axis from 0 on; a negative one counts from the end."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis}, expected one of an array with the shape {x.shape}")
    return axis % x.ndim


def _with(shape, axis, size):
    return (*shape[:axis], size, *shape[axis + 1:])


def _adjoint_pair(there, back):
    """An Operator of a linear call and its adjoint, each a function (comm-bound) of (arrays, token)."""
    def forward(arrays, token):
        results, token = there(arrays, token)
        return results, token, None

    return Operator(forward, lambda kept, grads, token: back(grads, token))


def _heads_call(comm, function, x, shape, heads, query_heads, local, token):
    batch, dim = x.shape[0], x.shape[3]
    name = "to_heads" if function == "seqparSequenceToHeads" else "to_sequence"
    shards = _abi.HeadShards(dataType=data_type(name, x), batch=batch, heads=heads, queryHeads=query_heads, headDim=dim,
                             tokens=local)
    make = lambda rank, handle: Call(function, Operand(0), Result(0), shards, COMM, STREAM)
    return custom_call(comm, (function, heads, query_heads), [x], [_like(x, shape)], make, token, name=name)


def _heads_here(comm, heads, query_heads):
    """Heads of each rank: an equal number, since shard_map's arrays have one shape."""
    first, count = ctypes.c_int64(), ctypes.c_int64()
    counts = set()
    for rank in range(comm.size):
        _abi.check(_abi.lib.seqparHeadsOfMember(heads, query_heads, comm.size, rank, ctypes.byref(first), ctypes.byref(count)))
        counts.add(count.value)
    if len(counts) != 1:
        raise ValueError(f"to_heads: {heads} heads (query_heads {query_heads}) on {comm.size} ranks are {sorted(counts)} of a "
                         "rank, expected equally many on all: shard_map's arrays have one shape")
    return counts.pop()


@takes_comm
def to_heads(x, comm, *, query_heads=0):
    """[batch][tokens of the rank][heads][dim] -> [batch][all tokens][heads of the rank][dim] (DeepSpeed Ulysses).
    query_heads: for keys and values, the number of query heads. Backward: to_sequence()."""
    batch, local, heads, dim = x.shape
    whole = (batch, local * comm.size, _heads_here(comm, heads, query_heads), dim)
    there = lambda a, token: _heads_call(comm, "seqparSequenceToHeads", a[0], whole, heads, query_heads, local, token)
    back = lambda g, token: _heads_call(comm, "seqparHeadsToSequence", g[0], (batch, local, heads, dim), heads, query_heads,
                                        local, token)
    return apply(comm, _adjoint_pair(there, back), x)[0]


@takes_comm
def to_sequence(x, comm, *, heads, query_heads=0):
    """The reverse of to_heads(): `heads` are the result's. Sums the values of ranks that hold the same head."""
    batch, whole, own, dim = x.shape
    local = whole // comm.size
    if whole % comm.size or own != _heads_here(comm, heads, query_heads):
        raise ValueError(f"to_sequence: got {own} heads of {whole} tokens, expected {_heads_here(comm, heads, query_heads)} of a "
                         f"multiple of {comm.size} tokens")
    there = lambda a, token: _heads_call(comm, "seqparHeadsToSequence", a[0], (batch, local, heads, dim), heads, query_heads,
                                         local, token)
    back = lambda g, token: _heads_call(comm, "seqparSequenceToHeads", g[0], x.shape, heads, query_heads, local, token)
    return apply(comm, _adjoint_pair(there, back), x)[0]


def _sum_shards(what, x, axis, local):
    """_shards() of an array that the call `what`, or its adjoint, adds to others."""
    data_type(what, x)
    return _shards(x, axis, local)


def _shards(x, axis, local):
    """The seqparShards_t of an array cut along `axis`. Arrays that are only moved may have any type: as bytes."""
    outer = inner = 1
    for size in x.shape[:axis]:
        outer *= size
    for size in x.shape[axis + 1:]:
        inner *= size
    if x.dtype.name in _abi.TYPES:
        kind = data_type("all_gather", x)
    else:
        if inner * x.dtype.itemsize % 2:
            raise TypeError(f"all_gather: got {inner} elements of {x.dtype.name} a token, expected an even number of bytes")
        kind, inner = _abi.TYPES["float16"], inner * x.dtype.itemsize // 2
    return _abi.Shards(dataType=kind, outer=outer, tokens=local, inner=inner)


def _gather_call(comm, x, axis, token):
    shards = _shards(x, axis, x.shape[axis])
    make = lambda rank, handle: Call("seqparAllGather", Operand(0), Result(0), shards, COMM, STREAM)
    shape = _with(x.shape, axis, x.shape[axis] * comm.size)
    return custom_call(comm, ("all_gather", axis), [x], [_like(x, shape)], make, token)


def _scatter_call(comm, x, axis, token):
    local = x.shape[axis] // comm.size
    shards = _sum_shards("reduce_scatter", x, axis, local)
    make = lambda rank, handle: Call("seqparReduceScatter", Operand(0), Result(0), shards, COMM, STREAM)
    return custom_call(comm, ("reduce_scatter", axis), [x], [_like(x, _with(x.shape, axis, local))], make, token)


@takes_comm
def all_gather(x, comm, *, axis=1):
    """Every rank's shard along `axis`, in the order of the ranks. Backward: reduce_scatter()."""
    axis = _axis(x, axis)
    return apply(comm, _adjoint_pair(lambda a, token: _gather_call(comm, a[0], axis, token),
                                     lambda g, token: _scatter_call(comm, g[0], axis, token)), x)[0]


@takes_comm
def reduce_scatter(x, comm, *, axis=1):
    """This rank's shard along `axis` of the sum of all ranks' `x`, added in fp32. Backward: all_gather()."""
    axis = _axis(x, axis)
    if x.shape[axis] % comm.size:
        raise ValueError(f"reduce_scatter: got {x.shape[axis]} tokens, expected a multiple of {comm.size}")
    return apply(comm, _adjoint_pair(lambda a, token: _scatter_call(comm, a[0], axis, token),
                                     lambda g, token: _gather_call(comm, g[0], axis, token)), x)[0]


@takes_comm
def halo(x, comm, *, left=0, right=0, axis=1, periodic=False):
    """(left, right): the tokens before and after this rank's contiguous shard, zeros beyond the ends of the
    sequence."""
    axis = _axis(x, axis)
    if left < 0 or right < 0:
        raise ValueError(f"halo: left and right are {left} and {right}, expected numbers of tokens")
    sides = _abi.Halo(left=left, right=right, periodic=int(periodic))
    shards = _sum_shards("halo", x, axis, x.shape[axis])
    description = (axis, left, right, periodic)

    def there(arrays, token):
        make = lambda rank, handle: Call("seqparHaloExchange", Operand(0), Result(0) if left else 0, Result(1) if right else 0,
                                         sides, shards, COMM, STREAM)
        shapes = [_like(x, _with(x.shape, axis, size)) for size in (left, right)]
        return custom_call(comm, ("halo", description), arrays, shapes, make, token)

    def back(grads, token):
        # The gradients are added to the operand of zeros, which is the result: XLA need not honor an alias.
        make = lambda rank, handle: Call("seqparHaloAdjoint", Operand(0) if left else 0, Operand(1) if right else 0, Result(0),
                                         sides, shards, COMM, STREAM)
        return custom_call(comm, ("halo_adjoint", description), [*grads, jnp.zeros(x.shape, x.dtype)], [_like(x)], make, token,
                           aliases={2: 0})

    return apply(comm, _adjoint_pair(there, back), x)


@takes_comm
def redistribute(x, source, target, comm, *, axis=1):
    """Moves an array, or a tuple of arrays of any types, from one Layout to another."""
    single, several = not isinstance(x, (tuple, list)), x if isinstance(x, (tuple, list)) else (x,)
    for array in several:
        tokens = array.shape[_axis(array, axis)] * comm.size
        for layout in (source, target):
            if layout.ranks != comm.size or layout.tokens != tokens:
                raise ValueError(f"redistribute: got {layout}, expected {tokens} tokens on {comm.size} ranks: the array has the shape "
                                 f"{array.shape} on each")

    def move(arrays, token, a, b):
        sizes = []
        for array in arrays:
            outer = math.prod(array.shape[:axis])
            sizes.append((outer, array.nbytes // max(1, outer * array.shape[axis])))

        def make(rank, handle):
            plan = ctypes.c_void_p()
            outer, row = (_abi.int64s(part) for part in zip(*sizes))
            _abi.check(_abi.lib.seqparRedistributePlanCreate(ctypes.byref(plan), ctypes.byref(a.struct()),
                                                             ctypes.byref(b.struct()), len(sizes), outer, row, handle), handle)
            pointers = (ctypes.c_void_p * len(sizes))()
            places = lambda kind: [(8 * i, kind(i)) for i in range(len(sizes))]
            call = Call("seqparRedistribute", plan, Filled(pointers, places(Operand)), Filled(pointers, places(Result)), STREAM)
            call.free = lambda: _abi.check(_abi.lib.seqparRedistributePlanDestroy(plan))
            return call

        return custom_call(comm, ("redistribute", a, b, axis), arrays, [_like(array) for array in arrays], make, token)

    def back(grads, token):  # non-numeric arrays, such as token ids, have no gradient
        grads = [jnp.zeros(g.shape, array.dtype) if g.dtype == jax.dtypes.float0 else g for g, array in zip(grads, several)]
        return move(grads, token, target, source)

    moved = apply(comm, _adjoint_pair(lambda arrays, token: move(arrays, token, source, target), back), *several)
    return moved[0] if single else moved


@takes_comm
def ring_permute(x, comm, *, by=1):
    """The array of rank (rank - by) modulo the ranks; sends this rank's to rank + by. Backward: the reverse
    direction."""
    def move(x, step, token):
        make = lambda rank, handle: Call("seqparSendRecv", Operand(0), x.nbytes, (rank + step) % comm.size, Result(0), x.nbytes,
                                         (rank - step) % comm.size, COMM, STREAM)
        return custom_call(comm, ("ring_permute", step), [x], [_like(x)], make, token)

    return apply(comm, _adjoint_pair(lambda a, token: move(a[0], by, token), lambda g, token: move(g[0], -by, token)), x)[0]


@takes_comm
def merge(out, lse, comm):
    """(out, lse) of this rank's tokens, from every rank's attention of all tokens to its part of the keys.

        out  [batch][tokens of all][heads][dim], normalized over the rank's keys
        lse  float32 [batch][heads][tokens of all]; -inf: this rank has no key for the row

    lse' = log sum exp(lse) and out' = sum exp(lse - lse') out over the ranks, in fp32. Both have gradients.
    """
    batch, whole, heads, dim = out.shape
    if lse.dtype != jnp.float32 or lse.shape != (batch, heads, whole) or whole % comm.size:
        raise ValueError(f"merge: lse is {lse.dtype.name} {lse.shape}, expected float32 {(batch, heads, whole)}, of a multiple of "
                         f"{comm.size} tokens")
    local = whole // comm.size

    def forward(arrays, token):
        shards = _sum_shards("merge", out, 1, local)
        make = lambda rank, handle: Call("seqparReduceScatterLse", Operand(0), Operand(1), Result(0), Result(1), heads, shards,
                                         COMM, STREAM)
        shapes = [_like(out, (batch, local, heads, dim)), _like(lse, (batch, heads, local))]
        merged, token = custom_call(comm, ("merge",), list(arrays), shapes, make, token)
        return merged, token, (*arrays, *merged)

    def backward(kept, grads, token):
        # With w = exp(lse - lse'): out' = sum w out, so d_out = w d_out' and d_lse = w (<d_out', out - out'> + d_lse').
        (out, lse, merged, total), (d_merged, d_total) = kept, grads
        by_head = lambda x: x.sum(3).swapaxes(1, 2)
        constant = d_total - by_head(d_merged.astype(jnp.float32) * merged.astype(jnp.float32))
        (d_merged,), token = _gather_call(comm, d_merged, 1, token)
        (both,), token = _gather_call(comm, jnp.stack((total, constant)), 3, token)
        none = lse == -jnp.inf  # `out` is ignored there
        weight = jnp.where(none, 0.0, jnp.exp(lse - both[0]))
        seen = jnp.where(none.swapaxes(1, 2)[..., None], 0.0, out.astype(jnp.float32))
        d_lse = weight * (by_head(d_merged.astype(jnp.float32) * seen) + both[1])
        return ((weight.swapaxes(1, 2)[..., None] * d_merged).astype(out.dtype), d_lse), token

    return apply(comm, Operator(forward, backward), out, lse)


@takes_comm
def short_conv(x, weight, comm, *, bias=None, activation=None, cu_seqlens=None):
    """A causal convolution over tokens, each channel by itself (Mamba, GLA, DeltaNet), by a halo and a sum over the taps.

        x           [batch][tokens of the rank][channels]
        weight      [channels][width]; the last multiplies the token itself
        bias        [channels]
        activation  None, "silu" or "swish"
        cu_seqlens  packed sequences in the whole, batch 1: tuple of ints. No token sees another sequence
    """
    if x.ndim != 3 or weight.ndim != 2 or weight.shape[0] != x.shape[2] or not weight.shape[1]:
        raise ValueError(f"short_conv: got x {x.shape} and weight {weight.shape}, expected [batch][tokens][channels] and "
                         "[channels][width] with a width of at least 1")
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"short_conv: activation is {activation!r}, expected None, 'silu' or 'swish'")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"short_conv: bias has the shape {bias.shape}, expected {weight.shape[:1]}")
    _shapes.require_floating("short_conv", {"weight": weight.dtype, "bias": None if bias is None else bias.dtype}, is_floating)
    width, local = weight.shape[1], x.shape[1]
    padded = x if width == 1 else jnp.concatenate((halo(x, comm, left=width - 1)[0], x), 1)
    age = None
    if cu_seqlens is not None:
        bounds = _shapes.integers("short_conv: cu_seqlens", cu_seqlens, 2)
        _shapes.require_bounds("short_conv", bounds, local * comm.size)
        if x.shape[0] != 1:
            raise ValueError(f"short_conv: got a batch of {x.shape[0]} with cu_seqlens, expected 1")
        starts, positions = jnp.asarray(bounds), jnp.arange(local) + comm.rank() * local
        age = (positions - starts[jnp.searchsorted(starts, positions, side="right") - 1])[:, None]
    z = 0.0 if bias is None else bias.astype(jnp.float32)
    for back in range(width):
        first = width - 1 - back
        tap = padded[:, first:first + local].astype(jnp.float32) * weight[:, first].astype(jnp.float32)
        z = z + (tap if age is None else jnp.where(age >= back, tap, 0.0))
    return (z if activation is None else jax.nn.silu(z)).astype(x.dtype)
