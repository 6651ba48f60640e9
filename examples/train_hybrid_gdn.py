#!/usr/bin/env python3
"""Trains a hybrid as Qwen3-Next: three Gated DeltaNet layers per layer of softmax attention, sequences sharded over ranks.

    python examples/train_hybrid_gdn.py
    torchrun --nproc-per-node 2 examples/train_hybrid_gdn.py --sp 2               the same losses

Losses were compared on hosts. A Gated DeltaNet layer has a short convolution before the delta rule; both cross ranks on contiguous shards.
"""

import torch
import torch.nn.functional as F

import hybrid
import seqpar.torch as sp
import training


class GatedDeltaNet(torch.nn.Module):
    """Gated DeltaNet (arXiv 2412.06464): a decay and a beta per token and head, a gated and normalized output."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.conv = torch.nn.Parameter(torch.randn(3 * width, 4) / 2)
        self.decay_beta = torch.nn.Linear(width, 2 * heads)
        self.gate = torch.nn.Linear(width, width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x, positions, comm, contiguous, zigzag):
        mixed = sp.short_conv(self.qkv(x), self.conv, comm, activation="silu", layout=contiguous)
        q, k, v = (y.unflatten(2, (self.heads, -1)) for y in mixed.chunk(3, 2))
        decay, beta = self.decay_beta(x).float().chunk(2, 2)
        o = sp.gated_delta_rule(q, k, v, F.logsigmoid(decay), beta.sigmoid(), comm, normalize=True, layout=contiguous)
        return self.out(training.normalized(o).flatten(2) * F.silu(self.gate(x)))


if __name__ == "__main__":
    hybrid.train(__doc__, GatedDeltaNet)
