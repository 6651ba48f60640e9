#!/usr/bin/env python3
"""Trains a hybrid with sequences sharded over ranks: three layers of gated linear attention per layer of softmax attention.

    python examples/hybrid.py
    torchrun --nproc-per-node 2 examples/hybrid.py --sp 2                          the same losses

Linear attention needs contiguous shards, because its states are passed from rank to rank; causal softmax attention needs the
zigzag layout for equal work on all ranks. Around each softmax layer the hidden states move between the layouts.
"""

import torch

import seqpar.torch as sp
import training
from train_gla import GatedLinearAttention
from train_gpt import Attention


class Linear(GatedLinearAttention):
    def forward(self, x, positions, comm, contiguous, zigzag):
        return super().forward(x, comm, layout=contiguous)


class Softmax(Attention):
    def forward(self, x, positions, comm, contiguous, zigzag):
        # The positions move with the tokens, in one exchange.
        y, places = sp.redistribute((x, positions.expand(len(x), -1)), contiguous, zigzag, comm)
        y = super().forward(y, places[0], comm, layout=zigzag, algorithm="zigzag")
        return sp.redistribute(y, zigzag, contiguous, comm)


def train(text, layer):
    """Trains three layers of `layer`(width, heads) per layer of softmax attention, with the options that `text` describes."""
    o = training.parser(text, layers=4).parse_args()
    ranks = training.start(o)
    contiguous, zigzag = (sp.Layout(kind, o.tokens, ranks.comm.size) for kind in ("contiguous", "zigzag"))
    torch.manual_seed(o.seed)  # equal parameters on all ranks
    with ranks.device:
        mixers = [Softmax(o.width, o.heads, 1) if i % 4 == 3 else layer(o.width, o.heads) for i in range(o.layers)]
        model = training.Model(o.width, [training.Block(o.width, mixer) for mixer in mixers], o.recompute)
    training.train(o, ranks, model, contiguous,
                   lambda ids, positions: model(ids, positions, ranks.comm, contiguous, zigzag))


if __name__ == "__main__":
    train(__doc__, Linear)
