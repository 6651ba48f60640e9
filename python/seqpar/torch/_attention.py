"""Softmax attention over sharded sequences."""

import functools
import inspect

import torch

from .. import _abi, _families, _shapes
from . import _delta_product, _flex, _linear, _plans, _prepared
from ._comm import find
from ._define import autocasted, autocasts, define, eager, has_tensors, require_constants, require_tensors, without_gradient
from ._first_order import first_order
from ._kernels import attention_by
from ._layout import Layout, bounds_of, require_fit
from ._mask import Mask
from ._refusals import collective


def _forward_outputs(q, k, v, sinks, spec, name):
    batch, tokens, heads, _ = q.shape
    return (q.new_empty(batch, tokens, heads, v.shape[3]), q.new_empty(batch, heads, tokens, dtype=torch.float32),
            _plans.reserve(find(name), spec, q, k, v))


def _forward_launch(made, q, k, v, sinks, spec, name):
    out, lse, reserve = made
    _plans.run(find(name), spec, q, k, v, out=out, lse=lse, sinks=sinks, reserve=reserve)


def _backward_outputs(grad, q, k, v, out, lse, sinks, reserve, spec, name):
    contiguous = torch.contiguous_format
    gradient = q.new_empty(0, dtype=torch.float32) if sinks is None else torch.empty_like(sinks, memory_format=contiguous)
    return (*(torch.empty_like(x, memory_format=contiguous) for x in (q, k, v)), gradient)


def _backward_launch(made, grad, q, k, v, out, lse, sinks, reserve, spec, name):
    dq, dk, dv, d_sinks = made
    _plans.run(find(name), spec, q, k, v, dOut=grad, out=out, lse=lse, sinks=sinks, reserve=reserve, dq=dq, dk=dk, dv=dv,
               dSinks=None if sinks is None else d_sinks)


# The forward pass's last result is its reserve for the backward pass, empty unless the description asks for one.
_forward = define("attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, str spec, str comm) -> (Tensor, Tensor, Tensor)",
                  _forward_outputs, _forward_launch)
_backward = define("attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? sinks, "
                   "Tensor reserve, str spec, str comm) -> (Tensor, Tensor, Tensor, Tensor)", _backward_outputs, _backward_launch)


