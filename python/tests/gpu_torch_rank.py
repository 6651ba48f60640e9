"""One rank of what gpu_torch.py measures: gpu_torch_rank.py boundary | ulysses [TOKENS] | fsdp STEPS. SEQPAR_TEST_DEVICE=cpu
runs it on hosts, to see that it runs."""

import ctypes
import functools
import os
import sys
import time

import torch
import torch.distributed as dist

import seqpar.torch as sp
from seqpar import _abi

DEVICE = os.environ.get("SEQPAR_TEST_DEVICE", "cuda")


def start():
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu") if DEVICE == "cpu" else torch.device("cuda", rank)
    if DEVICE == "cpu":
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    return device


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def least_us(function, calls=200, repeats=12):
    """Microseconds of the CPU a call, the least of several runs: what is enqueued is waited for between them."""
    times = []
    for _ in range(repeats):
        synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    synchronize()
    return min(times)


def boundary():
    """The operators beside the C call with everything prepared."""
    device = start()
    comm = sp.comm()
    x, whole = torch.ones(1, 2, 4, device=device), torch.empty(1, 2 * comm.size, 4, device=device)
    shards = _abi.Shards(dataType=0, outer=1, tokens=2, inner=4)
    arguments = (x.data_ptr(), whole.data_ptr(), ctypes.byref(shards), comm.handle, comm.stream(x))
    rows = [("seqparAllGather by ctypes", lambda: _abi.lib.seqparAllGather(*arguments)),
            ("torch.ops.seqpar.all_gather", lambda: torch.ops.seqpar.all_gather(x, 1, [], comm.name)),
            ("sp.all_gather", lambda: sp.all_gather(x, comm))]
    q = torch.ones(1, 128, 2, 64, device=device, dtype=torch.bfloat16)
    rows.append(("sp.attention, forward", lambda: sp.attention(q, q, q, comm, causal=True, algorithm="ring")))
    rows.append(("sp.attention, forward and backward", lambda: sp.attention(
        q.detach().requires_grad_(), q, q, comm, causal=True, algorithm="ring").sum().backward()))
    for name, function in rows:
        function()
        us = least_us(function)
        if comm.rank == 0:
            print(f"{name:<40} {us:8.2f} us")
    finish()


def in_turn(functions, rounds):
    """{name: ms of a call}, the median of rounds in which all take turns, of the slower rank."""
    times = {name: [] for name in functions}
    for round in range(rounds + 2):
        for name, function in functions.items():
            dist.barrier()
            synchronize()
            begin = time.perf_counter()
            if DEVICE == "cuda":
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                events[0].record()
                function()
                events[1].record()
                synchronize()
                elapsed = events[0].elapsed_time(events[1])
            else:
                function()
                elapsed = (time.perf_counter() - begin) * 1e3
            if round >= 2:
                times[name].append(elapsed)
    medians = torch.tensor([sorted(x)[len(x) // 2] for x in times.values()], device=DEVICE)
    dist.all_reduce(medians, op=dist.ReduceOp.MAX)
    return dict(zip(times, medians.tolist()))


def ulysses(tokens):
    """to_heads + a kernel + to_sequence beside the C operator ULYSSES, causal, 32 heads of 128, bf16, `tokens` on all ranks."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    device = start()
    comm = sp.comm()
    heads = 32 if DEVICE == "cuda" else 4
    random = torch.Generator(device).manual_seed(comm.rank)
    q, k, v, grad = (torch.randn(1, tokens // comm.size, heads, 128, generator=random, device=device).bfloat16()
                     for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()

    def pinned(backend):
        def kernel(*arguments):
            with sdpa_kernel(backend):
                return sp.sdpa(*arguments)

        return kernel

    kernels = {"C operator": None, "its kernel's choice": sp.sdpa}
    if DEVICE == "cuda":
        kernels |= {"cuDNN's": pinned(SDPBackend.CUDNN_ATTENTION), "FlashAttention": pinned(SDPBackend.FLASH_ATTENTION)}

    def call(kernel):
        return sp.attention(q, k, v, comm, causal=True, algorithm="ulysses", kernel=kernel)

    def forward(kernel):
        with torch.no_grad():
            call(kernel)

    for what, one in (("forward", forward), ("forward and backward", lambda kernel: torch.autograd.grad(
            call(kernel), (q, k, v), grad))):
        times = in_turn({name: functools.partial(one, kernel) for name, kernel in kernels.items()}, 15)
        if comm.rank == 0:
            for name, ms in times.items():
                print(f"{what:<22} {name:<22} {ms:9.3f} ms  {ms / times['C operator']:6.3f} of the C operator", flush=True)
    outs = [call(kernel) for kernel in kernels.values()]
    apart = max((x - outs[0]).abs().max().item() for x in outs[1:])
    assert apart <= 2.0 ** -5, apart  # outputs of about 1, each rounded to 8 bits
    finish()


class Block(torch.nn.Module):
    def __init__(self, width, heads, comm):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, bias=False), torch.nn.Linear(width, width, bias=False)
        self.heads, self.comm = heads, comm

    def forward(self, x):
        q, k, v = (y.unflatten(2, (self.heads, -1)) for y in self.qkv(x).chunk(3, 2))
        y = sp.attention(q, k, v, self.comm, causal=True, algorithm="ring")
        y = sp.gla(y, k, v, -torch.ones_like(y, dtype=torch.float32), self.comm)
        h = sp.start_to_heads(y, self.comm).wait()
        y = sp.to_sequence(h, self.comm, heads=self.heads)
        return x + self.out(y.flatten(2))


def fsdp(steps):
    """FSDP2 gathers the next layers' parameters, and scatters the last ones' gradients, on NCCL's streams while seqpar's
    collectives run on the current one. Ranks sleep at random between the steps, so that either may come first."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    device = start()
    mesh = dist.device_mesh.init_device_mesh(DEVICE, (dist.get_world_size(),), mesh_dim_names=("cp",))
    comm = sp.comm(mesh["cp"])
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block(256, 4, comm) for _ in range(4))).to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(1, 128, 256, generator=torch.Generator().manual_seed(comm.rank)).to(device, torch.bfloat16)
    random, begin = torch.Generator().manual_seed(comm.rank), time.perf_counter()
    for step in range(steps):
        if float(torch.rand((), generator=random)) < 0.02:
            time.sleep(float(torch.rand((), generator=random)) * 0.005)
        loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if comm.rank == 0 and (step + 1) % max(1, steps // 10) == 0:
            synchronize()
            print(f"step {step + 1}  loss {loss.item():.5f}  {(time.perf_counter() - begin) / (step + 1) * 1e3:.2f} ms a step",
                  flush=True)
    assert torch.isfinite(loss)
    finish()


def finish():
    synchronize()
    sp.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    number = [int(x) for x in sys.argv[2:3]]
    {"boundary": boundary, "ulysses": ulysses, "fsdp": fsdp}[sys.argv[1]](*(number or [32768] * (sys.argv[1] == "ulysses")))
