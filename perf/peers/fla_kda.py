"""flash-linear-attention's KDA over several GPUs: with its own exchange of states (a gather), with seqpar's (All-Scan), and
without any. One rank; start as many with torchrun's variables. Needs fla-core 0.6 and einops.

    fla_kda.py --warm I N    compiles every Nth kernel from the Ith on, without running any: N processes fill Triton's cache
    fla_kda.py               measures; Triton tunes every kernel over all of its configurations

Times are medians of CUDA events of the slower rank, and of the exchange alone.
"""
import argparse
import os
import time

os.environ.setdefault("FLA_CACHE_RESULTS", "0")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from triton_tuning import compile_only, tune_quickly  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tokens", type=int, default=16384, help="of a rank")
parser.add_argument("--heads", type=int, default=32)
parser.add_argument("--head-dim", type=int, default=128)
parser.add_argument("--repeats", type=int, default=15)
parser.add_argument("--warm", type=int, nargs=2)
args = parser.parse_args()


def inputs(device, rank):
    random = torch.Generator(device).manual_seed(rank)
    shape = (1, args.tokens, args.heads, args.head_dim)
    normal = lambda *shape: torch.randn(shape, generator=random, device=device)
    q, k = (torch.nn.functional.normalize(normal(*shape), dim=-1).bfloat16() for _ in range(2))
    g = torch.nn.functional.logsigmoid(normal(*shape)) / 16
    tensors = {"q": q, "k": k, "v": normal(*shape).bfloat16(), "g": g, "beta": normal(*shape[:3]).sigmoid().bfloat16()}
    return {name: x.requires_grad_() for name, x in tensors.items()}, normal(*shape).bfloat16()


def warm(share, shares):
    from fla.ops.cp import FLACPContext, chunk_delta_h
    from fla.ops.kda import chunk_kda
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    compile_only(share, shares)
    chunk_delta_h.all_gather_into_tensor = lambda hm, group: (torch.stack((hm, hm)), None)
    device = torch.device("cuda", share % torch.cuda.device_count())
    torch.cuda.set_device(device)
    bounds = torch.tensor([0, args.tokens], dtype=torch.int32)
    middle = FLACPContext(group=dist.group.WORLD, cu_seqlens=bounds.to(device), cu_seqlens_cpu=bounds, is_last_rank=False,
                          pre_num_ranks=1, is_first_rank=False, post_num_ranks=1)
    tensors, grad = inputs(device, 0)
    begin = time.perf_counter()
    for options in ({"cp_context": middle}, {"cu_seqlens": middle.cu_seqlens}):
        o, _ = chunk_kda(**tensors, safe_gate=True, **options)
        torch.autograd.grad(o, list(tensors.values()), grad)
    if share == 0:
        print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)


def slowest(ms):
    x = torch.tensor([ms], device="cuda", dtype=torch.float64)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.item()


def median_ms(function, repeats):
    for _ in range(2):
        function()
    dist.barrier()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        function()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in events)
    return slowest(times[len(times) // 2])


def exchanges(theirs, ours):
    """us of the exchange of one layer's states alone, forward: the parts of FLA's and seqpar's between the kernels."""
    from fla.ops.cp.chunk_delta_h import all_gather_into_tensor, chunk_cp_merge

    import seqpar.torch.fla as sp_fla
    hm = torch.randn(args.heads, args.head_dim, 2 * args.head_dim, device="cuda") / args.head_dim
    h = [torch.zeros(args.heads, args.head_dim, args.head_dim, device="cuda") for _ in range(2)]
    rank = dist.get_rank()

    def by_gather():
        gathered, _ = all_gather_into_tensor(hm, group=dist.group.WORLD)
        if not theirs.is_first_rank:
            chunk_cp_merge(h=h[0], ag_hm=gathered, num_ranks=theirs.pre_num_ranks, rank=rank, state_v_first=False, forward=True,
                           h_seq_idx=None, use_graph=False)

    def by_scan():
        h[1].copy_(sp_fla.exchange(hm, ours))

    times = [1e3 * median_ms(f, 100) for f in (by_gather, by_scan)]
    apart = (h[0] - h[1]).norm() / (h[0].norm() + 1e-30)
    assert apart < 1e-4, apart
    return times


def main():
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    import contextlib

    from fla.ops.cp import build_cp_context
    from fla.ops.kda import chunk_kda

    import seqpar.torch as sp
    import seqpar.torch.fla as sp_fla
    ranks = dist.get_world_size()
    whole = torch.tensor([0, args.tokens * ranks], device="cuda")
    theirs, ours = build_cp_context(whole, dist.group.WORLD), sp_fla.build_cp_context(whole, dist.group.WORLD)
    tensors, grad = inputs(torch.device("cuda", rank), rank)
    leaves = list(tensors.values())
    mine = torch.tensor([0, args.tokens], device="cuda", dtype=torch.int32)
    variants = {"no exchange": (contextlib.nullcontext, {"cu_seqlens": mine}),
                "FLA's gather": (contextlib.nullcontext, {"cp_context": theirs}),
                "seqpar's All-Scan": (sp_fla.patch, {"cp_context": ours})}

    def forward(options):
        with torch.no_grad():
            return chunk_kda(**tensors, safe_gate=True, **options)[0]

    def both(options):
        o, _ = chunk_kda(**tensors, safe_gate=True, **options)
        return [o.detach(), *torch.autograd.grad(o, leaves, grad)]

    results = {}
    for name, (context, options) in variants.items():
        with context():
            begin = time.perf_counter()
            results[name] = both(options)
            torch.cuda.synchronize()
            if rank == 0:
                print(f"{name}: first call {time.perf_counter() - begin:.1f} s", flush=True)
    errors = [((a.float() - b.float()).norm() / (b.float().norm() + 1e-20)).item()
              for a, b in zip(results["seqpar's All-Scan"], results["FLA's gather"])]
    print(f"rank {rank}: ours and FLA's apart (relative): " + " ".join(
        f"{name} {x:.1e}" for name, x in zip(("o", *(f"d{n}" for n in tensors)), errors)), flush=True)
    del results
    gather, scan = exchanges(theirs, ours)
    if rank == 0:
        print(f"KDA, {ranks} ranks, {args.tokens} tokens a rank, {args.heads} heads of {args.head_dim}\n"
              f"{'exchange alone':<18} FLA's gather {gather:8.1f} us   seqpar's All-Scan {scan:8.1f} us", flush=True)
    for what, one in (("forward", forward), ("forward+backward", both)):
        times = {name: [] for name in variants}
        for _ in range(3):  # in turn: clocks drift
            for name, (context, options) in variants.items():
                with context():
                    times[name].append(median_ms(lambda: one(options), args.repeats))
        times = {name: sorted(x)[1] for name, x in times.items()}
        if rank == 0:
            base = times["no exchange"]
            print("\n".join(f"{what:<18} {name:<20} {ms:8.3f} ms  {100 * (ms / base - 1):+6.2f} %" for name, ms in times.items()),
                  flush=True)
    sp.close()
    dist.destroy_process_group()


tune_quickly()
if args.warm:
    warm(*args.warm)
else:
    main()
