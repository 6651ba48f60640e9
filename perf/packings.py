#!/usr/bin/env python3
"""Attention of batches that are packed anew in every step: the time that a new packing takes, and its memory.

    python perf/packings.py                                              # one GPU
    torchrun --nproc-per-node 2 perf/packings.py --algorithm ulysses     # a sequence over two GPUs
    python perf/packings.py --device cpu --packings 20 --tokens 512 --heads 2 --kv-heads 2 --head-dim 16

A packing runs forward and backward twice, and the device is waited for in between. The difference of the two times is the
time of a new packing: its plans, and their tables in device memory. Documents have lengths of a lognormal distribution.
The first packings build cuDNN's plans, each in about a second; they are listed apart."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist

import seqpar.torch as sp


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--packings", type=int, default=1000)
    p.add_argument("--tokens", type=int, default=8192, help="per rank")
    p.add_argument("--median", type=float, default=900, help="of the documents' lengths")
    p.add_argument("--sigma", type=float, default=0.8)
    p.add_argument("--longest", type=int, default=4096)
    p.add_argument("--heads", type=int, default=32)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--algorithm", default="auto")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda")
    p.add_argument("--seconds", type=float, default=600, help="the loop ends after these")
    return p.parse_args()


def packing(o, draw, tokens):
    """Bounds of documents."""
    bounds = [0]
    while bounds[-1] < tokens:
        length = round(draw.lognormvariate(0, o.sigma) * o.median)
        bounds.append(min(tokens, bounds[-1] + min(max(1, length), o.longest)))
    return tuple(bounds)


def allocations(device):
    """(device allocations of PyTorch, memory in use by all programs)"""
    if device.type == "cpu":
        return 0, 0
    free, total = torch.cuda.mem_get_info(device)
    return torch.cuda.memory_stats(device)["num_device_alloc"], total - free


def main():
    o = parse()
    device = torch.device(o.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", device_id=device if device.type == "cuda" else None)
    comm, draw = sp.comm(device=device), random.Random(o.seed)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    q, k, v = (torch.randn(1, o.tokens, heads, o.head_dim, device=device, dtype=kind).requires_grad_()
               for heads in (o.heads, o.kv_heads, o.kv_heads))
    grad = torch.randn_like(q)

    def step(bounds):
        """Seconds of a forward and backward pass."""
        synchronize()
        begin = time.perf_counter()
        out = sp.attention(q, k, v, comm, causal=True, cu_seqlens=bounds, algorithm=o.algorithm)
        out.backward(grad)
        q.grad = k.grad = v.grad = None
        synchronize()
        return time.perf_counter() - begin

    new, again, builds, since = [], [], [], 0
    start = time.perf_counter()
    for index in range(o.packings):
        bounds = packing(o, draw, o.tokens * comm.size)
        first, second = step(bounds), step(bounds)
        new.append(first - second)
        again.append(second)
        if first - second > 0.1:  # it built plans of cuDNN
            builds.append(index)
            since, memory = index + 1, allocations(device)
        stop = torch.tensor([time.perf_counter() - start > o.seconds], device=device, dtype=torch.int32)
        if comm.size > 1:
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            break
    late, runs = sorted(new[since:]), sorted(again)
    if comm.rank == 0:
        print(f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'cpu'}, ranks {comm.size}, tokens per rank {o.tokens}, "
              f"heads {o.heads}/{o.kv_heads} of {o.head_dim}, {len(new)} packings")
        print(f"packings that built cuDNN plans: {len(builds)}, the last {builds[-1] if builds else None}; "
              f"{sum(new[i] for i in builds):.1f} s")
        if late:
            print(f"later new packings: {len(late)}, ms: median {late[len(late) // 2] * 1e3:.2f}, 99 % {late[len(late) * 99 // 100] * 1e3:.2f}, "
                  f"most {late[-1] * 1e3:.2f}")
            print(f"packings per second, new: {len(late) / (sum(late) + sum(again[since:])):.0f}, repeated: {len(runs) / sum(runs):.0f}")
        if builds and device.type == "cuda":
            now = allocations(device)
            print(f"since the last cuDNN plan: device allocations of PyTorch {now[0] - memory[0]}, memory in use {(now[1] - memory[1]) / 2 ** 20:+.1f} MiB")
    sp.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
