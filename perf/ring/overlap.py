"""Rings overlapped with attention on GPUs: PyTorch computes while seqpar or PyTorch moves tensors to the next rank.

    SEQPAR_LIBRARY=.../libseqpar.so.0.2 torchrun --nproc_per_node 2 perf/ring/overlap.py

A step is an attention forward (cuDNN, bf16, 32 heads of 128) and a shift, posted before it and waited for after it.
Attention takes about --times us, and a shift moves as many bytes as a copy can in that time. In addition to the ring's
engines and PyTorch, two controls are measured: only the events that order a shift with the computation, and a bare copy
to the next GPU between these events, without synchronization. Times are of one step, of the slowest rank, the median of
several loops, which take turns; the GPU is delayed while the host enqueues a loop.
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

MOST_STEPS, LEAST_STEPS = 80, 20
MIB = 1 << 20
HOLD_CYCLES = 6_000_000
RING_US = 12  # maximum overhead of a ring's step beyond its copy


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
    """A ring of one tensor: in library memory or, for the kernel engine, in the caller's."""

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
        _abi.check(_abi.lib.seqparRingCreate(ctypes.byref(self.ring), ctypes.byref(params), comm), comm)
        info = RingInfo()
        _abi.check(_abi.lib.seqparRingQuery(self.ring, ctypes.byref(info)), comm)
        self.name = "ring: " + info.engine.decode()
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
        _abi.check(_abi.lib.seqparRingDestroy(self.ring), self.comm)


class TorchShift:
    name = "PyTorch batch_isend_irecv"

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


class Events:
    """The events that order a transfer with the computation, without a transfer."""

    name = "control: events alone"

    def __init__(self):
        self.stream = torch.cuda.Stream(priority=-1)
        self.before, self.after = torch.cuda.Event(), torch.cuda.Event()

    def post(self):
        self.before.record()
        self.stream.wait_event(self.before)
        self.transfer()
        self.after.record(self.stream)

    def transfer(self):
        pass

    def wait(self):
        torch.cuda.current_stream().wait_event(self.after)

    def close(self):
        torch.cuda.synchronize()


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class BareCopy(Events):
    """A copy between this GPU and the next or previous one, without synchronization."""

    driver = ctypes.CDLL("libcuda.so.1")

    def __init__(self, rank, ranks, size, pull):
        super().__init__()
        self.name = "control: bare copy, " + ("read" if pull else "written")
        self.size = size
        self.own = [self.allocate(), self.allocate()]
        exported = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(exported), self.own[0])
        mine = torch.tensor(list(exported.bytes), dtype=torch.uint8, device="cuda")
        every = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(every, mine)
        handle = IpcHandle((ctypes.c_ubyte * 64)(*every[(rank + (-1 if pull else 1)) % ranks].tolist()))
        self.theirs = ctypes.c_uint64()
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(self.theirs), handle, 1)
        self.source, self.target = (self.theirs, self.own[1]) if pull else (self.own[1], self.theirs)

    def call(self, name, *arguments):
        result = getattr(self.driver, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: error {result} of the driver")

    def allocate(self):
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(self.size))
        return memory

    def transfer(self):
        self.call("cuMemcpyDtoDAsync_v2", self.target, self.source, ctypes.c_size_t(self.size),
                  ctypes.c_void_p(self.stream.cuda_stream))

    def close(self):
        torch.cuda.synchronize()
        self.call("cuIpcCloseMemHandle", self.theirs)
        dist.barrier()
        torch.cuda.synchronize()
        for memory in self.own:
            self.call("cuMemFree_v2", memory)


def time_once(step, hold=True, steps=LEAST_STEPS):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    torch.cuda.synchronize()
    if hold:
        torch.cuda._sleep(HOLD_CYCLES)
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    slowest = torch.tensor([begin.elapsed_time(end)], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item() * 1000 / steps


def measure(step, loops, hold=True):
    """Median us of a step."""
    return statistics.median([time_once(step, hold) for _ in range(loops + 2)][2:])


def compare(compute, both, loops, steps):
    """Median us of a step of computation alone, of one overlapped with a shift, and median ratio of the pairs."""
    times = [[], []]
    for loop in range(loops + 2):
        for which in (0, 1) if loop % 2 == 0 else (1, 0):
            times[which].append(time_once((compute, both)[which], True, steps))
    alone, beside = (found[2:] for found in times)
    ratios = [one / other for one, other in zip(beside, alone)]
    return statistics.median(alone), statistics.median(beside), statistics.median(ratios)


def attention(length):
    query, key, value = (torch.randn(1, 32, length, 128, dtype=torch.bfloat16, device="cuda") for _ in range(3))

    return lambda: scaled_dot_product_attention(query, key, value)


def attention_for(us):
    """Attention with about the given time."""
    length = 256
    while True:
        compute = attention(length)
        took = measure(compute, 3)
        if took >= us:
            return length, compute
        length = max(length + 128, int(length * min(2, (us / took) ** 0.5)) // 128 * 128)


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
    parser.add_argument("--loops", type=int, default=11)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 8, 64], help="MiB per step, without computation")
    parser.add_argument("--times", type=int, nargs="*", default=[250, 1000, 4000], help="us of attention")
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
            print(f"{what:62} {us:9.1f} us {note}", flush=True)

    def engines_for(size):
        return [Ring(comm, ranks, size, True), Ring(comm, ranks, size, False), TorchShift(rank, ranks, size),
                BareCopy(rank, ranks, size, False), BareCopy(rank, ranks, size, True)]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for mib in options.sizes:
            for engine in engines_for(mib * MIB):
                held, eager = (measure(shift_step(engine), options.loops, hold) for hold in (True, False))
                report(f"{mib} MiB, {engine.name}", held, f"{mib * MIB / held / 1000:6.1f} GB/s; "
                       f"called eagerly {eager:7.1f} us {mib * MIB / eager / 1000:6.1f} GB/s")
                engine.close()
        for aim in options.times:
            length, compute = attention_for(aim)
            attended = measure(compute, 5)
            probe = BareCopy(rank, ranks, 64 * MIB, False)
            mib = int(64 * (attended - RING_US) / measure(shift_step(probe), 5))
            probe.close()
            steps = max(LEAST_STEPS, min(MOST_STEPS, int(20000 / attended)))
            report(f"attention of {length} tokens", attended)
            for engine in [Events()] + engines_for(mib * MIB):
                alone, beside, ratio = compare(compute, both_step(engine, compute), options.loops, steps)
                shift = measure(shift_step(engine), 3)
                report(f"  {mib} MiB concurrent with it, {engine.name}", beside,
                       f"instead of {alone:7.1f}: {100 * (ratio - 1):+6.1f} %; the shift alone {shift:7.1f}")
                engine.close()
    _abi.check(_abi.lib.seqparCommDestroy(comm))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
