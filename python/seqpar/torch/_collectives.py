"""The collectives with their derivatives. All are collective: every rank of `comm` calls them, in the same order, in
the forward pass and in the backward pass."""

import torch

from .. import _shapes
from . import _ops
from ._define import data_type, without_gradient
from ._first_order import first_order
from ._layout import require_fit
from ._refusals import collective
from ._work import Work, at_once, starting


def _axis(x, dim):
    if not -x.dim() <= dim < x.dim():
        raise IndexError(f"dim is {dim}, expected one of a tensor with the shape {tuple(x.shape)}")
    return dim + x.dim() if dim < 0 else dim


def _lengths(what, tokens):
    """The numbers of tokens of the ranks, as a list; empty: equal ones. Graphs may have symbols in place of ints."""
    if tokens is None or torch.compiler.is_compiling():
        return list(tokens or [])
    return list(_shapes.integers(f"{what}: tokens", tokens, 0))


def _require_heads(what, x):
    if x.dim() != 4:
        raise ValueError(f"{what}: got the shape {tuple(x.shape)}, expected [batch][tokens][heads][dim]")


def _several(what, tensors):
    """(whether it is one tensor, the tensors)."""
    if isinstance(tensors, torch.Tensor):
        return True, (tensors,)
    if not tensors:
        raise ValueError(f"{what}: got no tensors, expected at least one")
    return False, tuple(tensors)


class _ToHeads(torch.autograd.Function):
    operator = _ops.to_heads

    @staticmethod
    def start(x, *rest):
        return _ops.start_to_heads(x.detach(), *rest)

    @staticmethod
    def forward(ctx, ticket, x, query_heads, tokens, comm):
        ctx.rest = (x.shape[2], query_heads, tokens, comm)
        if ticket is None:
            return _ops.to_heads(x, query_heads, tokens, comm)
        return _ops.wait_to_heads(ticket, x, query_heads, tokens, comm)

    @staticmethod
    @first_order
    def backward(ctx, grad):
        return None, _ops.to_sequence(grad, *ctx.rest), None, None, None


class _ToSequence(torch.autograd.Function):
    operator = _ops.to_sequence

    @staticmethod
    def start(x, *rest):
        return _ops.start_to_sequence(x.detach(), *rest)

    @staticmethod
    def forward(ctx, ticket, x, heads, query_heads, tokens, comm):
        ctx.rest = (query_heads, tokens, comm)
        if ticket is None:
            return _ops.to_sequence(x, heads, query_heads, tokens, comm)
        return _ops.wait_to_sequence(ticket, x, heads, query_heads, tokens, comm)

    @staticmethod
    @first_order
    def backward(ctx, grad):
        return None, _ops.to_heads(grad, *ctx.rest), None, None, None, None


class _AllGather(torch.autograd.Function):
    operator = _ops.all_gather

    @staticmethod
    def start(x, *rest):
        return _ops.start_all_gather(x.detach(), *rest)

    @staticmethod
    def forward(ctx, ticket, x, dim, tokens, comm):
        ctx.rest = (dim, tokens, comm)
        if ticket is None:
            return _ops.all_gather(x, dim, tokens, comm)
        return _ops.wait_all_gather(ticket, x, dim, tokens, comm)

    @staticmethod
    @first_order
    def backward(ctx, grad):
        data_type("the gradient of all_gather", grad)
        return None, _ops.reduce_scatter(grad, *ctx.rest), None, None, None


class _ReduceScatter(torch.autograd.Function):
    operator = _ops.reduce_scatter

    @staticmethod
    def start(x, *rest):
        return _ops.start_reduce_scatter(x.detach(), *rest)

    @staticmethod
    def forward(ctx, ticket, x, dim, tokens, comm):
        ctx.rest = (dim, tokens, comm)
        if ticket is None:
            return _ops.reduce_scatter(x, dim, tokens, comm)
        return _ops.wait_reduce_scatter(ticket, x, dim, tokens, comm)

    @staticmethod
    @first_order
    def backward(ctx, grad):
        return None, _ops.all_gather(grad, *ctx.rest), None, None, None


class _Halo(torch.autograd.Function):
    operator = _ops.halo

    @staticmethod
    def start(x, *rest):
        return _ops.start_halo(x.detach(), *rest)

    @staticmethod
    def forward(ctx, ticket, x, dim, left, right, periodic, tokens, comm):
        ctx.rest = (dim, x.shape[dim], periodic, tokens, comm)
        if ticket is None:
            return _ops.halo(x, dim, left, right, periodic, tokens, comm)
        return _ops.wait_halo(ticket, x, dim, left, right, periodic, tokens, comm)

    @staticmethod
    @first_order
    def backward(ctx, left, right):
        return None, _ops.halo_adjoint(left, right, *ctx.rest), None, None, None, None, None, None


