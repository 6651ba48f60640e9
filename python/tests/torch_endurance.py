"""One rank of a long training: FSDP2, sequence parallelism, activation checkpointing and torch.compile together. Not a
part of the test suite; the log has the loss, memory, descriptors and threads over time.

    torchrun --nproc-per-node 2 python/tests/torch_endurance.py --steps 10000 --pauses 20 --lines endurance.jsonl
"""

import argparse
import json
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard

import seqpar.torch as sp

TOKENS, WIDTH, HEADS, LAYERS, WORDS = 64, 32, 2, 2, 64


class Block(torch.nn.Module):
    def __init__(self, comm, layout):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.comm, self.layout = comm, layout

    def forward(self, x):
        q, k, v = (y.unflatten(2, (HEADS, -1)) for y in self.qkv(F.rms_norm(x, (WIDTH,))).chunk(3, 2))
        x = x + self.out(sp.attention(q, k, v, self.comm, causal=True, layout=self.layout, algorithm="zigzag").flatten(2))
        return x + self.down(F.gelu(self.up(F.rms_norm(x, (WIDTH,)))))


class Model(torch.nn.Module):
    def __init__(self, comm, layout):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Embedding(TOKENS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(comm, layout) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, ids, positions):
        x = self.words(ids) + self.places(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def wrapped(model, mesh):
    """In the order of torchtitan: checkpointing, compilation, FSDP2."""
    for i, block in enumerate(model.blocks):
        model.blocks[i] = checkpoint_wrapper(block, preserve_rng_state=False)
        model.blocks[i].compile(fullgraph=True)
        fully_shard(model.blocks[i], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def usage():
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {"mib": round(pages * os.sysconf("SC_PAGESIZE") / 2**20, 1), "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task"))}


def batch_of(step):
    """Sequences that count up by a number which the first two words tell."""
    draw = random.Random(step)
    first, by = draw.randrange(WORDS), 1 + draw.randrange(7)
    return torch.tensor([[(first + i * by) % WORDS for i in range(TOKENS)]])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=10000)
    p.add_argument("--seconds", type=float, default=1e9, help="no step starts later")
    p.add_argument("--pauses", type=int, default=0, help="steps before which a random rank sleeps up to 2 s")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--lines", default="endurance.jsonl", help="lines of JSON, of all ranks")
    o = p.parse_args()
    torch.set_num_threads(1)
    device = torch.device(o.device)
    if o.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if o.device == "cpu" else "cpu:gloo,cuda:nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh(o.device, (1, ranks), mesh_dim_names=("dp", "cp"))
    joint = mesh["dp", "cp"]._flatten("dp_cp")
    comm = sp.comm(mesh["cp"])
    layout = sp.Layout("zigzag", TOKENS, comm.size)
    torch.manual_seed(0)
    with device:
        model = Model(comm, layout)
    model = wrapped(model, joint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = random.Random(1)  # equal on all ranks
    pauses = {draw.randrange(o.steps): (draw.randrange(ranks), 2 * draw.random()) for _ in range(o.pauses)}
    begin, losses, stop = time.time(), [], torch.zeros(1)
    every = max(o.steps // 50, 1)
    for step in range(o.steps):
        chosen, seconds = pauses.get(step, (None, 0))
        if chosen == rank:
            time.sleep(seconds)
        ids, labels, positions = (x.to(device) for x in sp.shard_batch(batch_of(step), layout, comm))
        loss = F.cross_entropy(model(ids, positions).flatten(0, 1), labels.flatten(), reduction="sum") / (TOKENS - 1)
        optimizer.zero_grad()
        (loss * ranks).backward()  # FSDP2 averages
        optimizer.step()
        losses.append(loss.detach())
        if step % every == every - 1 or step == o.steps - 1:
            mean = torch.stack(losses).mean()
            dist.all_reduce(mean)
            losses.clear()
            line = {"rank": rank, "step": step + 1, "seconds": round(time.time() - begin, 1), "loss": round(mean.item(), 5), **usage()}
            if o.device == "cuda":
                free, total = torch.cuda.mem_get_info()
                line["gpu_mib"] = round((total - free) / 2**20, 1)
            with open(o.lines, "a") as file:
                file.write(json.dumps(line) + "\n")
            stop.fill_(float(time.time() - begin > o.seconds))
            dist.all_reduce(stop)
            if stop.item():
                break
    sp.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
