"""Common code of jax_checks.py's checks: JAX on as many devices as the command line says, random inputs,
comparisons."""

import os
import sys

import jax

DEVICES, ON_GPU = int(sys.argv[1]), os.environ.get("SEQPAR_TEST_DEVICE") == "cuda"
if ON_GPU:
    jax.config.update("jax_default_matmul_precision", "highest")  # of the reference computations
else:
    jax.config.update("jax_platforms", "cpu")  # also where there are GPUs
    jax.config.update("jax_num_cpu_devices", DEVICES)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, PartitionSpec as P  # noqa: E402

EPS = 2.0 ** -23
SEED = int(os.environ.get("SEQPAR_SEED") or np.random.SeedSequence().entropy % 2 ** 31)
MESH = Mesh(np.array(jax.devices()[:DEVICES]), ("sp",))
DK, DV = (16, 32) if ON_GPU else (8, 4)  # kernels of linear attention need multiples of 16 there


def whole(n, *shape):
    return jnp.asarray(np.random.default_rng([SEED, n]).standard_normal(shape), jnp.float32)


def same(a, b, terms=1):
    np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=4 * EPS * terms, atol=4 * EPS * terms)


def sharded(function, inputs, outputs, mesh=MESH):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False))


def raises(error, text, function):
    try:
        jax.block_until_ready(function())
    except error as caught:
        assert text in str(caught), f"{text!r} is not in {caught}"
        return
    raise AssertionError(f"raised no {error.__name__} with {text!r}")


SEQ = P(None, "sp")


def compare(comm, function, exact, arrays, specs, out_spec=SEQ, terms=50, close=same):
    """function(*shards) and its gradients under shard_map, against exact(*wholes)."""
    out = exact(*arrays)
    grad = whole(99, *out.shape)
    d_exact = jax.grad(lambda *a: (exact(*a) * grad).sum(), tuple(range(len(arrays))))(*arrays)
    mine = sharded(function, specs, out_spec)
    close(mine(*arrays), out, terms)
    d_mine = jax.jit(jax.grad(lambda *a: (mine(*a) * grad).sum(), tuple(range(len(arrays)))))(*arrays)
    for one, other in zip(d_mine, d_exact):
        close(one / max(1, abs(other).max()), other / max(1, abs(other).max()), 2 * terms)
