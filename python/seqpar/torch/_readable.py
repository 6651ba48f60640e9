"""Tensors in memory that attention kernels of PyTorch and FlashAttention read: the elements of a head in a row, on GPUs in
units of 16 bytes. Not all of these kernels check that: some then read other elements."""

import torch

from ._define import define


def readable(x):
    """x, or a dense copy where kernels cannot read it."""
    fits = x.stride(-1) == 1
    if x.is_cuda:
        fits = fits and x.data_ptr() % 16 == 0 and all(stride * x.element_size() % 16 == 0 for stride in x.stride()[:-1])
    return x if fits else x.clone(memory_format=torch.contiguous_format)


# An operator, because compilers remove a clone() of dense tensors.
_copied = define("copied(Tensor x) -> Tensor", lambda x: (torch.empty_like(x, memory_format=torch.contiguous_format),),
                 lambda made, x: made[0].copy_(x))


def _in_graph(x):
    """readable(); a copy if a graph is compiled, which knows no addresses."""
    if torch.compiler.is_compiling():
        return _copied(x) if x.is_cuda else x
    return readable(x)


class ReadableInput(torch.autograd.Function):
    """The caller's tensor, as a kernel reads it."""

    @staticmethod
    def forward(ctx, x):
        found = _in_graph(x)
        return x.view_as(x) if found is x else found

    @staticmethod
    def backward(ctx, grad):
        return grad


class ReadableGradient(torch.autograd.Function):
    """A kernel's output, with a gradient as the kernel reads it."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return _in_graph(grad)
