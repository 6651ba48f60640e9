"""Merges of partial attention over a sharded KV cache (seqpar/lse.h), and a decode step."""

import ctypes
import math

import torch

from .. import _abi
from . import _ops
from ._comm import find
from ._define import data_type, define, require_place
from ._refusals import collective

_BASES = {"e": 1.0, 2: math.log(2.0)}


def _launch(call, made, out, lse, row_count, name):
    comm = find(name)
    out, lse = out.contiguous(), lse.contiguous()
    require_place(call, comm, out, lse, row_count)
    rows, heads, dim = out.shape
    params = _abi.LseParams(dataType=data_type(call, out), rows=rows, heads=heads, headDim=dim,
                            rowCount=None if row_count is None else row_count.data_ptr())
    comm.collective(call, out.data_ptr(), lse.data_ptr(), made[0].data_ptr() or None, made[1].data_ptr() or None,
                    ctypes.byref(params), comm.handle, comm.stream())


def _all_outputs(out, lse, row_count, name):
    return torch.empty_like(out, memory_format=torch.contiguous_format), torch.empty_like(lse, memory_format=torch.contiguous_format)


def _all_launch(made, out, lse, row_count, name):
    _launch("seqparAllReduceLse", made, out, lse, row_count, name)


def _heads_outputs(out, lse, row_count, name):
    comm = find(name)
    rows, heads, dim = out.shape
    own = _ops.heads_of_member(int(heads), 0, comm.size, comm.rank)[1]
    return out.new_empty(rows, own, dim), lse.new_empty(rows, own)


def _heads_launch(made, out, lse, row_count, name):
    _launch("seqparReduceScatterLseByHeads", made, out, lse, row_count, name)


_all = define("all_reduce_lse(Tensor out, Tensor lse, Tensor? row_count, str comm) -> (Tensor, Tensor)", _all_outputs, _all_launch)
_by_heads = define("reduce_scatter_lse(Tensor out, Tensor lse, Tensor? row_count, str comm) -> (Tensor, Tensor)",
                   _heads_outputs, _heads_launch)


def _merged(what, operator, out, lse, comm, row_count, base):
    if not isinstance(out, torch.Tensor) or out.dim() < 3 or out.is_floating_point() is False:
        raise ValueError(f"{what}: out is {getattr(out, 'dtype', type(out).__name__)} {list(getattr(out, 'shape', ()))}, expected "
                         "[...][heads][dim] with at least three dimensions")
    if not isinstance(lse, torch.Tensor) or lse.dtype != torch.float32 or lse.shape != out.shape[:-1]:
        raise ValueError(f"{what}: lse is {getattr(lse, 'dtype', type(lse).__name__)} {list(getattr(lse, 'shape', ()))}, expected "
                         f"float32 {list(out.shape[:-1])}: a number for each query and head (FlashAttention returns [batch][heads][queries]: "
                         "transpose it)")
    if base not in _BASES:
        raise ValueError(f"{what}: base is {base!r}, expected 'e' or 2, the base of the logarithms in lse")
    if torch.is_grad_enabled() and (out.requires_grad or lse.requires_grad):
        raise RuntimeError(f"{what} has no derivative: use it inside torch.no_grad(), or merge(), which has one")
    if row_count is not None and (row_count.dtype != torch.int32 or row_count.numel() != 1):
        raise ValueError(f"{what}: row_count is {row_count.dtype} {list(row_count.shape)}, expected one int32: the queries in use")
    factor = _BASES[base]
    heads, dim = out.shape[-2:]
    flat = operator(out.reshape(-1, heads, dim), (lse * factor if factor != 1 else lse).reshape(-1, heads), row_count, comm.name)
    own = flat[0].shape[1]
    merged, total = flat[0].reshape(*out.shape[:-2], own, dim), flat[1].reshape(*out.shape[:-2], own)
    return merged, total / factor if factor != 1 else total


@collective
def all_reduce_lse(out, lse, comm, *, row_count=None, base="e"):
    """(out, lse) over the keys of all ranks, on all ranks, from every rank's attention of the same queries to its keys.

        out        [...][heads][dim], normalized over the rank's keys
        lse        float32 [...][heads]; -inf: this rank has no key for the row, and `out` is not read
        row_count  int32 tensor of one element in the communicator's memory, read when the work runs: the queries in use (a
                   captured graph then serves batches up to the capacity). Later rows are undefined. None: all
        base       of the logarithms: "e" (FlashAttention) or 2 (FlashInfer); the result has the same

    The merge is computed in fp32 in the order of the ranks: all ranks get identical bits. Without a derivative.
    """
    return _merged("all_reduce_lse", _all, out, lse, comm, row_count, base)


@collective
def reduce_scatter_lse(out, lse, comm, *, row_count=None, base="e"):
    """all_reduce_lse() of this rank's heads: [...][heads of the rank][dim]. The heads are those of to_heads(): consecutive
    runs; the first ranks have one more if they do not divide."""
    return _merged("reduce_scatter_lse", _by_heads, out, lse, comm, row_count, base)


@collective
def decode(q, local_kernel, comm, *, by="all", row_count=None, base="e"):
    """Attention of queries to a KV cache that is distributed over the ranks by tokens.

        q             by="all": [...][heads][dim], the same on all ranks, as is the result
                      by="heads": [...][heads of the rank][dim], gathered before the kernel; the result has the rank's heads, as
                      projections that are split by heads need. The heads must divide by the ranks
        local_kernel  local_kernel(q) -> (out, lse) for all heads and this rank's keys, shapes as in all_reduce_lse(): for
                      example local_attention() of a dense cache, or a kernel of FlashInfer or FlashAttention with its block tables
        row_count, base  all_reduce_lse()'s

    Returns out. Rows without a key on any rank are 0. Collective: all ranks call the kernel, also those without keys, which
    return lse -inf.
    """
    if by not in ("all", "heads"):
        raise ValueError(f"decode: by is {by!r}, expected 'all' or 'heads'")
    if q.dim() < 3:
        raise ValueError(f"decode: q has the shape {list(q.shape)}, expected [...][heads][dim] with at least three dimensions")
    if not callable(local_kernel):
        raise TypeError(f"decode: local_kernel is a {type(local_kernel).__name__}, expected a function of the queries")
    if by == "heads":
        q = _ops.all_gather(q.detach(), q.dim() - 2, [], comm.name)
    found = local_kernel(q)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        count = f"{len(found)} results" if isinstance(found, (tuple, list)) else f"a {type(found).__name__}"
        raise ValueError(f"decode: local_kernel returned {count}, expected (out, lse)")
    out, lse = found
    if out.shape[:-1] != q.shape[:-1]:
        raise ValueError(f"decode: local_kernel returned out {list(out.shape)} for q {list(q.shape)}, expected {[*q.shape[:-1], 'dim']}")
    merge = _all if by == "all" else _by_heads
    return _merged("decode", merge, out, lse, comm, row_count, base)[0]
