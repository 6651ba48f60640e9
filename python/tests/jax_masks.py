"""Masks of other forms as slices of seqpar.jax."""

from jax_support import raises  # first: it sets JAX up

import jax.numpy as jnp
import numpy as np

import seqpar.jax as sp


def masks_of_other_forms():
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash
    document = np.array([0] * 70 + [1] * 3 + [2] * 150 + [3] * 77)
    query, key = np.arange(300)[:, None], np.arange(300)[None]
    for name, dense, count in (("documents", (document[:, None] == document) & (query >= key), 4),
                               ("window", (query >= key) & (query - key < 40), 2),
                               ("prefix", (key < 90) | (query >= key), 2),
                               ("every third key", (query >= key) & (key % 3 == 0), None),
                               ("nothing", np.zeros((300, 300), bool), 1)):
        for mask in (sp.Mask.from_dense(dense), sp.Mask.from_dense(jnp.asarray(dense)),
                     sp.Mask.from_block_mask(splash.NumpyMask(dense))):
            assert (mask.dense() == dense).all(), name
            assert count is None or len(mask.slices) == count, f"{name}: {len(mask.slices)} slices, expected {count}"
    for given, dense, count in ((splash.CausalMask((300, 300)), query >= key, 1),
                                (splash.LocalMask((300, 300), (39, 0), 0), (query >= key) & (query - key < 40), 2)):
        mask = sp.Mask.from_block_mask(given)
        assert (mask.dense() == dense).all() and len(mask.slices) == count, given
    raises(ValueError, "expected bool [tokens][tokens]", lambda: sp.Mask.from_dense(np.ones((3, 3))))
    raises(ValueError, "shape (2, 8, 8), expected (tokens, tokens)",
           lambda: sp.Mask.from_block_mask(splash.MultiHeadMask([splash.CausalMask((8, 8))] * 2)))
