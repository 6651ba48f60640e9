"""PyTorch's context parallelism on GPUs: milliseconds of forward, and of forward and backward, on the slowest rank.

One process per GPU, for example torchrun --nproc-per-node 2 context_parallel.py --tokens 8192,32768. Compare with
softmax_attn_perf -g 2 -B -b BYTES of equal shapes. "ring" is torch.distributed.tensor.experimental's context_parallel
with cuDNN, with both of its rotations; it does not support windows. "flex" is compiled flex_attention on gathered keys
and values, which is PyTorch's way to shard attention with a window.
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from timing import slowest_rank
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    from torch.distributed.tensor.experimental._context_parallel._attention import _cp_options
except ImportError:
    from torch.distributed.tensor.experimental._attention import _cp_options


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="8192,32768", help="of the whole sequence, a list")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--rotations", default="allgather,alltoall")
    parser.add_argument("--window", type=int, default=0, help="flex_attention: visible tokens before the own one")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=6)
    return parser.parse_args()


def both(attend, inputs, repeats):
    """Times of forward, and of forward and backward."""
    d_out = torch.randn_like(attend())

    def step():
        torch.autograd.grad(attend(), inputs, d_out)

    return slowest_rank(attend, repeats), slowest_rank(step, repeats)


def ring(args, mesh, tokens, causal, rotation):
    set_rotate_method(rotation)
    _cp_options.enable_load_balance = causal
    whole = [
        torch.randn(1, args.heads, tokens, args.head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    ]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), context_parallel(mesh, buffers=whole, buffer_seq_dims=[2, 2, 2]):
        q, k, v = (x.detach().clone().requires_grad_() for x in whole)
        return both(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), (q, k, v), args.repeats)


def flex(args, mesh, tokens):
    from torch.distributed.tensor.experimental._context_parallel._cp_custom_ops import flex_cp_allgather
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    own = tokens // mesh.size()
    first = mesh.get_local_rank() * own
    q, k, v = (
        torch.randn(
            1, args.heads, own, args.head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True
        )
        for _ in range(3)
    )

    def seen(batch, head, query, key):
        return (query + first >= key) & (query + first - key <= args.window)

    block_mask = create_block_mask(seen, None, None, own, tokens, device="cuda")
    compiled = torch.compile(flex_attention, mode="max-autotune-no-cudagraphs")
    group = mesh.get_group().group_name

    def attend():
        keys, values = flex_cp_allgather(k, v, 2, group)
        return compiled(q, keys, values, block_mask=block_mask)

    return both(attend, (q, k, v), args.repeats)


def main():
    args = parse()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))

    def row(name, tokens, mask, measure):
        try:
            forward, step = measure()
            text = f"{forward:11.2f}  {step:9.2f}"
        except Exception as error:  # noqa: BLE001, an unsupported variant is also a row
            text = f"cannot: {str(error)[:200]!r}"
        if dist.get_rank() == 0:
            print(f"{name:16} {tokens:7} {mask:7} {text}", flush=True)

    if dist.get_rank() == 0:
        print(f"PyTorch {torch.__version__}, {dist.get_world_size()} ranks")
        print("by                tokens mask     forward ms    step ms")
    for tokens in map(int, args.tokens.split(",")):
        if args.window:
            row("flex", tokens, "window", lambda: flex(args, mesh, tokens))
        for mask in filter(None, args.masks.split(",")):
            for rotation in args.rotations.split(","):
                row(f"ring {rotation}", tokens, mask, lambda: ring(args, mesh, tokens, mask == "causal", rotation))
    dist.destroy_process_group()


main()
