#!/usr/bin/env python3
"""Trains a language model of gated linear attention on bytes, its sequences sharded over ranks.

    python examples/train_gla.py                                                 one process
    torchrun --nproc-per-node 2 examples/train_gla.py --sp 2                      the same losses, half of each sequence per rank
    torchrun --nproc-per-node 2 examples/train_gla.py --sp 1                      data parallel
    torchrun --nproc-per-node 2 examples/train_gla.py --sp 2 --device cuda --dtype bfloat16 \\
        --layers 18 --width 2048 --heads 16 --batch 1 --tokens 65536 --baseline   1 G parameters, 32K tokens per GPU,
                                                                                  and the same with data parallelism

Each line contains the step, the loss (nats per byte, over all ranks), tokens per second over all ranks, and memory; the last
line is the median of tokens per second and rank. --plot writes the losses as a PNG (matplotlib), --log as a CSV.
"""

import argparse

import torch
import torch.nn.functional as F

import seqpar.torch as sp
import training


class GatedLinearAttention(torch.nn.Module):
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
        o = training.normalized(sp.gla(q, k, v, F.logsigmoid(g) / 16, comm, **options)).flatten(2)
        return self.out(o * F.silu(self.gate(x)))


def run(o, last=True):
    ranks = training.start(o)
    layout = sp.Layout("contiguous", o.tokens, ranks.comm.size)
    torch.manual_seed(o.seed)  # equal parameters on all ranks
    with ranks.device:
        blocks = [training.Block(o.width, GatedLinearAttention(o.width, o.heads)) for _ in range(o.layers)]
        model = training.Model(o.width, blocks, o.recompute)
    return training.train(o, ranks, model, layout, last=last, logits_of=lambda ids, positions: model(
        ids, ranks.comm, layout=layout, algorithm=o.algorithm)), ranks.first


def main():
    p = training.parser(__doc__)
    p.add_argument("--baseline", action="store_true", help="also run data parallel training of as many tokens, before and "
                   "after, because clocks drift, and print the ratio of the speeds")
    o = p.parse_args()
    if not o.baseline:
        return run(o)
    data_parallel = argparse.Namespace(**{**vars(o), "sp": 1, "tokens": o.tokens // o.sp, "log": None, "plot": None})
    before, _ = run(data_parallel, last=False)
    rate, first = run(o, last=False)
    after, _ = run(data_parallel)
    if first:
        alone = (before + after) / 2
        print(f"{rate / alone:.4f} of the {alone:.0f} tokens/s per rank of data parallelism")


if __name__ == "__main__":
    main()
