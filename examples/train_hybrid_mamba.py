#!/usr/bin/env python3
"""Trains a hybrid as Nemotron-H or Bamba: three Mamba-2 layers per layer of softmax attention, sequences sharded over ranks.

    python examples/train_hybrid_mamba.py
    torchrun --nproc-per-node 2 examples/train_hybrid_mamba.py --sp 2               the same losses

A Mamba-2 layer has a short convolution before the SSD; both cross ranks on contiguous shards.
"""

import torch
import torch.nn.functional as F

import hybrid
import seqpar.torch as sp
import training


class Mamba2(torch.nn.Module):
    """Mamba-2 (arXiv 2405.21060): heads share B and C, and the output is gated and normalized."""

    def __init__(self, width, heads, state=16):
        super().__init__()
        self.heads, self.widths = heads, (width, width + 2 * state, heads)
        self.project = torch.nn.Linear(width, sum(self.widths), bias=False)
        self.conv = torch.nn.Parameter(torch.randn(width + 2 * state, 4) / 2)
        self.log_a = torch.nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.dt_bias = torch.nn.Parameter(torch.empty(heads).uniform_(-7, -2))
        self.skip = torch.nn.Parameter(torch.ones(heads))
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x, positions, comm, contiguous, zigzag):
        gate, mixed, dt = self.project(x).split(self.widths, 2)
        mixed = sp.short_conv(mixed, self.conv, comm, activation="silu", layout=contiguous)
        values, b, c = mixed.split([gate.shape[2], *[(mixed.shape[2] - gate.shape[2]) // 2] * 2], 2)
        y = sp.mamba2(values.unflatten(2, (self.heads, -1)), dt, -self.log_a.exp(), b.unsqueeze(2), c.unsqueeze(2), D=self.skip,
                      dt_bias=self.dt_bias, dt_softplus=True, comm=comm, layout=contiguous)
        return self.out(training.normalized(y.flatten(2) * F.silu(gate)))


if __name__ == "__main__":
    hybrid.train(__doc__, Mamba2)
