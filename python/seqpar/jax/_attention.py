"""Softmax and linear attention on libseqpar_attn's plans, inside of jax.shard_map."""

import ctypes
import functools
import inspect
import json

import jax
import jax.numpy as jnp

from .. import _abi, _families, _masks, _shapes
from ._call import STREAM, Call, Filled, Operand, Result
from ._collectives import _like, data_type, is_floating
from ._comm import custom_call, require_comm
from ._differentiable import Operator, apply
from ._layout import Layout
from ._mask import Mask


def _plan(comm, fields, layout, cu_seqlens, rank, handle):
    """A rank's plan, created at the first call with a description: forward and backward share it. cu_seqlens: or a Mask."""
    key = (tuple(sorted(fields.items())), layout, cu_seqlens, rank, handle.value)
    if key not in comm.plans:
        desc = _abi.AttnDesc(**fields)
        if layout is not None:
            desc.of_queries = layout.struct()
            desc.layout = ctypes.addressof(desc.of_queries)
        if isinstance(cu_seqlens, Mask):
            _masks.fill(desc, cu_seqlens.key)
        elif cu_seqlens is not None:
            desc.bounds = _abi.int64s(cu_seqlens)
            desc.sequences, desc.cuSeqlens = len(cu_seqlens) - 1, ctypes.addressof(desc.bounds)
        plan, attn = ctypes.c_void_p(), _abi.attn_lib()
        _abi.check_attn(attn.seqparAttnPlanCreate(ctypes.byref(plan), ctypes.byref(desc), handle))
        _abi.check_attn(attn.seqparAttnPlanPrepare(plan, None, 0))
        comm.plans[key] = plan
    return comm.plans[key]


# The functions' names of the families.
_NAMES = {"softmax": "attention", **_families.NAMES}


def _operator(comm, fields, layout, cu_seqlens, inputs, results, saved, name=None):
    """An Operator of a plan. inputs: the names of the arrays in seqparAttnForwardArgs_t, each with the name of its
    gradient; results: (name there, shape) of forward's outputs; those in `saved` are only for the backward pass. The
    first result's gradient is dOut; a second one may have a separate name. name: of the function in errors; None: the
    family's."""
    names = [name for name, _ in inputs]
    operator_name = name or next(_NAMES[family] for family, number in _abi.FAMILIES.items() if number == fields["family"])
    description = (tuple(sorted(fields.items())), layout, cu_seqlens, tuple(names))
    at = _abi.offset  # the address is the first field of a tensor

    def forward(arrays, token):
        def make(rank, handle):
            places = [(at(_abi.AttnForwardArgs, name), Operand(i)) for i, name in enumerate(names)]
            places += [(at(_abi.AttnForwardArgs, name), Result(i)) for i, (name, _, _) in enumerate(results)]
            return Call("seqparAttnForward", _plan(comm, fields, layout, cu_seqlens, rank, handle),
                        Filled(_abi.AttnForwardArgs(), places), STREAM)

        made, token = custom_call(comm, ("attn_forward", description), list(arrays),
                                  [shape for _, shape, _ in results], make, token, name=operator_name)
        shown = tuple(x for x, (name, _, _) in zip(made, results) if name not in saved)
        return shown, token, (arrays, made)

    def backward(kept, grads, token):
        arrays, made = kept
        named = [(name, x) for name, x in zip(names, arrays)]
        named += [(name, x) for x, (name, _, _) in zip(made, results) if name in ("out", "lse", "saved", "reserve") and
                  hasattr(_abi.AttnBackwardArgs, name)]
        shown = [gradient for name, _, gradient in results if name not in saved]
        named += [(name, g) for name, g in zip(shown, grads) if name]

        def make(rank, handle):
            places = [(at(_abi.AttnBackwardArgs, name), Operand(i)) for i, (name, _) in enumerate(named)]
            places += [(at(_abi.AttnBackwardArgs, gradient), Result(i)) for i, (_, gradient) in enumerate(inputs)]
            return Call("seqparAttnBackward", _plan(comm, fields, layout, cu_seqlens, rank, handle),
                        Filled(_abi.AttnBackwardArgs(), places), STREAM)

        # The initial state's gradient is written on rank 0 only: it is initialized to zeros.
        operands, aliases = [x for _, x in named], {}
        if "initial" in names:
            aliases[len(operands)] = names.index("initial")
            operands.append(jnp.zeros(arrays[names.index("initial")].shape, jnp.float32))
        gradients, token = custom_call(comm, ("attn_backward", description, tuple(name for name, _ in named)), operands,
                                       [_like(x) for x in arrays], make, token, aliases, operator_name)
        return gradients, token

    return Operator(forward, backward)


