"""The short convolution before layers of linear attention, over a sharded sequence."""

import ctypes

import torch

from .. import _abi
from ._agreement import agree_once
from ._comm import call, find
from ._define import autocasted, data_type, define, require_place
from ._first_order import first_order
from ._layout import bounds_of, in_order, require_fit
from ._refusals import collective


def _plan(comm, x, weight, bias, silu, tokens, bounds):
    require_place("short_conv", comm, x, weight, bias)
    batch, local, channels = x.shape
    lengths = tuple(tokens) or (local,) * comm.size

    def make():
        agree_once(comm, "short_conv", batch=batch, channels=channels, width=weight.shape[1], tokens=lengths, cu_seqlens=tuple(bounds),
                   silu=silu, dtype=x.dtype, weight_dtype=weight.dtype)
        desc = _abi.ShortConvDesc(batch=batch, channels=channels, width=weight.shape[1], silu=int(silu),
                                  dataType=data_type("short_conv", x), weightType=data_type("short_conv", weight))
        desc.lengths, desc.bounds = _abi.int64s(lengths), _abi.int64s(bounds)
        desc.tokensOfRanks = ctypes.addressof(desc.lengths)
        if bounds:
            desc.sequences, desc.cuSeqlens = len(bounds) - 1, ctypes.addressof(desc.bounds)
        handle = ctypes.c_void_p()
        comm.next_call()
        _abi.check_attn(_abi.attn_lib().seqparShortConvCreate(ctypes.byref(handle), ctypes.byref(desc), comm.handle))
        return handle

    return comm.plan(("short_conv", batch, channels, lengths, tuple(bounds), tuple(weight.shape), silu, x.dtype, weight.dtype),
                     make, lambda plan: _abi.check_attn(_abi.attn_lib().seqparShortConvDestroy(plan)))


def _pointer(x):
    return None if x is None else x.data_ptr()


def _forward_outputs(x, weight, bias, silu, tokens, bounds, name):
    return (torch.empty_like(x, memory_format=torch.contiguous_format),)


def _forward_launch(made, x, weight, bias, silu, tokens, bounds, name):
    comm = find(name)
    x, weight, bias = (None if t is None else t.contiguous() for t in (x, weight, bias))
    plan = _plan(comm, x, weight, bias, silu, tokens, bounds)
    comm.next_call()
    call(_abi.check_attn, _abi.attn_lib().seqparShortConvForward(
        plan, x.data_ptr(), weight.data_ptr(), _pointer(bias), made[0].data_ptr(), comm.stream()))


def _backward_outputs(grad, x, weight, bias, silu, tokens, bounds, name):
    channels, width = weight.shape
    return (torch.empty_like(x, memory_format=torch.contiguous_format),
            x.new_empty(channels, width, dtype=torch.float32), x.new_empty(channels, dtype=torch.float32))


def _backward_launch(made, grad, x, weight, bias, silu, tokens, bounds, name):
    comm = find(name)
    grad, x, weight, bias = (None if t is None else t.contiguous() for t in (grad, x, weight, bias))
    plan = _plan(comm, x, weight, bias, silu, tokens, bounds)
    arguments = _abi.ShortConvBackwardArgs(x=x.data_ptr(), weight=weight.data_ptr(), bias=_pointer(bias), dy=grad.data_ptr(),
                                           dx=made[0].data_ptr(), dWeight=made[1].data_ptr(), dBias=made[2].data_ptr())
    comm.next_call()
    call(_abi.check_attn, _abi.attn_lib().seqparShortConvBackward(plan, ctypes.byref(arguments), comm.stream()))


_forward = define("short_conv(Tensor x, Tensor weight, Tensor? bias, bool silu, int[] tokens, int[] cu_seqlens, str comm) -> "
                  "Tensor", _forward_outputs, _forward_launch)
_backward = define("short_conv_backward(Tensor grad, Tensor x, Tensor weight, Tensor? bias, bool silu, int[] tokens, "
                   "int[] cu_seqlens, str comm) -> (Tensor, Tensor, Tensor)", _backward_outputs, _backward_launch)


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, *rest):
        ctx.save_for_backward(x, weight, bias)
        ctx.rest = rest
        return _forward(x, weight, bias, *rest)

    @staticmethod
    @first_order
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        dx, d_weight, d_bias = _backward(grad, x, weight, bias, *ctx.rest)
        return (dx, d_weight.to(weight.dtype), None if bias is None else d_bias.to(bias.dtype), None, None, None, None)


@collective
def short_conv(x, weight, comm, *, bias=None, activation=None, cu_seqlens=None, layout=None):
    """A causal convolution over tokens, for each channel separately (Mamba, GLA, DeltaNet), of a sequence in contiguous
    shards on the ranks. Differentiable; gradients of weight and bias are this rank's share.

        x           [batch][local tokens][channels]
        weight      [channels][width], or [channels][1][width] as in torch.nn.Conv1d; the last element multiplies the
                    token itself
        bias        [channels]
        activation  None, "silu" or "swish"
        cu_seqlens  bounds of packed sequences in the whole, batch 1: tuple of ints. Tokens do not see other sequences
        layout      a contiguous Layout; None: shards of equal length
    """
    weight = weight.squeeze(1) if weight.dim() == 3 else weight
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[0] != x.shape[2]:
        raise ValueError(f"short_conv: got x {tuple(x.shape)} and weight {tuple(weight.shape)}, expected [batch][tokens]"
                         "[channels] and [channels][width]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"short_conv: bias has the shape {tuple(bias.shape)}, expected {tuple(weight.shape[:1])}")
    if bias is not None and bias.dtype != weight.dtype:
        raise TypeError(f"short_conv: bias is {bias.dtype}, expected {weight.dtype} as weight is")
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"short_conv: activation is {activation!r}, expected None, 'silu' or 'swish'")
    if layout is not None:
        require_fit("short_conv: layout", layout, comm)
        if layout.kind != "contiguous":
            raise ValueError(f"short_conv: layout.kind is {layout.kind!r}, expected 'contiguous'")
        if not in_order(layout):
            raise ValueError(f"short_conv: layout.cu_seqlens is {layout.cu_seqlens}, expected None: cu_seqlens of short_conv()")
        require_fit("short_conv: layout", layout, comm, local=x.shape[1])
    x, weight, bias = autocasted(x, weight, bias)
    lengths = [] if layout is None else list(layout.lengths)  # symbolic lengths would be constants of a graph
    bounds, silu = list(bounds_of(cu_seqlens) or ()), activation is not None
    return _ShortConv.apply(x, weight, bias, silu, lengths, bounds, comm.name)
