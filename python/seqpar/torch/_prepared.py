"""Calls of attention that were prepared by an earlier one like them: only the addresses are new, and nothing else is worked
out again. They go to the library at once, so they serve only where PyTorch's dispatcher has nothing to see."""

import struct

import torch

from .. import _abi
from ._comm import call
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
    """The passes of one plan for tensors of one form. spec: what the operators take for it."""

    def __init__(self, comm, key, spec, forward, backward):
        self.spec, self.name = spec, comm.name
        self._plan, self._uses = comm.plans[key], comm.uses
        self._templates = [_Template(*part) for part in (forward, backward)]
        self._aligned = 15 if comm.device.type == "cuda" else 0  # kernels read 16 bytes at a time
        attn = _abi.attn_lib()
        self._functions = attn.seqparAttnForward, attn.seqparAttnBackward
        self._stream = comm.stream
        self._float = torch.empty(0, dtype=torch.float32, device=comm.device)  # where to make others: a type among the arguments takes longer

    def usable(self, *tensors):
        """Whether the plan has not been forgotten, and these inputs lie where kernels can read them."""
        if self._plan.handle is None:
            return False
        if self._aligned:
            for x in tensors:
                if x.data_ptr() & 15:
                    return False
        return True

    def floats(self, sizes):
        """A new float32 tensor."""
        return self._float.new_empty(sizes)

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


def key_of(family, q, k, v, gate, training, options):
    """What calls have in common that a Prepared serves; None: the dispatcher is to see the call, or it has what cannot be
    compared."""
    if not eager() or isinstance(options.get("cu_seqlens"), torch.Tensor):
        return None
    for x in (q, k, v) if gate is None else (q, k, v, gate):
        if type(x) is not torch.Tensor or x.is_neg():
            return None
    dense = q.is_contiguous() and k.is_contiguous() and v.is_contiguous() and gate is None
    return (family, training, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device,
            None if dense else (q.stride(), k.stride(), v.stride()),
            None if gate is None else (gate.shape, gate.stride(), gate.dtype, gate.device), *options.items())


def find(comm, key):
    """The Prepared of a key, if there is one."""
    try:
        return comm.prepared.get(key)
    except TypeError:  # a list among the options
        return None


def remember(comm, key, prepared):
    """Has find() return it from now on."""
    if len(comm.prepared) >= _MOST:
        comm.prepared.clear()
    try:
        comm.prepared[key] = prepared
    except TypeError:
        pass
