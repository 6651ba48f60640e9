"""Tensors that go from rank to rank while the ranks compute."""

import ctypes

import torch

from .. import _abi
from ._collectives import start_shift
from ._comm import call
from ._define import require_place


def ring(tensors, comm, *, reverse=False):
    """Yields (source rank, tensors) for every rank's tensors, one's own first: Ring Attention's loop (arXiv 2310.01889).

        for source, (k, v) in sp.ring((k, v), comm):
            out, lse = attend_to(k, v, source)          # beside it the next tensors come

    All ranks' tensors have the same shapes, and all ranks go through the whole loop. Gradients of all that is computed
    with the tensors travel back the same way in the backward pass, and are added up on the way. reverse: tensors go to
    rank - 1 instead of rank + 1.
    """
    single, by = isinstance(tensors, torch.Tensor), -1 if reverse else 1
    current = (tensors,) if single else tuple(tensors)
    for step in range(comm.size):
        work = start_shift(current, comm, by=by) if step + 1 < comm.size else None
        yield (comm.rank - by * step) % comm.size, current[0] if single else current
        if work is not None:
            current = work.wait()


class _Memory:
    """Memory of the library as torch can see it on a GPU."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}


class Ring:
    """A ring with buffers of its own, for forward passes and for kernels of one's own: seqparRingCreate(). On a GPU large
    tensors go by copy engines, which take no SM from the computation. Nothing here has gradients; see ring().

        with sp.Ring((k, v), comm) as ring:              # tensors like these; collective
            for own, x in zip(ring.tensors, (k, v)):
                own.copy_(x)
            for step in range(comm.size):
                if step + 1 < comm.size:
                    ring.post()                          # the transfer begins
                compute(ring.source, *ring.tensors)      # and runs beside this
                if step + 1 < comm.size:
                    ring.wait()                          # ring.tensors are the next ones
            ring.reset()                                 # another round: own tensors are the current ones

    like     tensors whose shapes and types travel, the same on all ranks of the ring
    ranks    ranks of the communicator in the order of the ring; None: all
    inner    double ring: ranks of a window, see seqparRingParams_t
    reverse  tensors travel to the rank before
    keep     own tensors are not overwritten by what arrives
    """

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
        comm.run("seqparRingCreate", ctypes.byref(self._handle), ctypes.byref(params), comm.handle)

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
        """The rank whose tensors the current ones were."""
        return self.query()["source"]

    def query(self):
        """What seqparRingQuery() tells, as a dictionary: what moves the data, why, and the state of the round."""
        info = _abi.RingInfo()
        self._run("seqparRingQuery", ctypes.byref(info))
        values = {name: getattr(info, name) for name, *_ in info._fields_[3:]}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    def post(self):
        """Begins to send the current tensors, as the current stream will have written them, and to receive the next."""
        self._run("seqparRingPost", self._stream())

    def wait(self):
        """The next tensors are the current ones, for later work of the current stream."""
        self._run("seqparRingWait", self._stream())

    def reset(self):
        """Begins another round: the current tensors are one's own again."""
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
