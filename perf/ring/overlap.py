"""Rings beside attention on GPUs: PyTorch computes, seqpar or PyTorch moves tensors to the next rank meanwhile.

    SEQPAR_RING_ENGINE=copy SEQPAR_LIBRARY=.../libseqpar.so.0 torchrun --nproc_per_node 2 perf/ring/overlap.py

A step is an attention forward (cuDNN, bf16, 32 heads of 128) and a shift, posted before it and waited for after it.
Times are of one step, of the slowest rank, the median of several loops. The length of the sequence is chosen so that
attention takes at least as long as the shift.
"""

import argparse
import ctypes
import pathlib
import statistics
import sys

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "seqpar"))
import _abi  # noqa: E402

STEPS = 20
MIB = 1 << 20


class RingParams(_abi.Versioned):
    _fields_ = _abi._versioned(
        ("direction", ctypes.c_int), ("ranks", ctypes.c_void_p), ("nranks", ctypes.c_int), ("inner", ctypes.c_int),
        ("unchanged", ctypes.c_int), ("keepHome", ctypes.c_int), ("steps", ctypes.c_int), ("tensors", ctypes.c_int),
        ("bytes", ctypes.c_void_p), ("uneven", ctypes.c_int), ("home", ctypes.c_void_p), ("scratch", ctypes.c_void_p))


class RingInfo(_abi.Versioned):
    _fields_ = _abi._versioned(
        ("nranks", ctypes.c_int), ("place", ctypes.c_int), ("steps", ctypes.c_int), ("step", ctypes.c_int),
        ("posted", ctypes.c_int), ("source", ctypes.c_int), ("engine", ctypes.c_char * 64))


class Ring:
    """A ring of one tensor: in memory of its own, or, for the engine of kernels, in the caller's."""

    def __init__(self, comm, ranks, size, own):
        self.comm, self.ranks, self.step = comm, ranks, 0
        self.memory = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(0 if own else 2)]
        pointers = [(ctypes.c_void_p * 1)(memory.data_ptr()) for memory in self.memory]
        params = RingParams(unchanged=1, steps=ranks, tensors=1)
        sizes = (ctypes.c_size_t * 1)(size)
        params.bytes = ctypes.cast(sizes, ctypes.c_void_p)
        if not own:
            params.home, params.scratch = (ctypes.cast(pointer, ctypes.c_void_p) for pointer in pointers)
        self.ring = ctypes.c_void_p()
        _abi.check(_abi.lib.seqparRingOpen(ctypes.byref(self.ring), ctypes.byref(params), comm), comm)
        info = RingInfo()
        _abi.check(_abi.lib.seqparRingQuery(self.ring, ctypes.byref(info)), comm)
        self.engine = info.engine.decode()
        self.stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def post(self):
        if self.step == self.ranks:
            _abi.check(_abi.lib.seqparRingReset(self.ring), self.comm)
            self.step = 0
        _abi.check(_abi.lib.seqparRingPost(self.ring, self.stream), self.comm)

    def wait(self):
        _abi.check(_abi.lib.seqparRingWait(self.ring, self.stream), self.comm)
        self.step += 1

    def close(self):
        torch.cuda.synchronize()
        _abi.check(_abi.lib.seqparRingClose(self.ring), self.comm)


class TorchShift:
    engine = "PyTorch batch_isend_irecv"

    def __init__(self, rank, ranks, size):
        self.send, self.receive = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        self.to, self.source = (rank + 1) % ranks, (rank - 1) % ranks

    def post(self):
        self.requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, self.send, self.to),
                                                dist.P2POp(dist.irecv, self.receive, self.source)])

    def wait(self):
        for request in self.requests:
            request.wait()

    def close(self):
        torch.cuda.synchronize()


def measure(step, loops):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for loop in range(loops + 2):
        dist.barrier()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(STEPS):
            step()
        end.record()
        end.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end)], device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if loop >= 2:
            times.append(slowest.item() * 1000 / STEPS)
    return statistics.median(times)


def attention(length):
    query, key, value = (torch.randn(1, 32, length, 128, dtype=torch.bfloat16, device="cuda") for _ in range(3))

    return lambda: scaled_dot_product_attention(query, key, value)


def shift_step(engine):
    def step():
        engine.post()
        engine.wait()

    return step


def both_step(engine, compute):
    def step():
        engine.post()
        compute()
        engine.wait()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=15)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 64], help="MiB a step")
    parser.add_argument("--least", type=int, default=64, help="MiB from which on attention is computed beside")
    options = parser.parse_args()
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    comm = ctypes.c_void_p()
    config = _abi.Config(timeoutMs=_abi.UNDEFINED, transport=_abi.UNDEFINED, device=rank,
                         checkArguments=_abi.UNDEFINED)
    _abi.check(_abi.lib.seqparCommInitEnv(ctypes.byref(comm), ctypes.byref(config)))

    def report(what, us, note=""):
        if rank == 0:
            print(f"{what:58} {us:9.1f} us {note}", flush=True)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for mib in options.sizes:
            size = mib * MIB
            engines = [Ring(comm, ranks, size, True), Ring(comm, ranks, size, False), TorchShift(rank, ranks, size)]
            alone = [measure(shift_step(engine), options.loops) for engine in engines]
            for engine, us in zip(engines, alone):
                report(f"{mib} MiB, {engine.engine}", us, f"{size / us / 1000:6.1f} GB/s")
            if mib < options.least:
                for engine in engines:
                    engine.close()
                continue
            length = 256
            compute = attention(length)
            while measure(compute, 3) < alone[0]:
                length += 256
                compute = attention(length)
            for _ in range(2):
                before = measure(compute, options.loops)
                report(f"{mib} MiB, attention of {length} tokens alone", before)
                for engine in engines:
                    us = measure(both_step(engine, compute), options.loops)
                    report(f"{mib} MiB, beside it {engine.engine}", us, f"{100 * (us / before - 1):+6.1f} %")
            for engine in engines:
                engine.close()
    _abi.check(_abi.lib.seqparCommDestroy(comm))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
