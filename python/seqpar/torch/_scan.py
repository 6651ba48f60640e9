"""All-Scan of linear attention's states over the ranks, with its derivatives."""

import itertools
import math

import torch

from .. import _abi, _shapes
from .._scan_gradients import transition_gradient, transposed_product
from . import _ops
from ._comm import find
from ._first_order import first_order
from ._refusals import collective
from ._work import at_once, starting


def _without(x, flags, bits):
    """[heads][...]: x with zeros in the heads of sequences with one of `bits`. Copies nothing from the host: that would wait for the
    GPU, and end the capture of a graph."""
    each, parts, at = x.shape[0] // len(flags), [], 0
    for zero, run in itertools.groupby(flags, lambda flag: bool(flag & bits)):
        part = x[at:at + each * len(list(run))]
        parts.append(torch.zeros_like(part) if zero else part)
        at += part.shape[0]
    return torch.cat(parts)


class _AllScan(torch.autograd.Function):
    """With w_p the gradient of the state before position p and r_p = w_(p+1), a scan in the reverse direction:

        w_p = A_p^T r_p + (dPrefix_p + A_p^T dTotal_p)      dS_p = dTotal_p + r_p      dA_p = dS_p x_p^T
    """

    operator = _ops.all_scan

    @staticmethod
    def start(state, transition, initial, *rest):
        return _ops.start_all_scan(state.detach(), *(x if x is None else x.detach() for x in (transition, initial)), *rest)

    @staticmethod
    def forward(ctx, ticket, state, transition, initial, *rest):
        if ticket is None:
            prefix, total = _ops.all_scan(state, transition, initial, *rest)
        else:
            prefix, total = _ops.wait_all_scan(ticket, state, transition, initial, *rest)
        ctx.save_for_backward(transition, prefix)
        ctx.has_initial = initial is not None
        ctx.rest = rest
        return prefix, total

    @staticmethod
    @first_order
    def backward(ctx, d_prefix, d_total):
        transition, prefix = ctx.saved_tensors
        op, reverse, decay, wire, flags, algorithm, comm = ctx.rest
        kind = d_total.dtype
        d_prefix, d_total = d_prefix.float(), d_total.float()
        factor = transition
        if decay != "linear":
            factor = transition.exp() if decay == "log" else transition.exp2()
        carried = transposed_product(op, factor, d_total, reverse)
        if flags:  # 1: prefix is 0; 2 or 1: total is S alone
            carried = _without(carried, flags, 3)
            d_prefix = _without(d_prefix, flags, 1)
        marks = [2 if flag else 0 for flag in flags]
        behind, before = _ops.all_scan(d_prefix + carried, transition, None, op, not reverse, decay, "float32", marks,
                                       algorithm, comm)
        d_state = d_total + behind
        d_transition = None
        if op != "sum":
            through = _without(d_state, flags, 3) if flags else d_state
            d_transition = transition_gradient(op, through, prefix.float(), reverse)
            if decay != "linear":
                d_transition = d_transition * factor * (1 if decay == "log" else math.log(2))
        d_initial = None
        if ctx.has_initial:
            one = find(comm)
            d_initial = before.to(kind) if one.rank == (one.size - 1 if reverse else 0) else torch.zeros_like(before, dtype=kind)
        return None, d_state.to(kind), d_transition, d_initial, None, None, None, None, None, None, None


def _require(name, x, shape, dtype):
    if (x is None) != (shape is None):
        raise ValueError(f"all_scan: {name} is {'None' if x is None else 'given'}, expected {shape or 'None'}")
    if x is not None and (tuple(x.shape) != shape or x.dtype != dtype):
        raise ValueError(f"all_scan: {name} is {x.dtype} {tuple(x.shape)}, expected {dtype} {shape}")


@collective
def all_scan(state, transition, comm, *, op="diag", initial=None, reverse=False, decay="linear", wire=None, flags=None,
             algorithm="auto", _run=at_once):
    """(prefix, total): the states of linear attention before and after this rank; see seqparAllScan().

    state       [heads][dk][dv]; with the batch folded into the heads
    transition  float32: None for op "sum", [heads] for "scalar", [heads][dk] for "diag", [heads][dk][dk] for "matrix", which
                multiplies the state, in reverse its transpose
    initial     like state: read on the first rank of the scan, but passed on all ranks or on none; its gradient is 0 on others
    decay       "linear", "log", "log2": the form of the transition
    wire        torch.float32, .float16, .bfloat16: the type of states on the wire; None: the states'. Gradients use
                float32
    flags       one value per packed sequence: 1: it starts at this rank's first token; 2: at a later token
    """
    _abi.choose("all_scan: op", op, _abi.OPS)
    if state.dim() != 3:
        raise ValueError(f"all_scan: state has the shape {tuple(state.shape)}, expected [heads][dk][dv]")
    _require("transition", transition, _shapes.scan_shapes(op, *state.shape[:2]), torch.float32)
    if initial is not None:
        _require("initial", initial, tuple(state.shape), state.dtype)
    if flags and state.shape[0] % len(flags):
        raise ValueError(f"all_scan: got {len(flags)} flags, expected a divisor of {state.shape[0]}, the heads")
    wire = str(wire or state.dtype).removeprefix("torch.")
    return _run(_AllScan, state, transition, initial, op, reverse, decay, wire, list(flags or []), algorithm, comm.name)


start_all_scan = starting(all_scan)
