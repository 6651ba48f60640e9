#!/usr/bin/env python3
"""Trains on prompts with several answers each: the answers share the prompt's keys and do not see each other.

    python examples/train_shared_prefix.py
    torchrun --nproc-per-node 2 examples/train_shared_prefix.py --sp 2            the same losses

One sequence holds a prompt and its answers, as GRPO and preference training need it. The prompt is computed once, not once
per answer. The mask has two slices per answer; its layout gives each rank equally many tokens and nearly equal work. Only
tokens of answers have labels. Rotary positions of each answer start behind the prompt.
"""

import torch

import seqpar.torch as sp
import training
from train_gpt import Attention


def main():
    p = training.parser(__doc__)
    p.add_argument("--answers", type=int, default=4, help="answers per prompt")
    o = p.parse_args()
    ranks = training.start(o)
    prompt = o.tokens // 3
    # Answers of different lengths, in the ratio 1 : 2 : 3 : ...
    total = o.answers * (o.answers + 1) // 2
    bounds = [prompt + (o.tokens - prompt) * i * (i + 1) // 2 // total for i in range(o.answers + 1)]
    lengths = [b - a for a, b in zip(bounds, bounds[1:])]
    mask = sp.Mask.shared_prefix(prompt, lengths)
    layout = sp.solve_layout(mask, ranks.comm.size)
    positions = torch.cat([torch.arange(prompt), *(prompt + torch.arange(n) for n in lengths)])
    # The last token of an answer has no label: the next token belongs to another answer.
    labeled = torch.ones(o.tokens, dtype=torch.bool)
    labeled[:prompt] = False
    labeled[torch.tensor(bounds[1:]) - 1] = False

    def sharded(batch):
        labels = batch.roll(-1, 1).masked_fill(~labeled, -100)
        return (*(sp.shard(x, layout, ranks.comm) for x in (batch, labels)), positions[layout.positions(ranks.comm.rank)])

    torch.manual_seed(o.seed)  # equal parameters on all ranks
    with ranks.device:
        blocks = [training.Block(o.width, Attention(o.width, o.heads, 1)) for _ in range(o.layers)]
        model = training.Model(o.width, blocks, o.recompute)
    training.train(o, ranks, model, layout,
                   lambda ids, places: model(ids, places, ranks.comm, mask=mask, layout=layout, algorithm=o.algorithm),
                   sharded=sharded, labels=int(labeled.sum()))


if __name__ == "__main__":
    main()
