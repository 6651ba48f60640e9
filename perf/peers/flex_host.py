"""PyTorch's compiled flex_attention and seqpar on hosts, one thread, forward: CPU milliseconds in the same process.

Masks: full, causal, window (a token sees 256 tokens), documents (packed sequences, lengths from a fixed seed). PyTorch
has no backward pass of flex_attention on CPUs. Compiling needs a C++ compiler. The environment: PYTHONPATH with this
repository's python/, SEQPAR_LIBRARY and SEQPAR_ATTN_LIBRARY.
"""
import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import seqpar.torch as sp

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tokens", type=int, default=2048)
parser.add_argument("--heads", type=int, default=8)
parser.add_argument("--head-dim", type=int, default=128)
parser.add_argument("--repeats", type=int, default=5)
args = parser.parse_args()
WINDOW = 256


def document_bounds(tokens):
    random = torch.Generator().manual_seed(7)
    bounds = [0]
    while bounds[-1] < tokens:
        bounds.append(min(tokens, bounds[-1] + int(torch.randint(64, 513, (), generator=random))))
    return bounds


def milliseconds(call):
    times = []
    for _ in range(args.repeats + 1):
        begin = time.process_time()
        out = call()
        times.append(time.process_time() - begin)
    return out, 1e3 * min(times[1:])


torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
comm = sp.comm(dist.group.WORLD)
bounds = document_bounds(args.tokens)
document = torch.bucketize(torch.arange(args.tokens), torch.tensor(bounds[1:]), right=True)
masks = {
    "full": (None, {}),
    "causal": (lambda b, h, i, j: i >= j, {"causal": True}),
    "window": (lambda b, h, i, j: (i >= j) & (i - j < WINDOW), {"causal": True, "window": (WINDOW - 1, 0)}),
    "documents": (
        lambda b, h, i, j: (i >= j) & (document[i] == document[j]),
        {"causal": True, "cu_seqlens": tuple(bounds)},
    ),
}
flex = torch.compile(flex_attention)
print(f"{args.tokens} tokens, {args.heads} heads of {args.head_dim}, {len(bounds) - 1} documents")
print("type      mask       flex ms  seqpar ms  ratio  largest difference")
with torch.no_grad():
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (torch.randn(1, args.tokens, args.heads, args.head_dim).to(dtype) for _ in range(3))
        heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        for name, (visible, options) in masks.items():
            block_mask = visible and create_block_mask(visible, None, None, args.tokens, args.tokens, device="cpu")
            theirs, flex_ms = milliseconds(lambda: flex(*heads_first, block_mask=block_mask))
            ours, our_ms = milliseconds(lambda: sp.attention(q, k, v, comm, **options))
            far = (ours.float() - theirs.transpose(1, 2).float()).abs().max().item()
            print(f"{str(dtype).removeprefix('torch.'):9} {name:9} {flex_ms:8.1f}  {our_ms:9.1f}  "
                  f"{flex_ms / our_ms:5.2f}  {far:.1e}", flush=True)
sp.close()
dist.destroy_process_group()
