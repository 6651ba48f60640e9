"""Common parts of the training examples: options, data, groups of ranks, the loop with its progress line, and the plot."""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import seqpar.torch as sp
from plot_losses import plot


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Unwrapped text, with defaults after the help of options."""


def parser(text, **defaults):
    p = argparse.ArgumentParser(description=text, formatter_class=Help)
    p.add_argument("--sp", type=int, default=1, help="ranks that share a sequence; the others are data parallel")
    p.add_argument("--data", default="/usr/share/common-licenses", help="a file, or a folder of files: bytes are tokens")
    p.add_argument("--layers", type=int, default=2, help="blocks of the model")
    p.add_argument("--width", type=int, default=64, help="hidden dimension")
    p.add_argument("--heads", type=int, default=2, help="attention heads")
    p.add_argument("--tokens", type=int, default=256, help="tokens of a sequence, over all its ranks")
    p.add_argument("--batch", type=int, default=2, help="sequences per step in each data-parallel group")
    p.add_argument("--steps", type=int, default=20, help="training steps")
    p.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    p.add_argument("--seed", type=int, default=0, help="seed of parameters and batches")
    p.add_argument("--algorithm", default="auto", help="attention algorithm; see seqpar.torch")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32",
                   help="type of activations and matrix products (autocast); parameters are float32")
    p.add_argument("--recompute", action="store_true", help="recompute layers in the backward pass: less memory")
    p.add_argument("--plot", help="a PNG of the losses")
    p.add_argument("--log", help="a CSV of step and loss")
    p.set_defaults(**defaults)
    return p


@dataclasses.dataclass
class Ranks:
    """comm: the ranks that share this rank's sequences. group: the index of its data-parallel group among `groups`."""

    comm: object
    mesh: object
    group: int
    groups: int
    device: torch.device

    @property
    def count(self):
        return self.groups * self.comm.size

    @property
    def first(self):
        return self.group == 0 and self.comm.rank == 0


def require(o):
    """Ends the program if an option has an impossible value."""
    for name in ("sp", "layers", "width", "heads", "batch"):
        if getattr(o, name) < 1:
            raise SystemExit(f"--{name} is {getattr(o, name)}, expected at least 1")
    if o.tokens < 2:
        raise SystemExit(f"--tokens is {o.tokens}, expected at least 2: a token and its label")
    if o.width % (2 * o.heads):
        raise SystemExit(f"--width is {o.width}, expected a multiple of {2 * o.heads}: an even dimension of each of the {o.heads} --heads")
    if o.heads % getattr(o, "kv_heads", 1):
        raise SystemExit(f"--kv-heads is {o.kv_heads}, expected a divisor of the {o.heads} --heads")


def start(o):
    """The ranks, arranged by --sp; one rank without torchrun."""
    require(o)
    if "RANK" not in os.environ:
        if o.sp > 1:
            raise SystemExit(f"--sp is {o.sp}, expected 1 without torchrun: torchrun --nproc-per-node {o.sp} ...")
        return Ranks(sp.comm(device=o.device), None, 0, 1, torch.device(o.device))
    device = torch.device(o.device)
    if o.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("gloo" if o.device == "cpu" else "nccl")
    world = dist.get_world_size()
    if world % o.sp:
        raise SystemExit(f"--sp is {o.sp}, expected a divisor of the {world} ranks")
    mesh = dist.device_mesh.init_device_mesh(o.device, (world // o.sp, o.sp), mesh_dim_names=("dp", "sp"))
    return Ranks(sp.comm(mesh["sp"]), mesh, mesh["dp"].get_local_rank(), world // o.sp, device)


def bytes_of(path):
    """All bytes of a file, or of the files of a folder in the order of their names."""
    path = pathlib.Path(path)
    if not path.exists():
        raise SystemExit(f"--data is {path}, expected a file or a folder")
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.is_symlink()) if path.is_dir() else [path]
    return torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in files)), dtype=torch.uint8).long()


def batch_of(data, step, group, o):
    """Batch of a group in a step. The sequences of all groups do not depend on the sharding."""
    def sequence(number):
        random = torch.Generator().manual_seed(1_000_003 * o.seed + 1009 * step + number)
        begin = int(torch.randint(max(1, len(data) - o.tokens), (), generator=random))
        return data[begin:begin + o.tokens]

    return torch.stack([sequence(group * o.batch + i) for i in range(o.batch)])


