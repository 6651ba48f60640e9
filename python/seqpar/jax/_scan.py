"""All-Scan of linear attention's states over the ranks, with its derivatives."""

import math

import jax.numpy as jnp

from .. import _abi, _shapes
from .._scan_gradients import transition_gradient, transposed_product
from ._call import COMM, STREAM, Call, Operand, Result
from ._collectives import _like, data_type
from ._comm import custom_call, takes_comm
from ._differentiable import Operator, apply


def _scan_call(comm, state, transition, initial, op, reverse, decay, wire, algorithm, token):
    heads, dk, dv = state.shape
    params = _abi.AllScanParams(
        op=_abi.choose("op", op, _abi.OPS), direction=int(reverse), heads=heads, dk=dk, dv=dv,
        stateType=data_type("all_scan", state), wireType=_abi.choose("wire", wire, _abi.TYPES),
        decayForm=_abi.choose("decay", decay, _abi.DECAYS), sequences=1,
        algorithm=_abi.choose("algorithm", algorithm, _abi.ALGORITHMS))
    arrays = [x for x in (state, transition, initial) if x is not None]
    place = lambda x, i: 0 if x is None else Operand(i)
    make = lambda rank, handle: Call("seqparAllScan", Operand(0), place(transition, 1),
                                     place(initial, 1 if transition is None else 2), Result(0), Result(1), params, COMM, STREAM)
    description = ("all_scan", op, reverse, decay, wire, algorithm, transition is None, initial is None)
    return custom_call(comm, description, arrays, [_like(state), _like(state)], make, token)


def _require(name, x, shape, kind):
    if (x is None) != (shape is None):
        raise ValueError(f"all_scan: {name} is {'None' if x is None else 'given'}, expected {shape or 'None'}")
    if x is not None and (x.shape != shape or x.dtype.name != kind):
        raise ValueError(f"all_scan: {name} is {x.dtype.name} {x.shape}, expected {kind} {shape}")


@takes_comm
def all_scan(state, transition, comm, *, op="diag", initial=None, reverse=False, decay="linear", wire=None, algorithm="auto"):
    """(prefix, total): the states of linear attention before and after this rank; see seqparAllScan().

    state       [heads][dk][dv]; with the batch folded into the heads
    transition  float32: None for op "sum", [heads] for "scalar", [heads][dk] for "diag", [heads][dk][dk] for "matrix", which
                multiplies the state, in reverse its transpose
    initial     like state: read on the first rank of the scan; its gradient is 0 on others
    decay       "linear", "log", "log2": the form of the transition
    wire        "float32", "float16", "bfloat16": the type of states on the wire; None: the states'. Gradients use
                float32
    """
    _abi.choose("all_scan: op", op, _abi.OPS)
    if state.ndim != 3:
        raise ValueError(f"all_scan: state has the shape {state.shape}, expected [heads][dk][dv]")
    _require("transition", transition, _shapes.scan_shapes(op, *state.shape[:2]), "float32")
    if initial is not None:
        _require("initial", initial, state.shape, state.dtype.name)
    wire = str(wire or state.dtype.name)
    kind = state.dtype

    def unpacked(arrays):
        rest = list(arrays[1:])
        return arrays[0], rest.pop(0) if transition is not None else None, rest.pop(0) if initial is not None else None

    def forward(arrays, token):
        s, a, first = unpacked(arrays)
        results, token = _scan_call(comm, s, a, first, op, reverse, decay, wire, algorithm, token)
        return results, token, (a, results[0])

    def backward(kept, grads, token):
        # With w_p the gradient of the state before position p and r_p = w_(p+1), a scan in the reverse direction:
        #     w_p = A_p^T r_p + (dPrefix_p + A_p^T dTotal_p)      dS_p = dTotal_p + r_p      dA_p = dS_p x_p^T
        (a, prefix), (d_prefix, d_total) = kept, (g.astype(jnp.float32) for g in grads)
        factor = a if decay == "linear" or a is None else jnp.exp(a) if decay == "log" else jnp.exp2(a)
        carried = transposed_product(op, factor, d_total, reverse)
        (behind, before), token = _scan_call(comm, d_prefix + carried, a, None, op, not reverse, decay, "float32", algorithm,
                                             token)
        d_state = d_total + behind
        gradients = [d_state.astype(kind)]
        if a is not None:
            d_transition = transition_gradient(op, d_state, prefix.astype(jnp.float32), reverse)
            gradients.append(d_transition if decay == "linear" else
                             d_transition * factor * (1 if decay == "log" else math.log(2)))
        if initial is not None:
            reads = comm.rank() == (comm.size - 1 if reverse else 0)
            gradients.append(jnp.where(reads, before, 0).astype(kind))
        return gradients, token

    return apply(comm, Operator(forward, backward), *(x for x in (state, transition, initial) if x is not None))
