"""Attention inside jax.shard_map, on two CPU devices; differentiable."""

import functools
import jax
jax.config.update("jax_platforms", "cpu")              # delete both lines to run on GPUs
jax.config.update("jax_num_cpu_devices", 2)
import numpy as np
import seqpar.jax as sp
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("sp",))
comm = sp.Comm(mesh, "sp")

@jax.jit
@functools.partial(jax.shard_map, mesh=mesh, in_specs=P(None, "sp"), out_specs=P(None, "sp"), check_vma=False)
def attend(x):                                         # [batch][local tokens][heads][dim]
    return sp.attention(x, x, x, comm, causal=True, algorithm="ulysses")

x = jax.random.normal(jax.random.key(0), (1, 1024, 8, 64))
gradient = jax.grad(lambda x: (attend(x) ** 2).sum())(x)
alone = jax.nn.dot_product_attention(x, x, x, is_causal=True)
print("largest difference from attention on one device:", abs(np.asarray(attend(x)) - np.asarray(alone)).max())
comm.close()
