"""PyTorch's scaled_dot_product_attention on hosts, one thread: CPU milliseconds of forward and of backward.

Compare with softmax_attn_perf -t 1 --algo local --heads 8 -b 8M -d float (4M with -d bfloat16), -m full|causal,
-p forward|backward.
"""
import argparse
import time

import torch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tokens", type=int, default=2048)
parser.add_argument("--heads", type=int, default=8)
parser.add_argument("--head-dim", type=int, default=128)
parser.add_argument("--repeats", type=int, default=5)
args = parser.parse_args()

torch.set_num_threads(1)
print("type      mask    forward ms  backward ms")
for dtype in (torch.float32, torch.bfloat16):
    for causal in (False, True):
        q, k, v = (
            torch.randn(1, args.heads, args.tokens, args.head_dim, dtype=dtype, requires_grad=True) for _ in range(3)
        )
        d_out = torch.randn(1, args.heads, args.tokens, args.head_dim, dtype=dtype)
        forward, backward = [], []
        for _ in range(args.repeats):
            begin = time.process_time()
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            middle = time.process_time()
            out.backward(d_out)
            forward.append(middle - begin)
            backward.append(time.process_time() - middle)
        name = str(dtype).removeprefix("torch.")
        print(
            f"{name:9} {'causal' if causal else 'full':7} {1e3 * min(forward):10.1f}  {1e3 * min(backward):11.1f}"
        )
