"""The collectives with their derivatives. All are collective: every rank of `comm` calls them, in the same order, in the
forward pass and in the backward pass."""

import math

import torch
from torch.autograd.function import once_differentiable

from . import _ops
from ._layout import require_fit


def _axis(x, dim):
    return dim + x.dim() if dim < 0 else dim


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, query_heads, tokens, comm):
        ctx.rest = (x.shape[2], query_heads, tokens, comm)
        return _ops.to_heads(x, query_heads, tokens, comm)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return _ops.to_sequence(grad, *ctx.rest), None, None, None


class _ToSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, heads, query_heads, tokens, comm):
        ctx.rest = (query_heads, tokens, comm)
        return _ops.to_sequence(x, heads, query_heads, tokens, comm)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return _ops.to_heads(grad, *ctx.rest), None, None, None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, tokens, comm):
        ctx.rest = (dim, tokens, comm)
        return _ops.all_gather(x, dim, tokens, comm)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return _ops.reduce_scatter(grad, *ctx.rest), None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, tokens, comm):
        ctx.rest = (dim, tokens, comm)
        return _ops.reduce_scatter(x, dim, tokens, comm)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return _ops.all_gather(grad, *ctx.rest), None, None, None


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, left, right, periodic, tokens, comm):
        ctx.rest = (dim, x.shape[dim], periodic, tokens, comm)
        return _ops.halo(x, dim, left, right, periodic, tokens, comm)

    @staticmethod
    @once_differentiable
    def backward(ctx, left, right):
        return _ops.halo_adjoint(left, right, *ctx.rest), None, None, None, None, None, None


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, source, target, dim, comm, *tensors):
        ctx.rest = (target, source, dim, comm)
        return tuple(_ops.redistribute(list(tensors), source, target, dim, comm))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        return (None, None, None, None, *_ops.redistribute(list(grads), *ctx.rest))


def _expand(numbers, state):
    """Numbers a head or a row as factors of [heads][dk][dv]."""
    return numbers.reshape(*numbers.shape, *[1] * (state.dim() - numbers.dim()))


def _transposed_product(op, factor, grad, reverse):
    """A^T grad of one position, A being what its scan multiplies by."""
    if op == "sum":
        return grad
    if op == "matrix":
        return torch.matmul(factor if reverse else factor.mT, grad)
    return _expand(factor, grad) * grad


def _transition_gradient(op, grad, prefix, reverse):
    """Gradient of A, from the gradient of A x and x."""
    if op == "scalar":
        return (grad * prefix).sum((1, 2))
    if op == "diag":
        return (grad * prefix).sum(2)
    return prefix @ grad.mT if reverse else grad @ prefix.mT


