"""Custom calls with derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name


class Operator:
    """A collective with its derivative. forward(arrays, token) returns (results, token, residuals for backward);
    backward(residuals, gradients of the results, token) returns (gradients of the arrays, token). The token of the
    backward pass is the gradient of the forward pass's, so that the calls run in reverse order there. Without
    differentiation, `alone` replaces forward."""

    def __init__(self, forward, backward, alone=None):
        self.forward, self.backward, self.alone = forward, backward, alone or forward


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(operator, token, *arrays):
    results, token, _ = operator.alone(arrays, token)
    return results, token


def _forward(operator, token, *arrays):
    results, token, kept = operator.forward(arrays, token)
    token = checkpoint_name(token, "seqpar")  # else a policy that saves the results would repeat the call for its token
    return (results, token), (kept, arrays)


def _backward(operator, saved, gradients):
    (kept, arrays), (d_results, d_token) = saved, gradients
    none = lambda x: np.zeros(x.shape, jax.dtypes.float0)
    if not any(jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays):  # such as token ids: nothing to send back
        return (d_token, *map(none, arrays))
    grads, token = operator.backward(kept, d_results, d_token)
    return (token, *(g if jnp.issubdtype(x.dtype, jnp.inexact) else none(x) for g, x in zip(grads, arrays)))


_run.defvjp(_forward, _backward)


def _reverse_only(operator, *arrays):
    """_run(), with a helpful error where JAX would report that custom_vjp has no forward mode. In shard_map without jit
    this is not reached: JAX cannot hash the function."""
    try:
        return _run(operator, *arrays)
    except TypeError as error:
        if not any(words in str(error) for words in ("forward-mode", "unhashable type: 'Unhashable'")):
            raise
        raise TypeError("seqpar.jax: a derivative in forward mode (jvp, jacfwd): not supported, expected reverse mode (grad, "
                        "value_and_grad, vjp)") from error


def apply(comm, operator, *arrays):
    """The results, as a tuple, named "seqpar" for jax.checkpoint's policies."""
    with comm.ordered() as (token, given):
        results, token = _reverse_only(operator, token, *arrays)
        given.append(token)
    return tuple(checkpoint_name(x, "seqpar") for x in results)