def rotated(x, positions, base=10000.0):
    """Rotary position embeddings (arXiv 2104.09864) of [batch][tokens][heads][dim], at the tokens' positions in the whole sequence."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None].float() * base ** (-torch.arange(half, device=x.device) / half)
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).to(x.dtype)


def normalized(x):
    """x divided by its root mean square, in its own type: autocast would convert it to float32, and every product back."""
    with torch.autocast(x.device.type, enabled=False):
        return F.rms_norm(x, x.shape[-1:])


class Block(torch.nn.Module):
    """A layer: `mixer`, which attends to other tokens, and an MLP."""

    def __init__(self, width, mixer):
        super().__init__()
        self.mixer = mixer
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, *more, **options):
        x = x + self.mixer(normalized(x), *more, **options)
        return x + self.down(F.gelu(self.up(normalized(x))))


class Model(torch.nn.Module):
    """A language model of bytes: `blocks` between an embedding and a head."""

    def __init__(self, width, blocks, recompute=False):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.blocks = torch.nn.ModuleList(blocks)
        self.head = torch.nn.Linear(width, 256, bias=False)
        self.recompute = recompute

    def forward(self, ids, *more, **options):
        x = self.embedding(ids)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for block in self.blocks:
            x = checkpoint(block, x, *more, use_reentrant=False, **options) if self.recompute else block(x, *more, **options)
        return self.head(normalized(x))


def memory_mib(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2 ** 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def progress(step, loss, tokens, seconds, mib):
    """Prints the line of a step. tokens: of all ranks."""
    print(f"step {step:4d}  loss {loss:.6f}  {tokens / seconds:10.0f} tokens/s  {mib:7.0f} MiB", flush=True)


def median(seconds):
    """Median of the steps after the first three, which create plans and allocate; infinity without any."""
    late = sorted(seconds[3:])
    return late[len(late) // 2] if late else float("inf")


def finish(losses, o):
    """Writes the CSV and the plot if requested."""
    if o.log:
        pathlib.Path(o.log).write_text("step,loss\n" + "".join(f"{i},{x:.9g}\n" for i, x in enumerate(losses)))
    if o.plot:
        plot(losses, o.plot)


def train(o, ranks, model, layout, logits_of, averaged=False, last=True, sharded=None, labels=None):
    """Trains `model`; logits_of(ids, positions) returns the logits of this rank's tokens in `layout`. The loss is the mean
    over the tokens of all ranks. sharded(batch) returns this rank's ids, labels and positions, and `labels` is the number
    of labels in a sequence; default: the next token is each token's label. averaged: the model averages gradients over all ranks (FSDP2), else they are summed here.
    last: no other training follows. Returns the median of tokens per second and rank."""
    data = bytes_of(o.data)
    if len(data) < o.tokens:
        raise SystemExit(f"--data has {len(data)} bytes, expected at least the {o.tokens} --tokens of a sequence")
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, fused=ranks.device.type == "cuda" and not averaged)
    if ranks.first:
        count = sum(p.numel() for p in model.parameters())
        print(f"{count / 1e6:.2f} M parameters, {ranks.count} ranks, {ranks.comm.size} per sequence of {o.tokens} tokens",
              flush=True)
    autocast = torch.autocast(ranks.device.type, torch.bfloat16) if o.dtype == "bfloat16" else contextlib.nullcontext()
    # Number of labels of all ranks: each sequence's last token has none.
    labels_of_step = (o.tokens - 1 if labels is None else labels) * o.batch * ranks.groups
    sharded = sharded or (lambda batch: sp.shard_batch(batch, layout, ranks.comm))
    losses, seconds, started = [], [], time.perf_counter()
    for step in range(o.steps):
        ids, targets, positions = sharded(batch_of(data, step, ranks.group, o))
        with autocast:
            logits = logits_of(ids.to(ranks.device), positions.to(ranks.device))
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.to(ranks.device).flatten(), reduction="sum") / labels_of_step
        optimizer.zero_grad()
        (loss * ranks.count if averaged else loss).backward()
        total = loss.detach().clone()
        if dist.is_initialized():  # parts of the mean: summed over shards and data-parallel groups
            dist.all_reduce(total)
            for parameter in () if averaged else model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        losses.append(total.item())
        seconds.append(time.perf_counter() - started)
        started += seconds[-1]
        if ranks.first:
            progress(step, losses[-1], o.tokens * o.batch * ranks.groups, seconds[-1], memory_mib(ranks.device))
    rate = o.tokens * o.batch / ranks.comm.size / median(seconds)
    if ranks.first:
        if len(seconds) > 3:
            print(f"median of {len(seconds) - 3} steps: {rate:.0f} tokens/s per rank", flush=True)
        finish(losses, o)
    if last:
        sp.close()
        if dist.is_initialized():
            dist.destroy_process_group()
    return rate