def _checked(what, comm, q, k, v, layout, cu_seqlens, linear):
    require_comm(what, comm)
    _shapes.require_fit(what, q.shape, k.shape, v.shape, linear)
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise TypeError(f"{what}: {name} is {x.dtype.name}, expected {q.dtype.name} as q is")
    if k.shape[1] != q.shape[1]:
        raise ValueError(f"{what}: got {q.shape[1]} and {k.shape[1]} tokens of q and k, expected equally many")
    if layout is not None and not isinstance(layout, Layout):
        raise TypeError(f"{what}: layout: got {_shapes.shown(layout)}, expected a seqpar.jax.Layout")
    if layout is not None and (layout.ranks != comm.size or layout.tokens != q.shape[1] * comm.size):
        raise ValueError(f"{what}: got {layout}, expected {q.shape[1] * comm.size} tokens on {comm.size} ranks")
    return None if cu_seqlens is None else _shapes.integers("cu_seqlens", cu_seqlens, 2)


def _softmax_fields(q, k, v, comm, sinks, causal=False, window=(-1, -1), scale=None, softcap=0.0, cu_seqlens=None, layout=None,
                    algorithm="auto", deterministic=False, wire=None, inner=0, reserve=False, mask=None):
    """(fields of a seqparAttnDesc_t, layout, bounds of the packed sequences or the mask)."""
    bounds = _checked("attention", comm, q, k, v, layout, cu_seqlens, linear=False)
    if mask is not None:
        if not isinstance(mask, Mask):
            raise TypeError(f"attention: mask: got {_shapes.shown(mask)}, expected a seqpar.jax.Mask")
        if bounds is not None:
            raise ValueError("attention: got cu_seqlens and mask, expected one of them: documents are slices")
        if mask.tokens != q.shape[1] * comm.size:
            raise ValueError(f"attention: mask has {mask.tokens} tokens, expected {q.shape[1] * comm.size}, the tokens of the whole")
        bounds = mask
    (batch, local, heads, dim), value_dim = q.shape, v.shape[3]
    _shapes.require_sinks("attention", sinks, heads)
    _shapes.require_floating("attention", {"sinks": None if sinks is None else sinks.dtype}, is_floating)
    left, right = _shapes.window_of("attention", window)
    if layout is None:  # an algorithm's choice would not be known to the caller in advance
        layout = Layout(algorithm if algorithm in ("zigzag", "striped") else "contiguous", local * comm.size, comm.size)
    return {"family": _abi.FAMILIES["softmax"], "algorithm": _abi.choose("algorithm", algorithm, _abi.ATTN_ALGORITHMS),
            "batch": batch, "tokens": local * comm.size, "heads": heads, "kvHeads": k.shape[2], "headDim": dim,
            "valueDim": value_dim, "dataType": data_type("attention", q), "scale": _shapes.scale_of("attention", scale) or 0.0,
            "mask": int(_shapes.flag("attention: causal", causal)), "windowLeft": left, "windowRight": right,
            "softcap": _shapes.number("attention: softcap", softcap),
            "sinks": int(sinks is not None), "deterministic": int(_shapes.flag("attention: deterministic", deterministic)),
            "inner": int(inner), "reserve": int(_shapes.flag("attention: reserve", reserve)),
            "wireType": _abi.choose("wire", str(wire or "float32"), _abi.TYPES)}, layout, bounds


_OPTIONS = frozenset(inspect.signature(_softmax_fields).parameters) - {"q", "k", "v", "comm", "sinks"}


def _reserve_size(comm, fields, layout, bounds):
    """Bytes that the plan's forward pass leaves for its backward pass: the maximum over ranks."""

    def of_rank(rank, handle):
        size = ctypes.c_size_t()
        _abi.check_attn(_abi.attn_lib().seqparAttnPlanReserveSize(_plan(comm, fields, layout, bounds, rank, handle),
                                                                  ctypes.byref(size)))
        return size.value

    return max(comm.on_each_rank(of_rank))


def _reserving(comm, fields, layout, bounds, inputs, results, saved, alone, name=None):
    """An Operator with a forward pass that leaves data for its backward pass; `alone` if it is not differentiated."""

    @functools.cache
    def of_plan():  # only a differentiated call creates that plan
        size = _reserve_size(comm, fields, layout, bounds)
        kept = [("reserve", jax.ShapeDtypeStruct((size,), jnp.uint8), None)] if size else []
        return _operator(comm, fields, layout, bounds, inputs, results + kept, saved=(*saved, "reserve"), name=name)

    return Operator(lambda *given: of_plan().forward(*given), lambda *given: of_plan().backward(*given), alone=alone.forward)


