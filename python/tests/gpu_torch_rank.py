"""One rank of gpu_torch.py: gpu_torch_rank.py ITEM... Each item is one of

    check NAME                  a check of torch_checks
    parity ARGUMENTS            of seqpar.testing.parity
    graph                       a CUDA graph of passes, replayed
    gradients                   of torch_fsdp.py
    decode                      of torch_decode.py, with the times of a step
    boundary                    microseconds of a call
    ulysses TOKENS              milliseconds of a call
    fsdp STEPS SECONDS          until either is reached
    budget CTAS                 milliseconds of work concurrent with a collective of that many thread blocks

and prints its outcome on a line that starts with "====". The first failure ends the ranks: gpu_torch.py starts new ones
for the rest. SEQPAR_TEST_DEVICE=cpu runs it on hosts, to test this script."""

import ctypes
import functools
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist

import seqpar.torch as sp
import torch_checks
import torch_decode
import torch_fsdp
from seqpar import _abi
from seqpar.testing import parity
from seqpar.torch import _attention, _plans

DEVICE = os.environ.get("SEQPAR_TEST_DEVICE", "cuda")


def start():
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu") if DEVICE == "cpu" else torch.device("cuda", rank)
    if DEVICE == "cpu":
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = False  # the definitions' convolutions are compared in fp32
        dist.init_process_group("nccl", device_id=device)
    return device


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def least_us(function, calls=20, repeats=100):
    """CPU microseconds per call, the minimum of several runs: enqueued work is waited for between them, and stays below
    the about a thousand kernels that fill a GPU's queue."""
    times = []
    for _ in range(repeats):
        synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    synchronize()
    return min(times)


def check(comm, seed, name):
    function = next(f for f in torch_checks.CHECKS if f.__name__ == name)
    with comm.device:  # the device of the checks' tensors
        try:
            function(comm, seed)
        except torch_checks.Skip as reason:
            print(f"{name} ... skipped: {reason}", flush=True)


def parity_of(comm, seed, *arguments):
    lines, good = parity.run(parity.parse(["--device", DEVICE, *arguments]), comm, seed)
    if comm.rank == 0:
        print("\n".join(lines), flush=True)
    assert good, "see above"


def graph(comm, seed):
    """Forward and backward passes of operators and exchanges, captured once, reproduce eager results with new
    inputs."""
    random = torch.Generator(comm.device).manual_seed(seed + comm.rank)
    inputs = [torch.randn(1, 128, 4, 64, generator=random, device=comm.device).bfloat16() for _ in range(3)]
    gate = -torch.rand(1, 128, 4, 64, generator=random, device=comm.device)

    def gradient(x):
        o = sp.attention(x, x, x, comm, causal=True, algorithm="ring")
        o = sp.gla(o, o, o, gate, comm)
        o = sp.to_sequence(sp.to_heads(o, comm), comm, heads=4)
        left, _ = sp.halo(o, comm, left=1)
        o = torch.cat((left, o[:, :-1]), 1) * o
        loss = sp.all_gather(o, comm).float().square().sum()
        _, total = sp.all_scan(x[0, :4].float(), decay, comm, flags=[0, 1, 2, 0])
        uneven = sp.attention(torch.cat((x, x, x[:, :, :1]), 2), x[:, :, :3], x[:, :, :3], comm, causal=True, kernel="sdpa")
        mine = sp.shard(sp.unshard(x, zigzag, comm), straight, comm)
        loss = loss + (mine.float() * gate).sum()
        return torch.autograd.grad(loss + total.square().sum() + uneven.float().square().sum(), x)[0]

    decay = gate[0, :4, :, 0].exp()
    zigzag, straight = (sp.Layout(kind, 128 * comm.size, comm.size) for kind in ("zigzag", "contiguous"))
    expected = [gradient(x.requires_grad_()) for x in inputs]
    if DEVICE == "cpu":
        return
    x = inputs[0].detach().clone().requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradient(x)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):  # NCCL's watchdog queries events meanwhile
        found = gradient(x)
    for again, exact in zip(inputs[::-1], expected[::-1]):
        with torch.no_grad():
            x.copy_(again)
        captured.replay()
        synchronize()
        apart = ((found - exact).abs().max() / exact.abs().max()).item()
        assert apart <= 2.0 ** -7, apart  # sums in another order, rounded to 8 bits
    del captured


def decode(comm, seed):
    with torch.no_grad():
        for by in ("all", "heads"):
            torch_decode.replays_with_changing_batches(comm, seed, by)
    if DEVICE == "cpu":
        return
    for name, us in torch_decode.times(comm, in_turn).items():
        if comm.rank == 0:
            print(f"{name:<20} {us:8.2f} us", flush=True)


