"""Tensors that are passed from rank to rank while the ranks compute."""

import ctypes

import torch

from .. import _abi
from ._collectives import _several, start_shift
from ._comm import call, require
from ._define import require_place
from ._refusals import collective


@collective  # a generator's errors reach no decorator of it
def _one_or_several(tensors, comm):
    require(comm)
    return _several("ring", tensors)


def ring(tensors, comm, *, reverse=False):
    """Yields (source rank, tensors) for every rank's tensors, this rank's first: Ring Attention (arXiv 2310.01889).

        for source, (k, v) in sp.ring((k, v), comm):
            out, lse = attend_to(k, v, source)          # overlaps with the transfer of the next tensors

    All ranks' tensors have equal shapes, and all ranks run the whole loop. In the backward pass, gradients of all
    results computed with the tensors are sent around the ring in the same way and summed on the way. reverse: tensors
    are sent to rank - 1 instead of rank + 1.
    """
    (single, current), by = _one_or_several(tensors, comm), -1 if reverse else 1
    for step in range(comm.size):
        work = start_shift(current, comm, by=by) if step + 1 < comm.size else None
        yield (comm.rank - by * step) % comm.size, current[0] if single else current
        if work is not None:
            current = work.wait()


class _Memory:
    """Library memory in a form that torch can use on a GPU."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}


class Ring:
    """A ring with library buffers, for forward passes and for the caller's kernels: seqparRingCreate(). On a GPU, large
    tensors are moved by copy engines, which take no SM from the computation. Ring has no gradients; see ring().

        with sp.Ring((k, v), comm) as ring:              # tensors like these; collective
            for own, x in zip(ring.tensors, (k, v)):
                own.copy_(x)
            for step in range(comm.size):
                if step + 1 < comm.size:
                    ring.post()                          # starts the transfer
                compute(ring.source, *ring.tensors)      # overlaps with it
                if step + 1 < comm.size:
                    ring.wait()                          # ring.tensors are the next ones
            ring.reset()                                 # another round: this rank's tensors are current again

    like     tensors with the shapes and types to send, equal on all ranks of the ring
    ranks    ranks of the communicator in the order of the ring; None: all
    inner    double ring: ranks of a window, see seqparRingParams_t
    reverse  tensors are sent to the previous rank
    keep     received tensors do not overwrite this rank's tensors
    """

    @collective
    def __init__(self, like, comm, *, ranks=None, inner=0, reverse=False, keep=False):
        require_place("Ring", comm, *like)
        self.comm = comm
        self._like = [(x.shape, x.dtype, x.nbytes) for x in like]
        sizes = (ctypes.c_size_t * len(like))(*(size for _, _, size in self._like))
        members = None if ranks is None else (ctypes.c_int * len(ranks))(*ranks)
        params = _abi.RingParams(
            direction=int(reverse), ranks=None if ranks is None else ctypes.addressof(members),
            nranks=0 if ranks is None else len(ranks), inner=inner, keepHome=int(keep), tensors=len(like),
            bytes=ctypes.addressof(sizes))
        self._handle = ctypes.c_void_p()
        comm.collective("seqparRingCreate", ctypes.byref(self._handle), ctypes.byref(params), comm.handle)

    def _run(self, name, *arguments):
        if not self._handle:
            raise RuntimeError("the ring is closed")
        self.comm.run(name, self._handle, *arguments)

    def _stream(self):
        return None if self.comm.device.type == "cpu" else torch.cuda.current_stream(self.comm.device).cuda_stream

    @property
    def tensors(self):
        """The current tensors, in the ring's memory: valid until the next wait(), and between post() and wait() for
        reading only."""
        found = []
        for index, (shape, kind, size) in enumerate(self._like):
            address = ctypes.c_void_p()
            self._run("seqparRingCurrent", index, ctypes.byref(address), None)
            if not size:
                raw = torch.empty(0, dtype=torch.uint8, device=self.comm.device)
            elif self.comm.device.type == "cpu":
                raw = torch.frombuffer((ctypes.c_uint8 * size).from_address(address.value), dtype=torch.uint8)
            else:
                raw = torch.as_tensor(_Memory(address.value, size), device=self.comm.device)
            found.append(raw.view(kind).view(shape))
        return tuple(found)

    @property
    def source(self):
        """The rank that owns the current tensors."""
        return self.query()["source"]

    def query(self):
        """seqparRingQuery()'s results, as a dictionary: the transport of the data, the reason, and the state of the
        round."""
        info = _abi.RingInfo()
        self._run("seqparRingQuery", ctypes.byref(info))
        values = {name: getattr(info, name) for name, *_ in info._fields_[3:]}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    @collective
    def post(self):
        """Starts to send the current tensors, after the current stream has written them, and to receive the next."""
        self.comm.next_call()
        self._run("seqparRingPost", self._stream())

    def wait(self):
        """Makes the next tensors current, for later work of the current stream."""
        self._run("seqparRingWait", self._stream())

    def reset(self):
        """Starts another round: this rank's tensors are current again."""
        self._run("seqparRingReset")

    def close(self):
        """Collective. Before comm.close()."""
        if self._handle:
            handle, self._handle = self._handle, ctypes.c_void_p()
            call(_abi.check, _abi.lib.seqparRingDestroy(handle))

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()