def attention(q, k, v, comm, *, sinks=None, return_lse=False, **options):
    """Softmax attention of this rank's queries to all ranks' keys. Differentiable.

        q           [batch][tokens of the rank][heads][dim]; float32, float16 or bfloat16
        k, v        [batch][tokens of the rank][kv heads][dim], kv heads dividing heads; v may have another dim
        causal, window, scale, softcap, sinks, cu_seqlens, algorithm, deterministic, inner    see seqpar.torch
        wire        "float32", "float16", "bfloat16": the type of partial results on the wire; None: float32
        reserve     the forward pass keeps its exchanged data until the backward pass, which then sends less: for
                    "ulysses", "usp", "megatron_sp" and "allgather_kv"; takes explain()'s reserveBytes per
                    differentiated call
        mask        Mask: a token sees only the keys that a slice and `causal` and `window` allow; not with cu_seqlens or
                    "dist_attn". solve_layout(mask, comm.size) balances it. A token that sees nothing has out 0
        layout      Layout of the tokens; None: contiguous as shard_map cuts, but zigzag for "zigzag" and striped for
                    "striped"
        return_lse  (out, lse) instead of out: lse is float32 [batch][heads][tokens], without a gradient
    """
    _shapes.require_options("attention", options, _OPTIONS, ("sinks", "return_lse"))
    fields, layout, bounds = _softmax_fields(q, k, v, comm, sinks, **options)
    (batch, local, heads, _), value_dim = q.shape, v.shape[3]
    inputs = [("q", "dq"), ("k", "dk"), ("v", "dv")] + ([] if sinks is None else [("sinks", "dSinks")])
    results = [("out", _like(q, (batch, local, heads, value_dim)), "dOut"),
               ("lse", jax.ShapeDtypeStruct((batch, heads, local), jnp.float32), None)]
    operator = _operator(comm, {**fields, "reserve": 0}, layout, bounds, inputs, results, saved=())
    if fields["reserve"]:
        operator = _reserving(comm, fields, layout, bounds, inputs, results, (), operator)
    out, lse = apply(comm, operator, q, k, v, *([] if sinks is None else [sinks.astype(jnp.float32)]))
    return (out, jax.lax.stop_gradient(lse)) if return_lse else out


def _linear_fields(family, q, k, v, gates, comm, scale=None, initial_state=None, cu_seqlens=None, algorithm="auto", wire=None,
                   reserve=None, input_gate=False, name=None, **unknown):
    """(fields of a seqparAttnDesc_t, bounds of the packed sequences) of a differentiated call. input_gate: the last of the
    gates is a factor per token and head on k v^T. name: of the function in errors; None: the family's."""
    name = name or _NAMES[family]
    options = _families.options_of(family, _LINEAR_OPTIONS)
    normalize = bool(unknown.pop("normalize", False)) if "normalize" in options else False
    _shapes.require_options(name, unknown, options)
    bounds = _checked(name, comm, q, k, v, None, cu_seqlens, linear=True)
    (batch, local, _, dim), (heads, value_dim) = q.shape, v.shape[2:]
    _families.require_gates(name, family, gates[:-1] if input_gate else gates, q.shape, v.shape)
    for gate_name, gate in _families.named(family, gates).items():
        if gate.dtype.name not in ("float32", "bfloat16"):
            raise TypeError(f"{name}: {gate_name} is {gate.dtype.name}, expected float32 or bfloat16")
    if initial_state is not None and bounds is not None:
        raise ValueError(f"{name}: got initial_state and cu_seqlens, expected one of them")
    state = (batch, heads, dim, value_dim)
    if initial_state is not None and initial_state.shape != state:
        raise ValueError(f"{name}: initial_state has the shape {initial_state.shape}, expected {state}")
    if initial_state is not None and initial_state.dtype != jnp.float32:
        raise TypeError(f"{name}: initial_state is {initial_state.dtype.name}, expected float32")
    return {"family": _abi.FAMILIES[family], "algorithm": _abi.choose("algorithm", algorithm, _abi.ATTN_ALGORITHMS),
            "batch": batch, "tokens": local * comm.size, "heads": heads, "kvHeads": k.shape[2], "headDim": dim,
            "valueDim": value_dim, "dataType": data_type(name, q), "scale": _shapes.scale_of(name, scale) or 0.0,
            "gateTypes": tuple(data_type(name, gate) for gate in gates), "reserve": _families.reserve_of(family, reserve),
            "normalize": int(normalize), "inputGate": int(input_gate),
            "wireType": _abi.choose("wire", str(wire or "float32"), _abi.TYPES)}, bounds