def gradients(comm, seed):
    torch_fsdp.gradients_of_one_rank(comm.device, seed)


def attention_by_ctypes(q, comm):
    """(forward, forward and backward) of sp.attention()'s plan for (q, q, q), with everything prepared."""
    asked = q.detach().requires_grad_()
    spec = _attention._prepare(asked, q, q, comm, causal=True, algorithm="ring")
    plan, attn = _plans.plan_of(comm, spec, q, q, q), _abi.attn_lib()
    out, lse, _ = _attention._forward_outputs(q, q, q, None, spec, comm.name)
    grads = [torch.empty_like(q) for _ in range(4)]
    tq, tout, tgrad, *td = (_plans.view(x, []) for x in (q, out, *grads))
    forward = _abi.AttnForwardArgs(q=tq, k=tq, v=tq, out=tout, lse=lse.data_ptr())
    backward = _abi.AttnBackwardArgs(q=tq, k=tq, v=tq, out=tout, lse=lse.data_ptr(), dOut=tgrad, dq=td[0], dk=td[1], dv=td[2])
    stream = comm.stream()
    kept = (out, lse, grads)

    def call(both=False, kept=kept):
        assert attn.seqparAttnForward(plan, ctypes.byref(forward), stream) == 0
        if both:
            assert attn.seqparAttnBackward(plan, ctypes.byref(backward), stream) == 0

    return call, functools.partial(call, True)


