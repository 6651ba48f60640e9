#!/usr/bin/env python3
"""A decode step over a KV cache that is distributed over GPUs by tokens, in CUDA graphs: sp.decode() with the kernel of
FlashInfer, if it is installed, on pages in random order, and with FlashAttention 2's kernel in PyTorch on a dense cache.

    torchrun --nproc-per-node 2 perf/decode.py

Prints microseconds of the slowest rank, the median of 15 graphs of 20 calls each, and the largest difference from fp32
attention to the keys of all ranks."""

import argparse
import os

import torch
import torch.distributed as dist

import seqpar.torch as sp

CALLS = 20


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--tokens", type=int, default=16384, help="of a sequence, on all ranks")
    p.add_argument("--heads", type=int, default=32)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--page", type=int, default=16, help="tokens of a page")
    return p.parse_args()


class Cache:
    """A rank's pages [pages][2][page][kv heads][dim] in random order, and the same keys and values in order."""

    def __init__(self, o, comm):
        draw = torch.Generator(comm.device).manual_seed(comm.rank)
        self.o, self.each = o, o.tokens // comm.size // o.page
        shape = o.batch * self.each, 2, o.page, o.kv_heads, o.head_dim
        self.pages = torch.randn(shape, device=comm.device, generator=draw).bfloat16()
        self.order = torch.randperm(shape[0], device=comm.device, generator=draw).int()
        ordered = self.pages[self.order.long()].view(o.batch, self.each, *shape[1:])
        self.k, self.v = (ordered[:, :, i].reshape(o.batch, -1, o.kv_heads, o.head_dim) for i in (0, 1))

    def flash_attention(self, q):
        """The heads that share keys are the queries of one head."""
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            q.unflatten(1, (self.o.kv_heads, -1)), self.k.transpose(1, 2), self.v.transpose(1, 2), 0.0, False, scale=self.o.head_dim ** -0.5)
        return out.flatten(1, 2), lse.flatten(1, 2)

    def flash_infer(self, tensor_cores):
        import flashinfer
        o, device = self.o, self.pages.device
        bounds = torch.arange(o.batch + 1, dtype=torch.int32, device=device) * self.each
        last = torch.full((o.batch,), o.page, dtype=torch.int32, device=device)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(256 << 20, dtype=torch.uint8, device=device), "NHD", use_cuda_graph=True, use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=bounds.clone(), paged_kv_indices_buffer=self.order.clone(), paged_kv_last_page_len_buffer=last.clone())
        wrapper.plan(bounds, self.order, last, o.heads, o.kv_heads, o.head_dim, o.page, q_data_type=torch.bfloat16,
                     kv_data_type=torch.bfloat16)
        return lambda q: wrapper.run(q, self.pages, return_lse=True)

    def reference(self, q, comm):
        k, v = (sp.all_gather(x.repeat_interleave(self.o.heads // self.o.kv_heads, 2).float(), comm, dim=1) for x in (self.k, self.v))
        weights = torch.softmax(torch.einsum("bhd,bkhd->bhk", q.float(), k) * self.o.head_dim ** -0.5, -1)
        return torch.einsum("bhk,bkhd->bhd", weights, v)


def microseconds(call):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(CALLS):
            call()
    times = []
    for _ in range(15):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / CALLS)
    slowest = torch.tensor(sorted(times)[7], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def measure(name, kernel, base, q, reference, comm):
    rows = torch.full((1,), q.shape[0], dtype=torch.int32, device=q.device)
    each = q.shape[1] // comm.size
    own = slice(comm.rank * each, (comm.rank + 1) * each)
    mine, (out, lse) = q[:, own].contiguous(), kernel(q)
    options = {"base": base, "row_count": rows}
    calls = {"kernel": lambda: kernel(q), "decode, all": lambda: sp.decode(q, kernel, comm, **options),
             "decode, heads": lambda: sp.decode(mine, kernel, comm, by="heads", **options),
             "merge, all": lambda: sp.all_reduce_lse(out, lse, comm, **options),
             "merge, heads": lambda: sp.reduce_scatter_lse(out, lse, comm, **options),
             "gather": lambda: sp.all_gather(mine, comm, dim=1)}
    worst = torch.stack([(calls["decode, all"]().float() - reference).abs().max(),
                         (calls["decode, heads"]().float() - reference[:, own]).abs().max()])
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    times = ", ".join(f"{what} {microseconds(call):.1f}" for what, call in calls.items())
    if comm.rank == 0:
        print(f"{name}, {comm.size} ranks: {times} us; errors {worst[0]:.1e}, {worst[1]:.1e}", flush=True)


def main():
    o = parse()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    comm = sp.comm()
    cache = Cache(o, comm)
    q = torch.randn(o.batch, o.heads, o.head_dim, device=comm.device, generator=torch.Generator(comm.device).manual_seed(7)).bfloat16()
    reference = cache.reference(q, comm)
    measure("FlashAttention 2, dense", cache.flash_attention, "e", q, reference, comm)
    try:
        for tensor_cores in (False, True):
            kernel = cache.flash_infer(tensor_cores)
            measure(f"FlashInfer, pages of {o.page}{', tensor cores' if tensor_cores else ''}", kernel, 2, q, reference, comm)
    except ModuleNotFoundError as error:
        if comm.rank == 0:
            print(f"FlashInfer: {error}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
    sp.close()
    dist.destroy_process_group()
