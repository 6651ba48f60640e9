#!/usr/bin/env python3
"""Trains a language model of gated linear attention on bytes, its sequences sharded over ranks.

    python examples/train_gla.py                                                 one process
    torchrun --nproc-per-node 2 examples/train_gla.py --sp 2                      the same losses, half of each sequence a rank
    torchrun --nproc-per-node 2 examples/train_gla.py --sp 1                      data parallel
    torchrun --nproc-per-node 2 examples/train_gla.py --sp 2 --device cuda --dtype bfloat16 \\
        --layers 24 --width 1536 --heads 12 --tokens 65536                        about 0.5 G parameters

Each line has the step, the loss (nats a byte, over all ranks), tokens a second over all ranks, and memory. With --plot
the losses become a PNG (matplotlib), with --log a CSV.
"""

import argparse
import contextlib
import os
import pathlib
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import seqpar.torch as sp


class Mixer(torch.nn.Module):
    """Gated linear attention (arXiv 2312.06635): decays by a low-rank projection, a gated and normalized output."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.decay = torch.nn.Sequential(torch.nn.Linear(width, 16, bias=False), torch.nn.Linear(16, width))
        self.gate = torch.nn.Linear(width, width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x, comm, **options):
        q, k, v, g = (y.unflatten(2, (self.heads, -1)) for y in (*self.qkv(x).chunk(3, 2), self.decay(x)))
        o = sp.gla(q, k, v, F.logsigmoid(g.float()) / 16, comm, **options)
        o = F.rms_norm(o, o.shape[-1:]).flatten(2)
        return self.out(o * F.silu(self.gate(x)))


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.mixer = Mixer(width, heads)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, comm, **options):
        x = x + self.mixer(F.rms_norm(x, x.shape[-1:]), comm, **options)
        return x + self.down(F.gelu(self.up(F.rms_norm(x, x.shape[-1:]))))


class Model(torch.nn.Module):
    def __init__(self, layers, width, heads):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = torch.nn.Linear(width, 256, bias=False)

    def forward(self, ids, comm, **options):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, comm, **options)
        return self.head(F.rms_norm(x, x.shape[-1:]))


def bytes_of(path):
    """All bytes of a file, or of the files of a folder in the order of their names."""
    path = pathlib.Path(path)
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.is_symlink()) if path.is_dir() else [path]
    return torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in files)), dtype=torch.uint8).long()


def batch_of(data, step, index, o):
    """Sequence batch number `index` of a step: the same for any way of sharding."""
    random = torch.Generator().manual_seed(1_000_003 * o.seed + 1009 * step + index)
    starts = torch.randint(max(1, len(data) - o.tokens), (o.batch,), generator=random)
    return torch.stack([data[start:start + o.tokens] for start in starts])


def memory_mib(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2 ** 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plot(losses, path):
    try:
        import matplotlib
    except ImportError:
        print(f"no {path}: this needs matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    pyplot.figure(figsize=(6, 4))
    pyplot.plot(losses)
    pyplot.xlabel("step")
    pyplot.ylabel("loss, nats a byte")
    pyplot.grid(alpha=0.3)
    pyplot.savefig(path, dpi=120, bbox_inches="tight")


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sp", type=int, default=1, help="ranks that share a sequence; the others are data parallel")
    p.add_argument("--data", default="/usr/share/common-licenses", help="a file, or a folder of files")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--heads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=256, help="of a sequence, over all its ranks")
    p.add_argument("--batch", type=int, default=2, help="sequences of a step in each data-parallel group")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--algorithm", default="auto", help="auto, zeco, lasp1, lasp2")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the matrix products (autocast)")
    p.add_argument("--plot", help="a PNG of the losses")
    p.add_argument("--log", help="a CSV of step and loss")
    return p.parse_args()


def groups(o):
    """(communicator of the ranks that share this rank's sequences, number of its group, device)."""
    if "RANK" not in os.environ:
        return sp.comm(device=o.device), 0, torch.device(o.device)
    dist.init_process_group("gloo" if o.device == "cpu" else "nccl")
    world = dist.get_world_size()
    if world % o.sp:
        raise SystemExit(f"train_gla: --sp is {o.sp}, expected a divisor of the {world} ranks")
    device = torch.device(o.device)
    if o.device == "cuda":
        device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    mesh = dist.device_mesh.init_device_mesh(o.device, (world // o.sp, o.sp), mesh_dim_names=("dp", "sp"))
    return sp.comm(mesh["sp"]), mesh["dp"].get_local_rank(), device


def main():
    o = options()
    comm, group, device = groups(o)
    distributed = dist.is_initialized()
    ranks = dist.get_world_size() if distributed else 1
    data = bytes_of(o.data)
    layout = sp.Layout("contiguous", o.tokens, comm.size)
    torch.manual_seed(o.seed)  # equal parameters everywhere
    model = Model(o.layers, o.width, o.heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, fused=device.type == "cuda")
    first = not distributed or dist.get_rank() == 0
    if first:
        count = sum(p.numel() for p in model.parameters())
        print(f"{count / 1e6:.2f} M parameters, {ranks} ranks, {comm.size} a sequence of {o.tokens} tokens", flush=True)
    autocast = torch.autocast(device.type, torch.bfloat16) if o.dtype == "bfloat16" else contextlib.nullcontext()
    # Of all ranks' losses: each sequence's last token has no label.
    labels_of_step = (o.tokens - 1) * o.batch * (ranks // comm.size)
    losses, started = [], time.perf_counter()
    for step in range(o.steps):
        ids, labels, _ = sp.shard_batch(batch_of(data, step, group, o), layout, comm)
        with autocast:
            logits = model(ids.to(device), comm, layout=layout, algorithm=o.algorithm)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.to(device).flatten(), reduction="sum") / labels_of_step
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if distributed:  # shares of the mean: everything is added up, over sequences' shards and over data
            dist.all_reduce(total)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        losses.append(total.item())
        if first:
            now = time.perf_counter()
            rate = o.tokens * o.batch * (ranks // comm.size) / (now - started)
            started = now
            print(f"step {step:4d}  loss {losses[-1]:.6f}  {rate:10.0f} tokens/s  {memory_mib(device):7.0f} MiB", flush=True)
    if first and o.log:
        pathlib.Path(o.log).write_text("step,loss\n" + "".join(f"{i},{x:.9g}\n" for i, x in enumerate(losses)))
    if first and o.plot:
        plot(losses, o.plot)
    sp.close()
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
