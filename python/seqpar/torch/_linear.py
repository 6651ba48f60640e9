"""Linear attention over sharded sequences, for all families. _linear_functions.py has a function of each."""

import torch

from .. import _abi, _shapes
from .._families import NAMES, function_of, named, options_of, require_gates, reserve_of
from . import _plans, _prepared
from ._comm import find
from ._define import autocasted, autocasts, define, real, require_constants, require_tensors, without_gradient
from ._first_order import first_order
from ._layout import bounds_of, require_fit


def _forward_outputs(q, k, v, gates, initial, spec, name):
    batch, tokens = q.shape[:2]
    heads, value_dim = v.shape[2:]
    state = (batch, heads, q.shape[3], value_dim)
    return (q.new_empty(batch, tokens, heads, value_dim), q.new_empty(state, dtype=torch.float32),
            q.new_empty(state, dtype=torch.float32), _plans.reserve(find(name), spec, q, k, v, gates))


def _forward_launch(made, q, k, v, gates, initial, spec, name):
    out, saved, final, reserve = made
    _plans.run(find(name), spec, q, k, v, gates, out=out, initial=initial, saved=saved, final=final, reserve=reserve)


def _backward_outputs(grad, d_final, q, k, v, gates, initial, saved, reserve, spec, name):
    def like(x):
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    d_initial = q.new_empty(0) if initial is None else torch.zeros_like(initial, memory_format=torch.contiguous_format)
    return [like(q), like(k), like(v), d_initial, *map(like, gates)]


def _backward_launch(made, grad, d_final, q, k, v, gates, initial, saved, reserve, spec, name):
    dq, dk, dv, d_initial, *d_gates = made
    _plans.run(find(name), spec, q, k, v, gates, dOut=grad, dFinal=d_final, initial=initial, saved=saved, reserve=reserve,
               dq=dq, dk=dk, dv=dv, dGates=d_gates, dInitial=None if initial is None else d_initial)


# The forward pass's last result is its reserve for the backward pass, empty unless the description asks for one.
_forward = define("linear_attention(Tensor q, Tensor k, Tensor v, Tensor[] gates, Tensor? initial, str spec, str comm) -> "
                  "(Tensor, Tensor, Tensor, Tensor)", _forward_outputs, _forward_launch)
# Gradients of q, k, v, `initial` (empty without it) and the gates.
_backward = define("linear_attention_backward(Tensor grad, Tensor? d_final, Tensor q, Tensor k, Tensor v, Tensor[] gates, "
                   "Tensor? initial, Tensor saved, Tensor reserve, str spec, str comm) -> Tensor[]", _backward_outputs,
                   _backward_launch)


class _LinearAttention(torch.autograd.Function):
    """prepared: a Prepared with the addresses of q, k, v and the gates, or None: the operators."""

    @staticmethod
    def forward(ctx, *arguments):  # see _collectives.py
        q, k, v, initial, with_final, spec, comm, prepared, places, *gates = arguments
        out, saved, final, reserve = (_forward(q, k, v, list(gates), initial, spec, comm) if prepared is None else
                                      _run_prepared(prepared, q, places, True, with_final))
        ctx.save_for_backward(q, k, v, initial, saved, _plans.kept(reserve), *gates)
        ctx.rest, ctx.prepared = (spec, comm), prepared
        return out, final

    @staticmethod
    @first_order
    def backward(ctx, grad, d_final):
        q, k, v, initial, saved, reserve, *gates = ctx.saved_tensors  # hooks may have replaced the saved tensors
        prepared, places = ctx.prepared, None
        if prepared is not None:
            places = prepared.again((q, k, v), *gates, saved, grad,
                                    *(x for x in (d_final, reserve) if x is not None))
        if places is None:
            dq, dk, dv, d_initial, *made = _backward(grad, d_final, q, k, v, gates, initial, saved, _plans.given(reserve, q),
                                                     *ctx.rest)
            return dq, dk, dv, None if initial is None else d_initial, None, None, None, None, None, *made
        made = [*prepared.gradients(q, k, v), *map(torch.empty_like, gates)]
        kept = [] if reserve is None else [places.pop()]
        if d_final is None:
            places.append(0)
        prepared.run(True, [*places, *(x.data_ptr() for x in made), *kept])
        return *made[:3], None, None, None, None, None, None, *made[3:]


def _prepare_call(comm, spec, q, k, v, gates):
    """A Prepared for similar calls; None if tensors must be copied."""
    kept = []
    of = {name: _plans.view(x, kept) for name, x in (("q", q), ("k", k), ("v", v))}
    of["gates"] = _plans.dense_gates(gates, kept)
    if any(x is not y for x, y in zip(kept, (q, k, v, *gates))):
        return None
    places, gradients = ([f"{name}[{i}]" for i in range(len(gates))] for name in ("gates", "dGates"))
    reserve = _plans.reserve_size(comm, spec, q, k, v, gates)
    rest = ["reserve"] if reserve else []
    prepared = _prepared.Prepared(
        comm, _plans.key_of(spec, q, k, v, gates), spec,
        (_abi.AttnForwardArgs(**of), ("q", "k", "v", "out", *places, "saved", "final", *rest)),
        (_abi.AttnBackwardArgs(**of), ("q", "k", "v", *places, "saved", "dOut", "dFinal", "dq", "dk", "dv",
                                       *gradients, *rest)), reserve)
    (batch, tokens), (heads, value_dim) = q.shape[:2], v.shape[2:]
    prepared.sizes = (batch, tokens, heads, value_dim)
    prepared.strides = (tokens * heads * value_dim, heads * value_dim, value_dim, 1)
    prepared.state, prepared.forms = (batch, heads, q.shape[3], value_dim), (q.stride(), k.stride(), v.stride())
    return prepared


