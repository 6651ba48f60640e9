"""Attention calls prepared by an earlier similar call: only the addresses are new, everything else is reused. They call
the library directly, so they serve only calls that PyTorch's dispatcher need not see."""

import struct

import torch

from .. import _abi
from ._comm import Error, _next_call, call, capturing, find as find_comm, require
from ._define import eager, has_tensors, plain
from ._refusals import tell

_MOST = 1024  # maximum number of forms per communicator; then the cache is cleared


class _Template:
    """An argument structure as bytes, with placeholders for the addresses of some fields, in the order of their
    offsets."""

    def __init__(self, structure, fields):
        blob, end, form, self._parts = bytes(structure), 0, "=", []
        for name in fields:
            at = _abi.offset(type(structure), name)  # of a tensor: its address is the first field
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
    """The passes of one plan for tensors of one form. spec: the operators' description. reserve: bytes that the forward
    pass leaves for the backward pass."""

    def __init__(self, comm, key, spec, forward, backward, reserve=0):
        self.spec, self.name, self._comm = spec, comm.name, comm.handle
        self._plan, self._uses, self._on_gpu = comm.plans[key], comm.uses, comm.index >= 0
        self._templates = [_Template(*part) for part in (forward, backward)]
        self.keeps, self.forms = reserve, None
        self._aligned = 15 if reserve or comm.device.type == "cuda" else 0  # kernels read 16 bytes at a time
        attn = _abi.attn_lib()
        self._functions = attn.seqparAttnForward, attn.seqparAttnBackward
        self._stream = comm.stream
        # Prototypes for new tensors: passing a dtype takes longer.
        self._float, self._byte = (torch.empty(0, dtype=x, device=comm.device) for x in (torch.float32, torch.uint8))

    def places(self, *tensors):
        """The addresses of inputs; None if the plan has been freed, or kernels could not read them."""
        found, together = [], 0
        for x in tensors:
            place = x.data_ptr()
            found.append(place)
            together |= place
        return None if together & self._aligned or self._plan.handle is None else found

    def floats(self, sizes):
        """A new float32 tensor."""
        return self._float.new_empty(sizes)

    def reserve(self, places):
        """New memory for the forward pass's reserve; its address is appended to `places`."""
        made = self._byte.new_empty(self.keeps)
        places.append(made.data_ptr())
        return made

    def again(self, inputs, *others):
        """The addresses for the backward pass; None if hooks have replaced a tensor by one of another form, or one has
        no memory."""
        if not (eager() and plain((*inputs, *others)) and tuple(x.stride() for x in inputs) == self.forms and
                all(x.is_contiguous() for x in others)):
            return None
        try:
            return self.places(*inputs, *others)
        except RuntimeError:  # a batch of gradients has no memory: the operator refuses it
            return None

    def gradients(self, *tensors):
        """New tensors for the gradients of these."""
        if all(x.is_contiguous() for x in tensors):
            return [torch.empty_like(x) for x in tensors]
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]

    def run(self, backward, addresses):
        """A pass on the current stream."""
        plan = self._plan
        plan.used = next(self._uses)
        if self._on_gpu and not plan.captured:
            plan.captured = capturing()
        _next_call(self._comm)
        result = self._functions[backward](plan.handle, self._templates[backward](addresses), self._stream())
        if result:
            try:
                call(_abi.check_attn, result)
            except Error as error:
                tell(find_comm(self.name), error)
                raise


def _exact(integers):
    """Whether other integers are equal only if they are the same: 8.0 equals 8, but is refused."""
    return integers is None or (type(integers) is tuple and set(map(type, integers)) == {int})


def find(comm, family, q, k, v, gates, training, options):
    """(the key of calls that share a Prepared, the Prepared if there is one). None instead of both: the dispatcher must
    see the call, or its options cannot be compared."""
    require(comm)
    if not eager() or has_tensors(options) or not _exact(options.get("cu_seqlens")) or not _exact(options.get("window")):
        return None, None
    plain, index, form = torch.Tensor, comm.index, None
    if type(q) is not plain or type(k) is not plain or type(v) is not plain or q.is_neg() or k.is_neg() or v.is_neg():
        return None, None
    if q.get_device() != index or k.get_device() != index or v.get_device() != index:
        return None, None
    if index < 0 and not (q.is_cpu and k.is_cpu and v.is_cpu):
        return None, None
    if gates:
        form = q.stride(), k.stride(), v.stride()
        for gate in gates:
            if type(gate) is not plain or gate.is_neg() or gate.device != comm.device:
                return None, None
            form += gate.shape, gate.dtype, gate.stride()
    elif not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        form = q.stride(), k.stride(), v.stride()
    key = (family, training, form, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, *options, *options.values(),
           *map(type, options.values()))
    try:
        return key, comm.prepared.get(key)
    except TypeError:  # a list among the options
        return None, None


def remember(comm, key, prepared):
    """Stores a Prepared for find()."""
    if len(comm.prepared) >= _MOST:
        comm.prepared.clear()
    comm.prepared[key] = prepared
