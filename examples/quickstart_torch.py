"""torchrun --nproc-per-node 2 quickstart_torch.py: softmax and linear attention over one sharded sequence."""

import torch
import torch.distributed as dist
import seqpar.torch as sp

dist.init_process_group("gloo")                        # "nccl": on GPUs
comm = sp.comm(dist.group.WORLD)
ids = torch.randint(256, (1, 1024), generator=torch.Generator().manual_seed(0))        # equal on all ranks
layout = sp.Layout("zigzag", tokens=1024, ranks=comm.size)
x, labels, positions = sp.shard_batch(ids, layout, comm)                               # this rank's tokens

q = k = v = torch.randn(*x.shape, 8, 64, requires_grad=True)                           # [batch][tokens][heads][dim]
out = sp.attention(q, k, v, comm, causal=True, layout=layout, algorithm="zigzag")
straight = sp.Layout("contiguous", tokens=1024, ranks=comm.size)
y = sp.redistribute(out, layout, straight, comm)
y = sp.gla(y, y, y, torch.nn.functional.logsigmoid(y), comm, layout=straight)          # linear attention, ZeCO
y.square().sum().backward()                                                            # collective
print(sp.explain(q, k, v, comm, causal=True, layout=layout)["algorithm"])              # the choice of "auto"
sp.close()                                                                             # collective
dist.destroy_process_group()
