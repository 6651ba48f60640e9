"""The ranks of a call compare their arguments at the first call of its kind, before a rank waits for a message that
does not fit."""

import ctypes
import hashlib

import torch

from .. import _abi
from ._structs import struct

_MARK = b"seqpar\x1a\x93"  # before all compared bytes: on a GPU, bytes of a rank in another call could arrive instead
_MOST = 4096  # maximum number of kinds of calls per communicator; then the cache is cleared, on all ranks


def _gather_bytes(x, lengths, comm):
    """All-gathers bytes, with the given numbers on the ranks; outside of PyTorch's dispatcher. On a host it is complete
    on return, also inside start_...()."""
    out = x.new_zeros(sum(lengths))  # without the mark of an earlier call, if a kernel gives up
    shards = struct(_abi.Shards, tuple(n // 4 for n in lengths), dataType=_abi.TYPES["float32"], outer=1, inner=1)
    stream = comm.stream() if x.is_cuda else None
    comm.collective("seqparAllGather", x.data_ptr(), out.data_ptr(), ctypes.byref(shards), comm.handle, stream)
    return out


def _gathered(comm, data, lengths):
    """The bytes of all ranks."""
    if comm.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the first call with these arguments compares them between the ranks, which a CUDA graph cannot "
                           "capture: run the same call, also with the same requires_grad, once before the capture")
    mine = torch.frombuffer(bytearray(_MARK + data), dtype=torch.uint8).to(comm.device)
    lengths = [len(_MARK) + n for n in lengths]
    together = bytes(_gather_bytes(mine, lengths, comm).cpu().tolist())
    if comm.device.type == "cuda":
        comm.check()
    edges = [sum(lengths[:rank]) for rank in range(comm.size + 1)]
    found = [together[begin:end] for begin, end in zip(edges, edges[1:])]
    for rank, one in enumerate(found):
        if not one.startswith(_MARK):
            raise RuntimeError(f"this rank makes its first call with its arguments and compares them, rank {rank} is in another call. "
                               "Expected equal calls with equal arguments on all ranks")
    return [one[len(_MARK):] for one in found]


def gather_integer(comm, value):
    """An integer of each rank, as a tuple. Waits for a GPU. Collective."""
    return tuple(int.from_bytes(x, "little") for x in _gathered(comm, value.to_bytes(8, "little"), [8] * comm.size))


def _differences(comm, fields):
    """The differences of other ranks from rank 0, as text."""
    text = ";".join(f"{name}={' '.join(str(value).split())}" for name, value in fields.items()).replace("\0", "?").encode()
    text += bytes(-len(text) % 4)
    sizes = [int.from_bytes(x, "little") for x in _gathered(comm, len(text).to_bytes(4, "little"), [4] * comm.size)]
    all_fields = [dict(part.partition("=")[::2] for part in x.rstrip(b"\0").decode().split(";")) for x in _gathered(comm, text, sizes)]
    found = []
    for rank, theirs in enumerate(all_fields):
        for name in {**all_fields[0], **theirs}:
            one, first = (x.get(name, "none") for x in (theirs, all_fields[0]))
            if one != first:
                found.append(f"rank {rank} has {name} {one}, rank 0 has {first}")
    return "; ".join(found)


def require_agreement(comm, what, fields, advice):
    """Raises ValueError on all ranks, with the fields and ranks that differ, unless all fields are equal.
    Collective."""
    if comm.size == 1:
        return
    digest = hashlib.sha256(repr(fields).encode()).digest()[:8]
    if len(set(_gathered(comm, digest, [8] * comm.size))) > 1:
        raise ValueError(f"{what}: {_differences(comm, fields)}. Expected {advice}")


def agree_once(comm, what, **fields):
    """require_agreement() at the first call with these fields; skipped in captured CUDA graphs."""
    key = (what, *fields.values())
    if key in comm.agreed or (comm.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return
    require_agreement(comm, f"{what}: the ranks disagree", fields, "equal arguments, and `tokens` or a `layout` where shards differ in "
                      "length")
    if len(comm.agreed) >= _MOST:
        comm.agreed.clear()
    comm.agreed.add(key)