class _Attention(torch.autograd.Function):
    """prepared: a Prepared with the addresses of q, k and v, or None: the operators."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, spec, comm, prepared, places):
        out, lse, reserve = (_forward(q, k, v, sinks, spec, comm) if prepared is None else
                             _run_prepared(prepared, q, places, True))
        ctx.save_for_backward(q, k, v, out, lse, _plans.kept(reserve), sinks)
        ctx.rest, ctx.prepared = (spec, comm), prepared
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @first_order
    def backward(ctx, grad, _):
        q, k, v, out, lse, reserve, sinks = ctx.saved_tensors  # hooks may have replaced the saved tensors
        prepared = ctx.prepared
        places = prepared and prepared.again((q, k, v), out, lse, grad, *(() if reserve is None else (reserve,)))
        if not places:
            made = _backward(grad, q, k, v, out, lse, sinks, _plans.given(reserve, q), *ctx.rest)
            return *made[:3], None if sinks is None else made[3], None, None, None, None
        made = prepared.gradients(q, k, v)
        prepared.run(True, [*places[:6], *(x.data_ptr() for x in made), *places[6:]])
        return *made, None, None, None, None, None


def _prepare_call(comm, spec, q, k, v):
    """A Prepared for similar calls; None if tensors must be copied."""
    kept = []
    of = {name: _plans.view(x, kept) for name, x in (("q", q), ("k", k), ("v", v))}
    if any(x is not y for x, y in zip(kept, (q, k, v))):
        return None
    reserve = _plans.reserve_size(comm, spec, q, k, v)
    rest = ["reserve"] if reserve else []
    prepared = _prepared.Prepared(
        comm, _plans.key_of(spec, q, k, v), spec,
        (_abi.AttnForwardArgs(**of), ("q", "k", "v", "out", "lse", *rest)),
        (_abi.AttnBackwardArgs(**of), ("q", "k", "v", "out", "lse", "dOut", "dq", "dk", "dv", *rest)), reserve)
    (batch, tokens, heads, _), value_dim = q.shape, v.shape[3]
    prepared.sizes = (batch, tokens, heads, value_dim)
    prepared.strides = (tokens * heads * value_dim, heads * value_dim, value_dim, 1)
    prepared.like_q = q.is_contiguous() and q.shape == prepared.sizes
    prepared.lse_sizes, prepared.forms = (batch, heads, tokens), (q.stride(), k.stride(), v.stride())
    return prepared


def _run_prepared(prepared, q, places, with_lse):
    """The last result is None if the pass leaves nothing."""
    out, lse = torch.empty_like(q) if prepared.like_q else q.new_empty_strided(prepared.sizes, prepared.strides), None
    if with_lse:
        lse = prepared.floats(prepared.lse_sizes)
    places += (out.data_ptr(), 0 if lse is None else lse.data_ptr())
    reserve = prepared.reserve(places) if prepared.keeps else None
    prepared.run(False, places)
    return out, lse, reserve


def _spec(local, kv_local, training, sinks, causal=False, window=(-1, -1), scale=None, softcap=0.0, cu_seqlens=None, layout=None,
          kv_layout=None, algorithm="auto", deterministic=False, wire=None, inner=0, reserve=False, mask=None):
    cross = kv_layout is not None or (layout is None and kv_local != local)
    return _plans.spec(
        family="softmax", layout=layout and layout.key, shards=_plans.kind_of(algorithm) if layout is None else None, kv_layout=kv_layout and kv_layout.key, cross=1 if cross else None,
        training=int(training), cu_seqlens=None if cu_seqlens is None else ",".join(map(str, cu_seqlens)), algorithm=algorithm,
        causal=1 if _shapes.flag("attention: causal", causal) else None, window=None if tuple(window) == (-1, -1) else f"{window[0]},{window[1]}",
        scale=_shapes.scale_of("attention", scale), softcap=None if softcap is None else _shapes.number("attention: softcap", softcap) or None,
        sinks=1 if sinks else None, deterministic=1 if _shapes.flag("attention: deterministic", deterministic) else None,
        reserve=1 if _shapes.flag("attention: reserve", reserve) and training else None,
        wire=None if wire is None else str(wire).removeprefix("torch."), mask=mask and mask.key,
        inner=_shapes.integers("attention: inner", (inner,), 1, 32)[0] or None)


def _hashable(options):
    try:
        return hash(tuple(options.values())) is not None
    except TypeError:
        return False


_known_spec = functools.lru_cache(maxsize=256, typed=True)(_spec)
_OPTIONS = frozenset(inspect.signature(_spec).parameters) - {"local", "kv_local", "training"}
_NOT_WITH_KERNEL = ("kv_layout", "deterministic", "wire", "inner", "reserve", "mask")


def _training(q, k, v, sinks):
    try:
        return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or
                                            (sinks is not None and sinks.requires_grad))
    except AttributeError:
        require_tensors("attention", q, k, v, sinks=sinks)
        raise


def _prepare(q, k, v, comm, *, sinks=None, cu_seqlens=None, layout=None, kv_layout=None, **options):
    require_tensors("attention", q, k, v, sinks=sinks)
    _shapes.require_options("attention", options, _OPTIONS, ("kernel", "return_lse"))
    _shapes.require_fit("attention", q.shape, k.shape, v.shape, linear=False)
    _shapes.require_sinks("attention", sinks, q.shape[2])
    if sinks is not None and sinks.dtype != torch.float32:
        raise TypeError(f"attention: sinks is {sinks.dtype}, expected torch.float32")
    training = _training(q, k, v, sinks)
    local, kv_local = q.shape[1], k.shape[1]
    if layout is not None:
        require_fit("attention: layout", layout, comm, local=local)
    if kv_layout is not None:
        require_fit("attention: kv_layout", kv_layout, comm, local=kv_local)
    elif layout is not None and kv_local != local:
        raise ValueError(f"attention: got {local} queries and {kv_local} keys, expected equally many with a layout, or a kv_layout")
    require_constants("attention", **{name: options.get(name) for name in ("scale", "softcap")})
    if "window" in options:
        options["window"] = _shapes.window_of("attention", options["window"])
    mask = options.get("mask")
    if mask is not None:
        if not isinstance(mask, Mask):
            raise TypeError(f"attention: mask: got {_shapes.shown(mask)}, expected a seqpar.torch.Mask")
        tokens = local * comm.size if layout is None else layout.tokens
        if mask.tokens != tokens:
            raise ValueError(f"attention: mask has {mask.tokens} tokens, expected {tokens}, the tokens of the whole")
    known = eager() and not has_tensors(options) and _hashable(options)  # torch.compile traces functions, not their caches
    text = _known_spec if known else _spec
    return text(local, kv_local, training, sinks is not None, cu_seqlens=bounds_of(cu_seqlens), layout=layout,
                kv_layout=kv_layout, **options)


def _with_rest(q, k, v, comm, mask, return_lse, sinks, kernel, options):
    """attention() with a mask that has a rest. Forward keeps nothing in a reserve: it would keep the slices' results."""
    if kernel is not None:
        raise ValueError("attention: got kernel and a mask, expected at most one of them")
    spec = _prepare(q, k, v, comm, sinks=sinks, **{**options, "reserve": False})
    algorithm = options.get("algorithm", "auto")
    layout = options.get("layout") or Layout(_plans.kind_of(algorithm), q.shape[1] * comm.size, comm.size)
    kv_layout = options.get("kv_layout") or layout
    if kv_layout.tokens != mask.tokens:
        raise ValueError(f"attention: kv_layout has {kv_layout.tokens} tokens, expected {mask.tokens}: slices do not describe the mask")
    scale, softcap = _shapes.scale_of("attention", options.get("scale")), _shapes.number("attention: softcap", options.get("softcap") or 0.0)
    rest = _flex.attention(mask.rest, q, k, v, comm, layout, kv_layout, local=algorithm == "local", causal=bool(options.get("causal")),
                           window=_shapes.window_of("attention", options.get("window", (-1, -1))),
                           scale=q.shape[3] ** -0.5 if scale is None else scale, softcap=softcap)
    out, lse = _flex.Merged.apply(*_plans.distinct(q, k, v), sinks, *rest, spec, comm.name, _forward, _backward)
    return (out, lse) if return_lse else out