# Functions of several tensors have forward(ctx, *arguments): where no gradient is needed, torch.compile (2.11) leaves out
# ctx if a call has as many arguments as forward has parameters, and *tensors counts as one.
class _Redistribute(torch.autograd.Function):
    @staticmethod
    def start(source, target, dim, comm, *tensors):
        return _ops.start_redistribute([x.detach() for x in tensors], source, target, dim, comm)

    @staticmethod
    def forward(ctx, *arguments):
        ticket, source, target, dim, comm, *tensors = arguments
        ctx.rest = (target, source, dim, comm)
        if ticket is None:
            return tuple(_ops.redistribute(list(tensors), source, target, dim, comm))
        return tuple(_ops.wait_redistribute(ticket, list(tensors), source, target, dim, comm))

    @staticmethod
    @first_order
    def backward(ctx, *grads):
        return (None, None, None, None, None, *_ops.redistribute(list(grads), *ctx.rest))


class _Shift(torch.autograd.Function):
    @staticmethod
    def start(by, comm, *tensors):
        return _ops.start_shift([x.detach() for x in tensors], by, comm)

    @staticmethod
    def forward(ctx, *arguments):
        ticket, by, comm, *tensors = arguments
        ctx.rest = (by, comm)
        if ticket is None:
            return tuple(_ops.shift(list(tensors), by, comm))
        return tuple(_ops.wait_shift(ticket, list(tensors), by, comm))

    @staticmethod
    @first_order
    def backward(ctx, *grads):
        by, comm = ctx.rest
        return (None, None, None, *_ops.shift(list(grads), -by, comm))


class _Merge(torch.autograd.Function):
    """With w = exp(lse - lse'): out' = sum w out, so d_out = w d_out' and d_lse = w (<d_out', out - out'> + d_lse')."""

    @staticmethod
    def forward(ctx, out, lse, tokens, comm):
        merged, total = _ops.merge(out, lse, tokens, comm)
        ctx.save_for_backward(out, lse, merged, total)
        ctx.rest = (tokens, comm)
        return merged, total

    @staticmethod
    @first_order
    def backward(ctx, d_merged, d_total):
        out, lse, merged, total = ctx.saved_tensors
        tokens, comm = ctx.rest
        constant = d_total - (d_merged.float() * merged.float()).sum(3).transpose(1, 2)
        d_merged = _ops.all_gather(d_merged, 1, tokens, comm)
        total, constant = _ops.all_gather(torch.stack((total, constant)), 3, tokens, comm)
        none = lse == -torch.inf  # `out` is ignored there
        weight = torch.where(none, 0.0, torch.exp(lse - total))
        out = out.float().masked_fill(none.transpose(1, 2)[..., None], 0.0)
        d_lse = weight * ((d_merged.float() * out).sum(3).transpose(1, 2) + constant)
        return (weight.transpose(1, 2)[..., None] * d_merged).to(d_merged.dtype), d_lse, None, None


@collective
def to_heads(x, comm, *, query_heads=0, tokens=None, _run=at_once):
    """[batch][tokens of the rank][heads][dim] -> [batch][all tokens][heads of the rank][dim] (DeepSpeed Ulysses).

    query_heads  for keys and values: the number of query heads, so that they are sent to the ranks of their queries
    tokens       of every rank, if they are not equal

    Backward: gradients of heads that several ranks hold are summed. Heads need not divide by ranks.
    """
    _require_heads("to_heads", x)
    if not torch.compiler.is_compiling():
        query_heads = _shapes.integers("to_heads: query_heads", (query_heads,), 1)[0]
    return _run(_ToHeads, x, query_heads, _lengths("to_heads", tokens), comm.name)


@collective
def to_sequence(x, comm, *, heads, query_heads=0, tokens=None, _run=at_once):
    """The reverse of to_heads(): `heads` are the result's. Sums the values of ranks that hold the same head."""
    _require_heads("to_sequence", x)
    if not torch.compiler.is_compiling():
        heads, query_heads = _shapes.integers("to_sequence: heads and query_heads", (heads, query_heads), 2)
    return _run(_ToSequence, x, heads, query_heads, _lengths("to_sequence", tokens), comm.name)