def _linear(family, q, k, v, gates, comm, *, initial_state=None, output_final_state=False, name=None, **options):
    fields, bounds = _linear_fields(family, q, k, v, gates, comm, initial_state=initial_state, name=name, **options)
    (batch, local, _, dim), (heads, value_dim) = q.shape, v.shape[2:]
    state = jax.ShapeDtypeStruct((batch, heads, dim, value_dim), jnp.float32)
    inputs = [("q", "dq"), ("k", "dk"), ("v", "dv")]
    inputs += [(f"gates[{i}]", f"dGates[{i}]") for i in range(len(gates))] + ([] if initial_state is None else [("initial", "dInitial")])
    shown = [("out", _like(v, (batch, local, heads, value_dim)), "dOut"), ("final", state, "dFinal")]
    results = [*shown, ("saved", state, None)]
    if fields["reserve"]:
        alone = _operator(comm, {**fields, "training": 0, "reserve": 0}, None, bounds, inputs, shown, saved=(), name=name)
        operator = _reserving(comm, fields, None, bounds, inputs, results, ("saved",), alone, name)
    else:
        operator = _operator(comm, fields, None, bounds, inputs, results, saved=("saved",), name=name)
    arrays = [x for x in (q, k, v, *gates, initial_state) if x is not None]
    out, final = apply(comm, operator, *arrays)
    return (out, final) if output_final_state else out


def _spread(x, before, behind):
    """A row of each token as before + 1 + behind rows, for its updates: zeros except one."""
    padded = jnp.pad(x[:, :, None], ((0, 0), (0, 0), (before, behind), *((0, 0),) * (x.ndim - 2)))
    return padded.reshape(x.shape[0], -1, *x.shape[2:])


def as_delta_rule(q, k, v, log_decay, beta, num_householder, comm, cu_seqlens):
    """(updates of a token, family, queries and gates of updates, bounds) of the delta rule that computes a
    gated_delta_product(). Of jax.ShapeDtypeStruct: the same."""
    updates = _shapes.updates_of_delta_product(num_householder, q=q, k=k, v=v, log_decay=log_decay, beta=beta)
    if cu_seqlens is not None:
        bounds = _shapes.integers(f"{_families.PRODUCT}: cu_seqlens", cu_seqlens, 2)
        _shapes.require_bounds(_families.PRODUCT, bounds, q.shape[1] * comm.size)
        cu_seqlens = tuple(updates * bound for bound in bounds)

    def spread(x, before, behind):
        rows = functools.partial(_spread, before=before, behind=behind)
        return jax.eval_shape(rows, x) if isinstance(x, jax.ShapeDtypeStruct) else rows(x)

    family, gates = ("delta", (beta,)) if log_decay is None else ("gated_delta", (spread(log_decay, 0, updates - 1), beta))
    return updates, family, spread(q, updates - 1, 0), gates, cu_seqlens


_LINEAR_OPTIONS = ("scale", "initial_state", "output_final_state", "cu_seqlens", "algorithm", "wire", "reserve")


def explain(q, k, v, comm, *, function="attention", log_decay=None, beta=None, num_householder=None, **options):
    """The plan of attention() with these arguments, as a dictionary: the algorithm, its modeled time and layout, and
    why other algorithms are slower or not supported. function: for another function, the name of one of the functions of
    linear attention, as "gla", with its log_decay and beta; or "gated_delta_product", also with its num_householder: its
    plan is that of a delta rule with a token for each update. Call it outside of shard_map, with arrays, or
    jax.ShapeDtypeStruct, of one rank's shapes."""
    names = {**{name: family for family, name in _NAMES.items()}, _families.PRODUCT: None}
    family = _abi.choose("explain: function", function, names)
    layout = None
    if function == _families.PRODUCT:
        _, family, q, gates, bounds = as_delta_rule(q, k, v, log_decay, beta, num_householder, comm, options.pop("cu_seqlens", None))
        fields, bounds = _linear_fields(family, q, k, v, gates, comm, cu_seqlens=bounds, name=function, **options)
    elif family == "softmax":
        _shapes.require_options("explain", options, _OPTIONS, ("sinks",))
        _families.require_none("explain", function, log_decay=log_decay, beta=beta, num_householder=num_householder)
        fields, layout, bounds = _softmax_fields(q, k, v, comm, options.pop("sinks", None), **options)
    else:
        _families.require_none("explain", function, num_householder=num_householder)
        fields, bounds = _linear_fields(family, q, k, v, _families.given(family, log_decay=log_decay, beta=beta), comm, **options)
    plan = comm.on_each_rank(lambda rank, handle: _plan(comm, fields, layout, bounds, rank, handle))[0]
    attn, size = _abi.attn_lib(), ctypes.c_size_t()
    _abi.check_attn(attn.seqparAttnPlanExplain(plan, None, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _abi.check_attn(attn.seqparAttnPlanExplain(plan, room, ctypes.byref(size)))
    told = json.loads(room.value)
    if fields["reserve"]:
        told["reserveBytes"] = _reserve_size(comm, fields, layout, bounds)  # shard_map's shards are equal
    return told
