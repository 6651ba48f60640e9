#!/usr/bin/env python3
"""Trains a causal transformer on bytes in JAX, its sequences sharded over the devices of one process.

    python examples/shard_map.py --devices 1
    python examples/shard_map.py --devices 2                                      CPU devices; the same losses
    python examples/shard_map.py --gpu --tokens 65536 --width 1024 --heads 8      all GPUs of the process

Each line contains the step, the loss (nats per byte), tokens per second, and memory. --plot writes the losses as a PNG.
"""

import argparse
import functools
import pathlib
import resource
import time

import jax
import numpy as np

from plot_losses import plot


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--devices", type=int, default=2, help="number of CPU devices")
    p.add_argument("--gpu", action="store_true", help="run on GPUs")
    p.add_argument("--data", default="/usr/share/common-licenses", help="a file, or a folder of files")
    for name, value, text in (("layers", 2, "blocks of the model"), ("width", 64, "numbers of a token between the blocks"),
                              ("heads", 2, "of attention"), ("tokens", 256, "of a sequence, over all devices"),
                              ("batch", 2, "sequences of a step"), ("steps", 20, "of training"), ("seed", 0, "of parameters and batches")):
        p.add_argument(f"--{name}", type=int, default=value, help=f"{text} ({value})")
    p.add_argument("--lr", type=float, default=0.1, help="learning rate (0.1)")
    p.add_argument("--algorithm", default="zigzag", help="attention algorithm; see seqpar.jax (zigzag)")
    p.add_argument("--plot", help="a PNG of the losses")
    return p.parse_args()


def parameters_of(o):
    keys = iter(jax.random.split(jax.random.key(o.seed), 2 + 4 * o.layers))
    normal = lambda *shape: jax.random.normal(next(keys), shape) * shape[0] ** -0.5
    layer = lambda: {"qkv": normal(o.width, 3 * o.width), "out": normal(o.width, o.width), "up": normal(o.width, 4 * o.width),
                     "down": normal(4 * o.width, o.width)}
    return {"embedding": normal(256, o.width), "layers": [layer() for _ in range(o.layers)], "head": normal(o.width, 256)}


def main():
    o = parse()
    if not o.gpu:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", o.devices)
    import jax.numpy as jnp
    from jax.sharding import Mesh, PartitionSpec as P

    import seqpar.jax as sp

    mesh = Mesh(np.array(jax.devices()), ("sp",))
    comm = sp.Comm(mesh, "sp")
    layout = sp.Layout("zigzag", o.tokens, comm.size)
    kind = jnp.bfloat16 if o.gpu else jnp.float32  # attention's fast kernels need 16 bits
    normalized = lambda x: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def rotated(x, positions):
        half = x.shape[-1] // 2
        angles = positions[:, None, None] * 10000.0 ** (-jnp.arange(half) / half)
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate((a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)), -1)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(None, "sp"), P(None, "sp"), P("sp")), out_specs=P("sp"),
                       check_vma=False)
    def losses_of(parameters, ids, labels, positions):
        """This rank's part of the mean loss, from its tokens."""
        x = parameters["embedding"][ids]
        for layer in parameters["layers"]:
            heads = (normalized(x) @ layer["qkv"]).reshape(*ids.shape, o.heads, -1)
            q, k, v = jnp.split(heads, 3, -1)
            q, k, v = (y.astype(kind) for y in (rotated(q, positions), rotated(k, positions), v))
            out = sp.attention(q, k, v, comm, causal=True, layout=layout, algorithm=o.algorithm)
            x = x + out.astype(x.dtype).reshape(x.shape) @ layer["out"]
            x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
        scores = jax.nn.log_softmax(normalized(x) @ parameters["head"])
        found = jnp.take_along_axis(scores, jnp.maximum(labels, 0)[..., None], -1)[..., 0]
        return -jnp.where(labels >= 0, found, 0).sum()[None] / (o.batch * (o.tokens - 1))

    @jax.jit
    def step_of(parameters, ids, labels, positions):
        loss, gradients = jax.value_and_grad(lambda p: losses_of(p, ids, labels, positions).sum())(parameters)
        norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(gradients)))
        rate = o.lr / jnp.maximum(1, norm)  # limits a step to lr
        return loss, jax.tree.map(lambda p, g: p - rate * g, parameters, gradients)

    path = pathlib.Path(o.data)
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.is_symlink()) if path.is_dir() else [path]
    data = np.frombuffer(b"".join(p.read_bytes() for p in files), np.uint8).astype(np.int32)
    random, parameters, losses = np.random.default_rng(o.seed), parameters_of(o), []
    print(f"{sum(x.size for x in jax.tree.leaves(parameters)) / 1e6:.2f} M parameters, {comm.size} devices ({comm.platform})")
    for step in range(o.steps):
        started = time.perf_counter()
        ids = np.stack([data[i:i + o.tokens] for i in random.integers(max(1, len(data) - o.tokens), size=o.batch)])
        labels = np.concatenate((ids[:, 1:], np.full((o.batch, 1), -1, np.int32)), 1)  # shifted before they are sharded
        loss, parameters = step_of(parameters, sp.shard(ids, layout), sp.shard(labels, layout), sp.positions(layout))
        losses.append(float(loss))
        rate = o.tokens * o.batch / (time.perf_counter() - started)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"step {step:4d}  loss {losses[-1]:.6f}  {rate:10.0f} tokens/s  {memory:7.0f} MiB", flush=True)
    comm.close()
    if o.plot:
        plot(losses, o.plot)


if __name__ == "__main__":
    main()