@collective
def all_gather(x, comm, *, dim=1, tokens=None, _run=at_once):
    """Every rank's shard along `dim`, in the order of the ranks. Backward: reduce_scatter()."""
    return _run(_AllGather, x, _axis(x, dim), _lengths("all_gather", tokens), comm.name)


@collective
def reduce_scatter(x, comm, *, dim=1, tokens=None, _run=at_once):
    """This rank's shard along `dim` of the sum of all ranks' `x`, added in fp32. Backward: all_gather()."""
    return _run(_ReduceScatter, x, _axis(x, dim), _lengths("reduce_scatter", tokens), comm.name)


@collective
def halo(x, comm, *, left=0, right=0, dim=1, periodic=False, tokens=None, _run=at_once):
    """(left, right): the tokens before and after this rank's contiguous shard, zeros beyond the ends of the sequence.
    Shards may be shorter than a halo. Packed sequences: a halo extends across their bounds."""
    if not torch.compiler.is_compiling():
        left, right = _shapes.integers("halo: left and right", (left, right), 2)
    if left < 0 or right < 0:
        raise ValueError(f"halo: left and right are {left} and {right}, expected numbers of tokens")
    return _run(_Halo, x, _axis(x, dim), left, right, periodic, _lengths("halo", tokens), comm.name)


class _First(Work):
    """Work on a tuple of one tensor."""

    def __init__(self, work):
        self._work = work

    def wait(self):
        return self._work.wait()[0]


def _first(result):
    return _First(result) if isinstance(result, Work) else result[0]


@collective
def redistribute(tensors, source, target, comm, *, dim=1, _run=at_once):
    """Moves tensors of any types from one Layout to another, together. A tensor returns a tensor, a tuple a tuple. A negative
    `dim` counts from the end of each tensor's dimensions."""
    single, several = _several("redistribute", tensors)
    for x in several:
        require_fit("redistribute", source, comm, local=x.shape[_axis(x, dim)])
    require_fit("redistribute", target, comm, tokens=source.tokens)
    moved = _run(_Redistribute, source.key, target.key, dim, comm.name, *several)
    return _first(moved) if single else moved


@collective
def shift(tensors, comm, *, by=1, _run=at_once):
    """The tensors of rank (rank - by) modulo the ranks; sends this rank's to rank + by. All ranks' tensors have equal
    shapes. A tensor returns a tensor, a tuple a tuple. Backward: the shift by -by."""
    single, several = _several("shift", tensors)
    if not torch.compiler.is_compiling():
        by = _shapes.integers("shift: by", (by,), 1)[0]
    moved = _run(_Shift, by, comm.name, *several)
    return _first(moved) if single else moved


@collective
def merge(out, lse, comm, *, tokens=None):
    """(out, lse) of this rank's tokens, from every rank's attention of all tokens to its part of the keys.

        out     [batch][tokens of all][heads][dim], normalized over the rank's keys
        lse     float32 [batch][heads][tokens of all]; -inf: this rank has no key for the row
        tokens  of every rank, if they are not equal

    lse' = log sum exp(lse) and out' = sum exp(lse - lse') out over the ranks, in fp32. Both have gradients.
    """
    _require_heads("merge", out)
    tokens = _lengths("merge", tokens)
    if without_gradient((out, lse)):
        return _ops.merge(out, lse, tokens, comm.name)
    return _Merge.apply(out, lse, tokens, comm.name)


start_to_heads, start_to_sequence = starting(to_heads), starting(to_sequence)
start_all_gather, start_reduce_scatter = starting(all_gather), starting(reduce_scatter)
start_halo, start_redistribute, start_shift = starting(halo), starting(redistribute), starting(shift)


@collective
def token_mean(losses, mask, comm):
    """This rank's share of the mean loss over all tokens of all ranks: the shares sum to the mean, and so do their
    gradients, so parameters' gradients are summed (not averaged) over the ranks of `comm`.

    losses  of this rank's tokens, any shape
    mask    the shape of losses: which of them count, or their weights; None: all
    """
    if mask is not None and mask.shape != losses.shape:
        raise ValueError(f"token_mean: mask has the shape {tuple(mask.shape)}, expected {tuple(losses.shape)}, the shape of losses")
    kind = torch.promote_types(losses.dtype, torch.float32)  # sums of 16 bits would round, and overflow
    mask = torch.ones_like(losses, dtype=kind) if mask is None else mask.to(kind)
    count = _ops.all_gather(mask.sum(dtype=torch.float32).reshape(1).detach(), 0, [], comm.name).sum()
    # Losses that do not count may have any value, including NaN.
    return (losses.masked_fill(mask == 0, 0) * mask).sum() / torch.where(count == 0, 1, count)