def _heads_with(flags, bits, state):
    """[heads][1][1]: 1 where one of `bits` is set for the head's sequence."""
    marks = torch.tensor([float(bool(flag & bits)) for flag in flags], device=state.device)
    return _expand(marks.repeat_interleave(state.shape[0] // len(flags)), state)


class _AllScan(torch.autograd.Function):
    """With w_p the gradient of the state before position p and r_p = w_(p+1), a scan in the other direction:

        w_p = A_p^T r_p + (dPrefix_p + A_p^T dTotal_p)      dS_p = dTotal_p + r_p      dA_p = dS_p x_p^T
    """

    @staticmethod
    def forward(ctx, state, transition, initial, op, reverse, decay, wire, flags, algorithm, comm):
        prefix, total = _ops.all_scan(state, transition, initial, op, reverse, decay, wire, flags, algorithm, comm)
        ctx.save_for_backward(transition, prefix)
        ctx.has_initial = initial is not None
        ctx.rest = (op, reverse, decay, wire, flags, algorithm, comm)
        return prefix, total

    @staticmethod
    @once_differentiable
    def backward(ctx, d_prefix, d_total):
        transition, prefix = ctx.saved_tensors
        op, reverse, decay, wire, flags, algorithm, comm = ctx.rest
        kind = d_total.dtype
        d_prefix, d_total = d_prefix.float(), d_total.float()
        factor = transition
        if decay != "linear":
            factor = transition.exp() if decay == "log" else transition.exp2()
        carried = _transposed_product(op, factor, d_total, reverse)
        if flags:  # 1: prefix is 0 whatever came; 2 or 1: total is S alone
            carried = carried * (1 - _heads_with(flags, 3, carried))
            d_prefix = d_prefix * (1 - _heads_with(flags, 1, carried))
        marks = [2 if flag else 0 for flag in flags]
        behind, before = _ops.all_scan(d_prefix + carried, transition, None, op, not reverse, decay, "float32", marks,
                                       algorithm, comm)
        d_state = d_total + behind
        d_transition = None
        if op != "sum":
            through = d_state * (1 - _heads_with(flags, 3, d_state)) if flags else d_state
            d_transition = _transition_gradient(op, through, prefix.float(), reverse)
            if decay != "linear":
                d_transition = d_transition * factor * (1 if decay == "log" else math.log(2))
        d_initial = before.to(kind) if ctx.has_initial else None
        return d_state.to(kind), d_transition, d_initial, None, None, None, None, None, None, None


def to_heads(x, comm, *, query_heads=0, tokens=None):
    """[batch][tokens of the rank][heads][dim] -> [batch][all tokens][heads of the rank][dim] (DeepSpeed Ulysses).

    query_heads  of keys and values: the number of query heads, so that they go where their queries are
    tokens       of every rank, where they are not equal
    Backward: gradients of heads that several ranks have are added up. Heads need not divide by ranks.
    """
    return _ToHeads.apply(x, query_heads, list(tokens or []), comm.name)


def to_sequence(x, comm, *, heads, query_heads=0, tokens=None):
    """The way back of to_heads(): `heads` are those of the result. What several ranks have for one head is added."""
    return _ToSequence.apply(x, heads, query_heads, list(tokens or []), comm.name)


def all_gather(x, comm, *, dim=1, tokens=None):
    """Every rank's shard along `dim`, in the order of the ranks. Backward: reduce_scatter()."""
    return _AllGather.apply(x, _axis(x, dim), list(tokens or []), comm.name)


def reduce_scatter(x, comm, *, dim=1, tokens=None):
    """This rank's shard along `dim` of the sum of all ranks' `x`, added in fp32. Backward: all_gather()."""
    return _ReduceScatter.apply(x, _axis(x, dim), list(tokens or []), comm.name)


def halo(x, comm, *, left=0, right=0, dim=1, periodic=False, tokens=None):
    """(left, right): the tokens before and behind this rank's contiguous shard, zeros beyond the ends of the sequence.
    Shards may be shorter than a halo. Packed sequences: a halo does not stop where one begins."""
    return _Halo.apply(x, _axis(x, dim), left, right, periodic, list(tokens or []), comm.name)


def redistribute(tensors, source, target, comm, *, dim=1):
    """Moves tensors, of any types, from one Layout to another together. A tensor gives a tensor, a tuple a tuple."""
    single = isinstance(tensors, torch.Tensor)
    several = (tensors,) if single else tuple(tensors)
    for x in several:
        require_fit("redistribute", source, comm, local=x.shape[dim])
    require_fit("redistribute", target, comm, tokens=source.tokens)
    moved = _Redistribute.apply(source.key, target.key, _axis(several[0], dim), comm.name, *several)
    return moved[0] if single else moved


def all_scan(state, transition, comm, *, op="diag", initial=None, reverse=False, decay="linear", wire=None, flags=None,
             algorithm="auto"):
    """(prefix, total): the states of linear attention before and after this rank; see seqparAllScan().

    state       [heads][dk][dv]; with the batch folded into the heads
    transition  float32: None for op "sum", [heads] for "scalar", [heads][dk] for "diag", [heads][dk][dk] for "matrix"
    initial     like state: read on the first rank of the scan, but given on all or on none
    decay       "linear", "log", "log2": how the transition is given
    wire        torch.float32, .float16, .bfloat16: how states travel; None: as they are. Gradients travel in float32
    flags       one number a packed sequence: 1: it begins at this rank's first token; 2: at a later token
    """
    wire = str(wire or state.dtype).removeprefix("torch.")
    return _AllScan.apply(state, transition, initial, op, reverse, decay, wire, list(flags or []), algorithm, comm.name)


def token_mean(losses, mask, comm):
    """This rank's share of the mean loss over all tokens of all ranks: the shares add up to the mean, and so do their
    gradients, so that parameters' gradients are summed (not averaged) over the ranks of `comm`.

    losses  of this rank's tokens, any shape; mask: of the same shape, which of them count; None: all
    """
    mask = torch.ones_like(losses) if mask is None else mask.to(losses.dtype)
    count = _ops.all_gather(mask.sum(dtype=torch.float32).reshape(1).detach(), 0, [], comm.name).sum()
    return (losses * mask).sum() / count.clamp(min=1)