def _run_prepared(prepared, q, places, with_saved, with_final):
    """places: of q, k, v and the gates. The last result is None if the pass leaves nothing."""
    out = q.new_empty_strided(prepared.sizes, prepared.strides)
    saved, final = (prepared.floats(prepared.state) if wanted else None for wanted in (with_saved, with_final))
    places = [*places[:3], out.data_ptr(), *places[3:], *(0 if x is None else x.data_ptr() for x in (saved, final))]
    reserve = prepared.reserve(places) if prepared.keeps else None
    prepared.run(False, places)
    return out, saved, final, reserve


def _run(family, q, k, v, gates, comm, *, initial_state=None, output_final_state=False, **options):
    if isinstance(q, torch.Tensor) and autocasts(q):
        require_tensors(NAMES[family], q, k, v, **named(family, gates))
        q, k, v = autocasted(q, k, v)
    try:
        training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or
                                                any(gate is not None and gate.requires_grad for gate in gates))
    except AttributeError:
        require_tensors(NAMES[family], q, k, v, **named(family, gates))
        raise
    key, prepared = ((None, None) if initial_state is not None else
                     _prepared.find(comm, family, q, k, v, gates, training, options))
    places = prepared and prepared.places(q, k, v, *gates)
    if places:
        spec = prepared.spec
    else:
        spec, prepared = describe(family, q, k, v, gates, comm, initial_state, **options), None
    if places and not training:
        out, _, final, _ = _run_prepared(prepared, q, places, False, output_final_state)
    elif without_gradient((q, k, v, *gates, initial_state)):
        out, _, final, _ = _forward(q, k, v, list(gates), initial_state, spec, comm.name)
    else:
        out, final = _LinearAttention.apply(*_plans.distinct(q, k, v), initial_state, output_final_state, spec, comm.name, prepared,
                                   places, *gates)
    if key is not None and prepared is None:
        _prepared.remember(comm, key, _prepare_call(comm, spec, q, k, v, gates))
    return (out, final) if output_final_state else out


def describe(family, q, k, v, gates, comm, initial_state=None, scale=None, cu_seqlens=None, layout=None, algorithm="auto",
             wire=None, reserve=None, input_gate=False, updates=None, **unknown):
    """The operators' description, for arguments that fit each other. input_gate: the last of the gates is a factor per
    token and head on k v^T. updates: those of a token of gated_delta_product(), each one a token of q, k, v and gates."""
    name = function_of(family, updates, input_gate)
    require_tensors(name, q, k, v, **named(family, gates), initial_state=initial_state)
    require_constants(name, scale=scale)
    options = options_of(family, _OPTIONS)
    normalize = bool(unknown.pop("normalize", False)) if "normalize" in options else False
    _shapes.require_options(name, unknown, options)
    _shapes.require_fit(name, q.shape, k.shape, v.shape, linear=True)
    require_gates(name, family, gates[:-1] if input_gate else gates, q.shape, v.shape)
    for gate_name, gate in named(family, gates).items():
        if gate.dtype not in (torch.float32, torch.bfloat16):
            raise TypeError(f"{name}: {gate_name} is {gate.dtype}, expected torch.float32 or torch.bfloat16")
    if layout is not None:
        require_fit(f"{name}: layout", layout, comm, local=q.shape[1] // (updates or 1))
    bounds = bounds_of(cu_seqlens)
    sequences = q.shape[0] if bounds is None else len(bounds) - 1
    state = (sequences, v.shape[2], q.shape[3], v.shape[3])
    if initial_state is not None and tuple(initial_state.shape) != state:
        raise ValueError(f"{name}: initial_state has the shape {tuple(initial_state.shape)}, expected {state}")
    if initial_state is not None and initial_state.dtype != torch.float32:
        raise TypeError(f"{name}: initial_state is {initial_state.dtype}, expected torch.float32")
    training = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, *gates, initial_state))
    # A compiled graph must know the sizes of saved tensors, but only the plan knows its reserve. The library recomputes
    # the states of packed sequences with initial states.
    keeps = training and not torch.compiler.is_compiling() and real(q) and (bounds is None or initial_state is None)
    return _plans.spec(family=family, algorithm=algorithm, layout=layout and layout.key, training=int(training),
                       scale=_shapes.scale_of(name, scale),
                       cu_seqlens=None if bounds is None else ",".join(map(str, bounds)),
                       wire=None if wire is None else str(wire).removeprefix("torch."),
                       reserve=reserve_of(family, reserve) or None if keeps else None,
                       normalize=1 if normalize else None, input_gate=1 if input_gate else None, num_householder=updates)


_OPTIONS = ("scale", "initial_state", "output_final_state", "cu_seqlens", "layout", "algorithm", "wire", "reserve")
