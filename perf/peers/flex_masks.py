"""PyTorch's flex context parallelism on GPUs with the masks of softmax_attn_perf --mask: milliseconds of forward, and of
forward and backward, on the slowest rank.

One process per GPU, for example torchrun --nproc-per-node 2 flex_masks.py --tokens 65536. Keys and values are gathered
(flex_cp_allgather); compiled flex_attention computes the block mask of a rank's queries, which PyTorch's PTRR load
balancer distributes. All masks share one mask_mod, two intervals of keys for each query, and so one compilation.
"""
import argparse
import math
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._context_parallel._cp_custom_ops import flex_cp_allgather
from torch.distributed.tensor.experimental._context_parallel._load_balancer import _PTRRLoadBalancer
from timing import slowest_rank
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128


def intervals(name, tokens):
    """int32 [4][tokens]: a query sees the keys of [0] to [1] - 1 and of [2] to [3] - 1."""
    at = torch.arange(tokens, dtype=torch.int32)
    first, second = torch.zeros(2, tokens, dtype=torch.int32), torch.zeros(2, tokens, dtype=torch.int32)
    second[1] = at + 1
    if name == "packed":  # lognormal lengths
        random = torch.Generator().manual_seed(7)
        begin = 0
        while begin < tokens:
            length = max(1, round(math.exp(math.log(tokens / 32) + 1.2 * torch.randn(1, generator=random).item())))
            second[0, begin:begin + length] = begin
            begin += length
    elif name == "prefix-lm":
        second[1, :tokens // 4] = tokens // 4
    elif name == "video":
        second[1] = (at // (tokens // 16) + 1) * (tokens // 16)
    else:  # a shared prefix and 16 answers
        prompt = tokens // 8
        answer = (tokens - prompt) // 16
        later = at >= prompt
        first[1][later] = prompt
        second[0][later] = (prompt + (at - prompt) // answer * answer)[later]
    return torch.cat((first, second)).cuda()


def block_mask(bounds, queries, keys, mask_mod):
    """The BlockMask of these queries and keys, which are positions in the order of memory."""
    any_key, all_keys = [], []
    for part in queries.split(2048):
        low, high, low2, high2 = (x[part.long()][:, None] for x in bounds)
        seen = ((keys >= low) & (keys < high)) | ((keys >= low2) & (keys < high2))
        blocks = seen.view(part.numel() // BLOCK, BLOCK, -1, BLOCK)
        any_key.append(blocks.any(3).any(1))
        all_keys.append(blocks.all(3).all(1))
    any_key, all_keys = torch.cat(any_key), torch.cat(all_keys)

    def lists(chosen):
        order = torch.argsort(chosen.int(), dim=1, descending=True, stable=True)
        return chosen.sum(1).int()[None, None], order.int()[None, None].contiguous()

    return BlockMask.from_kv_blocks(*lists(any_key & ~all_keys), *lists(all_keys), BLOCK_SIZE=BLOCK, mask_mod=mask_mod,
                                    seq_lengths=(queries.numel(), keys.numel()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65536, help="of the whole sequence")
    parser.add_argument("--masks", default="video,shared-prefix,prefix-lm,packed")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=4)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    ranks, rank, tokens = dist.get_world_size(), dist.get_rank(), args.tokens
    group = init_device_mesh("cuda", (ranks,)).get_group().group_name
    own = tokens // ranks
    q, k, v = (torch.randn(1, args.heads, own, args.head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    d_out = torch.randn_like(q)
    compiled = torch.compile(flex_attention)
    if rank == 0:
        print(f"PyTorch {torch.__version__}, {ranks} ranks, {tokens} tokens, {torch.cuda.get_device_name()}\n"
              "mask            forward ms    step ms   first call s", flush=True)
    straight = torch.arange(tokens, device="cuda", dtype=torch.int32)
    order = straight.clone()
    own_bounds = torch.zeros(4, own, device="cuda", dtype=torch.int32)
    low, high, low2, high2 = own_bounds

    def mask_mod(batch, head, query, key):  # of all masks, so that all use one compilation
        at = order[key]
        return ((at >= low[query]) & (at < high[query])) | ((at >= low2[query]) & (at < high2[query]))

    for name in args.masks.split(","):
        bounds = intervals(name, tokens)
        start = time.perf_counter()
        whole = block_mask(bounds, straight, straight, mask_mod)
        order.copy_(_PTRRLoadBalancer(whole, ranks)._generate_indices().view(-1))
        mine = order[rank * own:(rank + 1) * own]
        own_bounds.copy_(bounds[:, mine.long()])
        own_mask = block_mask(bounds, mine, order, mask_mod)

        def attend():
            return compiled(q, *flex_cp_allgather(k, v, 2, group), block_mask=own_mask)

        def step():
            torch.autograd.grad(attend(), (q, k, v), d_out)

        try:
            step()
            torch.cuda.synchronize()
            compile_s = time.perf_counter() - start
            text = f"{slowest_rank(attend, args.repeats, warmups=1):10.2f} {slowest_rank(step, args.repeats, warmups=1):10.2f} {compile_s:12.1f}"
        except Exception as error:  # noqa: BLE001, a mask that fails is also a row
            text = f"cannot: {str(error)[:300]!r}"
        if rank == 0:
            print(f"{name:14} {text}", flush=True)
    dist.destroy_process_group()


main()
