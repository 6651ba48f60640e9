"""Tensors in memory that attention kernels of PyTorch and FlashAttention read: the elements of a head in a row, on GPUs in
units of 16 bytes. Not all of these kernels check that: some then read other elements."""

import torch

from ._define import define


def _fits(x):
    """Whether kernels can read x."""
    if x.stride(-1) != 1 or not x.is_cuda:
        return x.stride(-1) == 1
    return x.data_ptr() % 16 == 0 and all(stride * x.element_size() % 16 == 0 for stride in x.stride()[:-1])


def readable(x):
    """x, or a dense copy where kernels cannot read it."""
    return x if _fits(x) else x.clone(memory_format=torch.contiguous_format)


# An operator, because compilers remove a clone() of dense tensors.
_copied = define("copied(Tensor x, SymInt[] strides) -> Tensor",
                 lambda x, strides: (torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device),),
                 lambda made, x, strides: made[0].copy_(x))


def _rows(shape):
    """The strides of a tensor without gaps."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = step * size
    return strides


def _in_graph(x):
    """readable(); a copy if a graph is compiled, which knows no addresses."""
    if torch.compiler.is_compiling():
        return _copied(x, _rows(x.shape)) if x.is_cuda else x
    return readable(x)


class Copied(torch.autograd.Function):
    """A dense copy that compilers keep."""

    @staticmethod
    def forward(ctx, x):
        return _copied(x, _rows(x.shape))

    @staticmethod
    def backward(ctx, grad):
        return grad


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
    """A kernel's output, with a gradient as the kernel reads it: in the strides of the output. PyTorch's cuDNN backend reads
    a gradient of other strides wrongly when it uses a cached graph, without an error."""

    @staticmethod
    def forward(ctx, x):
        overlaps = any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape))
        ctx.strides = _rows(x.shape) if overlaps else x.stride()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if torch.compiler.is_compiling():
            return _copied(grad, ctx.strides) if grad.is_cuda else grad
        same = all(a == b or size == 1 for a, b, size in zip(grad.stride(), ctx.strides, grad.shape))
        return grad if same and _fits(grad) else _copied(grad, ctx.strides)