class Nothing(torch.autograd.Function):
    """PyTorch's overhead of a function of three tensors and its gradients."""

    @staticmethod
    def forward(ctx, q, k, v, made):
        ctx.save_for_backward(q, k, v)
        ctx.made = made
        return made[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return (*ctx.saved_tensors, None)


def boundary(comm, seed):
    """The operators, compared with the C call with everything prepared."""
    device = comm.device
    x, whole = torch.ones(1, 2, 4, device=device), torch.empty(1, 2 * comm.size, 4, device=device)
    shards = _abi.Shards(dataType=0, outer=1, tokens=2, inner=4)
    arguments = (x.data_ptr(), whole.data_ptr(), ctypes.byref(shards), comm.handle, comm.stream())
    leaf = x.detach().requires_grad_()
    rows = [("seqparAllGather by ctypes", lambda: _abi.lib.seqparAllGather(*arguments)),
            ("torch.empty", lambda: x.new_empty((1, 2 * comm.size, 4))),
            ("torch.ops.seqpar.all_gather", lambda: torch.ops.seqpar.all_gather(x, 1, [], comm.name)),
            ("sp.all_gather", lambda: sp.all_gather(x, comm)),
            ("sp.all_gather, of what needs a gradient", lambda: sp.all_gather(leaf, comm))]
    q = torch.ones(1, 128, 2, 64, device=device, dtype=torch.bfloat16)
    k, v, grad = (q.clone() for _ in range(3))
    leaves, decay = [x.detach().requires_grad_() for x in (q, k, v)], -torch.ones_like(q, dtype=torch.float32)
    forward, both = attention_by_ctypes(q, comm)
    rows += [("seqparAttnForward by ctypes", forward),
             ("sp.attention, forward", lambda: sp.attention(q, k, v, comm, causal=True, algorithm="ring")),
             ("seqparAttnForward, Backward by ctypes", both),
             ("an autograd.Function that does nothing", lambda: torch.autograd.grad(
                 Nothing.apply(*leaves, [torch.empty_like(q)]), leaves, grad)),
             ("sp.attention, forward and backward", lambda: torch.autograd.grad(
                 sp.attention(*leaves, comm, causal=True, algorithm="ring"), leaves, grad)),
             ("sp.gla, forward", lambda: sp.gla(q, k, v, decay, comm)),
             *((f"sp.gla, forward and backward, {what}", lambda reserve=reserve: torch.autograd.grad(
                 sp.gla(*leaves, decay, comm, reserve=reserve), leaves, grad))
               for what, reserve in (("reserve", True), ("without", False)))]
    for name, function in rows:
        function()
        us = least_us(function)
        if comm.rank == 0:
            print(f"{name:<40} {us:8.2f} us", flush=True)


def in_turn(functions, rounds):
    """{name: ms per call}, the median of rounds with all functions in turn, on the slower rank."""
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


def ulysses(comm, seed, tokens):
    """to_heads + a kernel + to_sequence, compared with the C operator ULYSSES, causal, 32 heads of 128, bf16, `tokens`
    on all ranks."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    device, tokens = comm.device, int(tokens)
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


def fsdp(comm, seed, steps, limit, width=256, heads=4, tokens=128, layers=2):
    """FSDP2 gathers the next layers' parameters, and scatters the last layers' gradients, on NCCL's streams while
    seqpar's collectives run on the current one. Ranks sleep at random between the steps, to vary which starts first."""
    steps, limit = int(steps), float(limit)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = dist.device_mesh.init_device_mesh(DEVICE, (comm.size,), mesh_dim_names=("cp",))
    torch.manual_seed(seed)
    model = torch.nn.Sequential(*(Block(width, heads, comm) for _ in range(layers))).to(comm.device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    weights = list(model.parameters())
    x = torch.randn(1, tokens, width, generator=torch.Generator().manual_seed(seed + comm.rank)).to(comm.device, torch.bfloat16)
    random, begin, step, going = torch.Generator().manual_seed(seed + comm.rank), time.perf_counter(), 0, True
    report = begin
    while step < steps and going:
        if float(torch.rand((), generator=random)) < 0.05:
            time.sleep(float(torch.rand((), generator=random)) * 0.005)
        loss = model(x).float().square().mean()
        loss.backward()
        with torch.no_grad():  # SGD of this rank's shards, without DTensor's overhead
            torch._foreach_add_([w.to_local() for w in weights], [w.grad.to_local() for w in weights], alpha=-1e-4)
        for w in weights:
            w.grad = None
        step += 1
        if step % 20 == 0 or step == steps:
            elapsed = torch.tensor(time.perf_counter() - begin, device=comm.device)
            dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
            going = elapsed.item() < limit
            if comm.rank == 0 and (time.perf_counter() - report > 10 or step == steps or not going):
                report = time.perf_counter()
                print(f"step {step}  loss {loss.item():.5f}  {elapsed.item() / step * 1e3:.2f} ms a step", flush=True)
    assert torch.isfinite(loss)


def budget(comm, seed, ctas):
    """The measurement behind the default of sp.comm(ctas=): milliseconds of an exchange, of a matrix product, and of
    both concurrent with an NCCL gather, which ranks start in different orders. Thread blocks of collectives wait for a
    peer's. If they and NCCL's, which also wait, do not fit on a GPU together, ranks that start with different ones
    deadlock."""
    mib = 64 if DEVICE == "cuda" else 1
    group = dist.new_group(list(range(comm.size)))
    with sp.comm(group, device=comm.device, ctas=int(ctas), timeout=10) as part:
        new = functools.partial(torch.randn, device=comm.device, dtype=torch.bfloat16)
        x, side = new(1, mib * 256, 16, 128), 8192 if DEVICE == "cuda" else 64
        a, b, c, parameters = new(side, side), new(side, side), new(side, side), new(mib << 18)
        gathered = parameters.new_empty(comm.size * parameters.numel())
        random = torch.Generator("cpu").manual_seed(seed + comm.rank)

        def together():
            gather = lambda: dist.all_gather_into_tensor(gathered, parameters, group=group, async_op=True)
            first = bool(torch.randint(2, (), generator=random, device="cpu"))
            work = gather() if first else None
            exchange = sp.start_to_heads(x, part)
            work = work or gather()
            torch.mm(a, b, out=c)
            exchange.wait()
            work.wait()

        state, decay = torch.randn(32, 128, 128, device=comm.device), torch.rand(32, 128, device=comm.device)
        times = in_turn({"exchange": lambda: sp.to_heads(x, part), "gather": lambda: sp.all_gather(x, part),
                         "scan": lambda: sp.all_scan(state, decay, part), "product": lambda: torch.mm(a, b, out=c),
                         "together": together}, 25)
        for i in range(300):
            together()
            if i % 30 == 29:
                synchronize()
                time.sleep(float(torch.rand((), generator=random, device="cpu")) * 0.005)
    if comm.rank == 0:
        print(f"{ctas:>3} thread blocks: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in times.items()), flush=True)


ITEMS = {"check": check, "graph": graph, "decode": decode, "gradients": gradients, "parity": parity_of, "boundary": boundary,
         "ulysses": ulysses, "fsdp": fsdp, "budget": budget}


def main():
    torch_checks.load()
    device = start()
    seed = [torch.seed() % 2 ** 31]
    with device:
        dist.broadcast_object_list(seed, 0)
    comm = sp.comm(timeout=60)
    if comm.rank == 0:
        print(f"seed {seed[0]}", flush=True)
    for item in sys.argv[1:]:
        begin = time.perf_counter()
        try:
            name, *arguments = item.split()
            ITEMS[name](comm, seed[0], *arguments)
            synchronize()
        except BaseException:
            traceback.print_exc()
            print(f"==== FAILED {item} (rank {comm.rank})", flush=True)
            os._exit(1)  # the other ranks get the error from the communicator, or are ended
        if comm.rank == 0:
            print(f"==== ok {item} ({time.perf_counter() - begin:.1f} s)", flush=True)
    sp.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
