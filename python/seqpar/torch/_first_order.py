"""Backward passes without a derivative. PyTorch's once_differentiable leaves their results out of the graph, so a loss that contains
gradients has a wrong gradient, without an error."""

import functools

import torch


class _Last(torch.autograd.Function):
    """The first `count` tensors, as functions of the others that have no derivative."""

    @staticmethod
    def forward(ctx, name, count, *tensors):
        ctx.name = name
        return tensors[:count]

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(f"seqpar.torch: {ctx.name} has first derivatives only, and its gradient is differentiated: compute the "
                                  "gradient without create_graph, or detach() it")


class _Unpacked:
    """The context of an autograd.Function with its saved tensors, whose hooks must run once."""

    def __init__(self, ctx):
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name):
        return getattr(self._ctx, name)


def first_order(function):
    """Decorates backward() of an autograd.Function: differentiating its results raises NotImplementedError."""
    name = function.__qualname__.split(".")[0].lstrip("_")

    @functools.wraps(function)
    def backward(ctx, *grads):
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return function(ctx, *grads)
        ctx = _Unpacked(ctx)
        with torch.no_grad():
            results = function(ctx, *grads)
        results = list(results) if isinstance(results, tuple) else [results]
        sources = [x for x in (*grads, *ctx.saved_tensors) if x is not None and x.requires_grad]
        places = [i for i, x in enumerate(results) if x is not None]
        if sources and places:
            for i, x in zip(places, _Last.apply(name, len(places), *(results[i] for i in places), *sources)):
                results[i] = x
        return tuple(results)

    return backward