@collective
def attention(q, k, v, comm, *, return_lse=False, sinks=None, kernel=None, **options):
    """Softmax attention of this rank's queries to all ranks' keys. Differentiable; the backward pass is also
    collective.

        q            [batch][local tokens][heads][dim]; float32, float16 or bfloat16
        k, v         [batch][local tokens][kv heads][dim]; kv heads divide heads; v may have another dim
        causal       a token sees itself and earlier tokens, in the order of the whole sequence
        window       (left, right): maximum numbers of earlier and later tokens that a token sees; -1: all
        scale        factor of the scores; None: 1 / sqrt(dim)
        softcap      scores become softcap * tanh(score / softcap); 0: none
        sinks        float32 [heads]: a learned value in each softmax's denominator; its gradient is this rank's share
        cu_seqlens   bounds of packed sequences in the whole, batch 1: tuple of ints, from 0 to the number of tokens
        mask         Mask: a token sees only the keys that a slice and `causal` and `window` allow; not with cu_seqlens or
                     "dist_attn". solve_layout(mask, comm.size) balances it. A token that sees nothing has out 0
        layout       Layout of the tokens; None: shards of equal length, contiguous, but zigzag for "zigzag" and striped
                     for "striped". Causal masks are balanced, and faster, with a Layout("zigzag")
        kv_layout    cross-attention: Layout of the keys. Masks and windows are aligned at the ends: with m queries and
                     n keys in the whole, query i is aligned with key i + n - m
        algorithm    "auto", "ring", "zigzag", "striped", "ulysses", "allgather_kv", ...; see seqparAttnAlgorithm_t
        kernel       the caller's kernel between the exchanges of "ulysses" (then the default) or "allgather_kv": a
                     function (q, k, v, LocalCall), or "sdpa", "flex_attention", "flash_attention_2",
                     "flash_attention_3"
        deterministic  bitwise equal results also on GPUs
        wire         the type of partial results on the wire; None: float32
        reserve      the forward pass keeps its exchanged data until the backward pass, which then sends less: for
                     "ulysses", "usp", "megatron_sp" and "allgather_kv"; takes explain()'s reserveBytes per call; under
                     torch.compile nothing is kept
        return_lse   (out, lse) instead of out: lse is float32 [batch][heads][tokens], without a gradient

    torch.autocast casts q, k and v, as for scaled_dot_product_attention. All ranks must pass equal options. A plan is
    created at the first call with a description and kept until comm.close().
    """
    if isinstance(q, torch.Tensor) and autocasts(q):
        require_tensors("attention", q, k, v, sinks=sinks)
        q, k, v = autocasted(q, k, v)
    mask = options.get("mask")
    if mask is not None and getattr(mask, "rest", None) is not None:
        return _with_rest(q, k, v, comm, mask, return_lse, sinks, kernel, options)
    if kernel is not None:
        require_tensors("attention", q, k, v, sinks=sinks)
        if return_lse:
            raise ValueError("attention: return_lse is True, expected False with a kernel of the caller's")
        _shapes.require_options("attention", options, _OPTIONS, ("kernel", "return_lse"))
        for name in _NOT_WITH_KERNEL:
            if value := options.pop(name, None):
                raise ValueError(f"attention: {name} is {_shapes.shown(value)}, expected none with a kernel of the caller's")
        return attention_by(kernel, q, k, v, comm, sinks=sinks, **options)
    training = _training(q, k, v, sinks)
    # A compiled graph must know the sizes of saved tensors, but only the plan knows an algorithm's reserve.
    if options.get("reserve") and _shapes.flag("attention: reserve", options["reserve"]) and not (training and not torch.compiler.is_compiling()):
        options["reserve"] = False
    key, prepared = (None, None) if sinks is not None else _prepared.find(comm, "softmax", q, k, v, (), training, options)
    places = prepared and prepared.places(q, k, v)
    if places:
        spec = prepared.spec
    else:
        spec, prepared = _prepare(q, k, v, comm, sinks=sinks, **options), None
    if places and not training:
        out, lse, _ = _run_prepared(prepared, q, places, return_lse)
    elif without_gradient((q, k, v, sinks)):
        out, lse, _ = _forward(q, k, v, sinks, spec, comm.name)
    else:
        out, lse = _Attention.apply(*_plans.distinct(q, k, v), sinks, spec, comm.name, prepared, places)
    if key is not None and prepared is None:
        _prepared.remember(comm, key, _prepare_call(comm, spec, q, k, v))
    return (out, lse) if return_lse else out


