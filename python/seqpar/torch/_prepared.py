"""Calls of attention that were prepared by an earlier one like them: only the addresses are new, and nothing else is worked
out again. They go to the library at once, so they serve only where PyTorch's dispatcher has nothing to see."""

import struct

import torch

from .. import _abi
from ._comm import call, require
from ._define import eager

_MOST = 1024  # forms of calls that a communicator knows; then it begins anew


class _Template:
    """An argument structure as bytes, in which the addresses of some fields, in the order of their places, are put."""

    def __init__(self, structure, fields):
        blob, end, form, self._parts = bytes(structure), 0, "=", []
        for name in fields:
            at = getattr(type(structure), name).offset  # of a tensor: its address is the first field
            form += f"{at - end}sQ"
            self._parts += [blob[end:at], 0]
            end = at + 8
        self._parts.append(blob[end:])
        self._pack = struct.Struct(f"{form}{len(blob) - end}s").pack

    def __call__(self, addresses):
        parts = self._parts.copy()
        parts[1::2] = addresses
        return self._pack(*parts)


class Prepared:
    """The passes of one plan for tensors of one form. spec: what the operators take for it. reserve: bytes that the forward
    pass leaves for the backward pass."""

    def __init__(self, comm, key, spec, forward, backward, reserve=0):
        self.spec, self.name = spec, comm.name
        self._plan, self._uses = comm.plans[key], comm.uses
        self._templates = [_Template(*part) for part in (forward, backward)]
        self.keeps = reserve
        self._aligned = 15 if reserve or comm.device.type == "cuda" else 0  # kernels read 16 bytes at a time
        attn = _abi.attn_lib()
        self._functions = attn.seqparAttnForward, attn.seqparAttnBackward
        self._stream = comm.stream
        # Where to make others: a type among the arguments takes longer.
        self._float, self._byte = (torch.empty(0, dtype=x, device=comm.device) for x in (torch.float32, torch.uint8))

    def places(self, *tensors):
        """The addresses of inputs; None where the plan has been forgotten, or kernels could not read them."""
        found, together = [], 0
        for x in tensors:
            place = x.data_ptr()
            found.append(place)
            together |= place
        return None if together & self._aligned or self._plan.handle is None else found

    def floats(self, sizes):
        """A new float32 tensor."""
        return self._float.new_empty(sizes)

    def reserve(self):
        """New memory for what the forward pass leaves."""
        return self._byte.new_empty(self.keeps)

    def gradients(self, *tensors):
        """New tensors for the gradients of these."""
        if all(x.is_contiguous() for x in tensors):
            return [torch.empty_like(x) for x in tensors]
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]

    def run(self, backward, addresses, tensor):
        """A pass on the current stream."""
        self._plan.used = next(self._uses)
        result = self._functions[backward](self._plan.handle, self._templates[backward](addresses), self._stream(tensor))
        if result:
            call(_abi.check_attn, result)


def find(comm, family, q, k, v, gate, training, options):
    """(what calls have in common that a Prepared serves, the Prepared if there is one). None in the place of both: the
    dispatcher is to see the call, or it has what cannot be compared."""
    require(comm)
    if not eager() or isinstance(options.get("cu_seqlens"), torch.Tensor):
        return None, None
    plain, index, form = torch.Tensor, comm.index, None
    if type(q) is not plain or type(k) is not plain or type(v) is not plain or q.is_neg() or k.is_neg() or v.is_neg():
        return None, None
    if q.get_device() != index or k.get_device() != index or v.get_device() != index:
        return None, None
    if index < 0 and not (q.is_cpu and k.is_cpu and v.is_cpu):
        return None, None
    if gate is not None:
        if type(gate) is not plain or gate.is_neg() or gate.device != comm.device:
            return None, None
        form = gate.shape, gate.dtype, gate.stride(), q.stride(), k.stride(), v.stride()
    elif not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        form = q.stride(), k.stride(), v.stride()
    key = (family, training, form, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, *options, *options.values())
    try:
        return key, comm.prepared.get(key)
    except TypeError:  # a list among the options
        return None, None


def remember(comm, key, prepared):
    """Has find() return it from now on."""
    if len(comm.prepared) >= _MOST:
        comm.prepared.clear()
    comm.prepared[key] = prepared
