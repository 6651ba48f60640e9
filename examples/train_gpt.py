#!/usr/bin/env python3
"""Trains a causal transformer on bytes, with sequences sharded over ranks and any softmax attention algorithm.

    python examples/train_gpt.py                                                 one process
    torchrun --nproc-per-node 2 examples/train_gpt.py --sp 2 --algorithm zigzag   the same losses
    torchrun --nproc-per-node 2 examples/train_gpt.py --sp 2 --device cuda --dtype bfloat16 --algorithm zigzag \\
        --layers 12 --width 1024 --heads 8 --kv-heads 2 --tokens 131072 --batch 1     128K tokens

Progress, --plot and --log as in train_gla.py. --layout sets the layout; default: by algorithm.
"""

import torch

import seqpar.torch as sp
import training


class Attention(torch.nn.Module):
    """Causal softmax attention with rotary embeddings and groups of query heads (GQA)."""

    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.qkv = torch.nn.Linear(width, (heads + 2 * kv_heads) * self.dim, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x, positions, comm, **options):
        sizes = [n * self.dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (y.unflatten(2, (-1, self.dim)) for y in self.qkv(x).split(sizes, 2))
        q, k = (training.rotated(y, positions) for y in (q, k))
        return self.out(sp.attention(q, k, v, comm, causal=True, **options).flatten(2))


def main():
    p = training.parser(__doc__, algorithm="zigzag")
    p.add_argument("--kv-heads", type=int, default=1)
    p.add_argument("--layout", choices=("contiguous", "zigzag", "striped"), default=None)
    o = p.parse_args()
    ranks = training.start(o)
    kind = o.layout or {"zigzag": "zigzag", "striped": "striped"}.get(o.algorithm, "contiguous")
    layout = sp.Layout(kind, o.tokens, ranks.comm.size)
    torch.manual_seed(o.seed)  # equal parameters on all ranks
    with ranks.device:
        blocks = [training.Block(o.width, Attention(o.width, o.heads, o.kv_heads)) for _ in range(o.layers)]
        model = training.Model(o.width, blocks, o.recompute)
    training.train(o, ranks, model, layout,
                   lambda ids, positions: model(ids, positions, ranks.comm, layout=layout, algorithm=o.algorithm))


if __name__ == "__main__":
    main()