@collective
def explain(q, k, v, comm, *, function="attention", log_decay=None, beta=None, num_householder=None, **options):
    """Collective: the plan of attention() with these arguments, as a dictionary: the algorithm, its modeled time and
    layout, and why other algorithms are slower or not supported. function: for another function, the name of one of the
    functions of linear attention, as "gla", with its log_decay and beta; or "gated_delta_product", also with its
    num_householder: its plan is that of a delta rule with a token for each update."""
    family = _abi.choose("explain: function", function, {"attention": "softmax", **_families.FUNCTIONS, _families.PRODUCT: None})
    if function == _families.PRODUCT:
        spec, q, gates = _delta_product.describe(q, k, v, log_decay, beta, num_householder, comm, **options)
        return _plans.explain(comm, spec, q, k, v, gates)
    _families.require_none("explain", function, num_householder=num_householder)
    if function == "attention":
        for name in ("kernel", "return_lse"):
            if name in options:
                raise ValueError(f"explain: got {name}, expected none: plans are those of the library's kernels")
        _families.require_none("explain", function, log_decay=log_decay, beta=beta)
        return _plans.explain(comm, _prepare(q, k, v, comm, **options), q, k, v)
    gates = _families.given(family, log_decay=log_decay, beta=beta)
    return _plans.explain(comm, _linear.describe(family, q, k, v, gates, comm, **options), q, k, v, gates)
