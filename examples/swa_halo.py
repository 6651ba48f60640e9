#!/usr/bin/env python3
"""Trains a transformer with sliding windows and sequences sharded over ranks, with an ordinary attention kernel: each rank
receives the keys and values of the window before its shard (a halo), and the halo's adjoint returns their gradients.

    python examples/swa_halo.py
    torchrun --nproc-per-node 2 examples/swa_halo.py --sp 2                        the same losses

Any kernel can replace scaled_dot_product_attention, for example FlashAttention with (q, k, v, causal=True,
window_size=(window, 0)).
"""

import torch
import torch.nn.functional as F

import seqpar.torch as sp
import training


class SlidingWindow(torch.nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x, positions, comm, layout):
        q, k, v = (y.unflatten(2, (self.heads, -1)) for y in self.qkv(x).chunk(3, 2))
        q, k = (training.rotated(y, positions) for y in (q, k))
        before, _ = sp.halo(torch.cat((k, v), 3), comm, left=self.window, tokens=layout.lengths)
        k, v = torch.cat((before, torch.cat((k, v), 3)), 1).chunk(2, 3)
        query, key = positions[:, None], torch.arange(-self.window, x.shape[1], device=x.device) + positions[0]
        seen = (key <= query) & (key >= query - self.window) & (key >= 0)  # no token before the first
        out = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)), attn_mask=seen)
        return self.out(out.transpose(1, 2).flatten(2))


def main():
    p = training.parser(__doc__)
    p.add_argument("--window", type=int, default=32, help="number of visible tokens before the own token")
    o = p.parse_args()
    ranks = training.start(o)
    layout = sp.Layout("contiguous", o.tokens, ranks.comm.size)
    torch.manual_seed(o.seed)  # equal parameters on all ranks
    with ranks.device:
        blocks = [training.Block(o.width, SlidingWindow(o.width, o.heads, o.window)) for _ in range(o.layers)]
        model = training.Model(o.width, blocks, o.recompute)
    training.train(o, ranks, model, layout, lambda ids, positions: model(ids, positions, ranks.comm, layout))


if __name__ == "__main__":
    main()
