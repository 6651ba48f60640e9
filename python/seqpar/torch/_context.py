"""torch's context_parallel() with seqpar's attention: for models that call scaled_dot_product_attention."""

import contextlib

import torch

from .. import _abi
from ._attention import attention
from ._connect import comm as make_comm
from ._define import autocasted
from ._layout import Layout
from ._refusals import tell, telling
from ._sharding import shard, unshard

_LAYOUTS = {"striped": "striped", "dist_attn": "contiguous"}


def layout_of(tokens, comm, algorithm, kind):
    """The layout of `kind`; None: the one that balances causal attention, or the only one of the algorithm."""
    if kind is not None:
        _abi.choose("context_parallel: layout", kind, _abi.LAYOUTS)
    return Layout(kind or _LAYOUTS.get(algorithm, "zigzag"), tokens, comm.size)


def _sdpa(comm, layout, algorithm):
    @telling(comm)
    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                     enable_gqa=False):
        if attn_mask is not None:
            raise ValueError("context_parallel: attn_mask is given, expected None: use is_causal, or seqpar.torch.attention()")
        if dropout_p != 0.0:
            raise ValueError(f"context_parallel: dropout_p is {dropout_p}, expected 0: there is no dropout")
        if key.shape[1] != query.shape[1] and not enable_gqa:
            raise ValueError(f"context_parallel: got {query.shape[1]} heads and {key.shape[1]} of keys, expected enable_gqa")
        out = attention(*(x.transpose(1, 2) for x in autocasted(query, key, value)), comm, causal=is_causal, scale=scale, layout=layout,
                        algorithm=algorithm)
        return out.transpose(1, 2)

    return scaled_dot_product_attention


def _versioned(x):
    """A context in which `x` has another version, so that autograd refuses a saved `x` where its data is other data."""
    preserve = getattr(torch.autograd, "_unsafe_preserve_version_counter", None)
    if preserve is None or x.is_inference():
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    stack.enter_context(preserve(x))
    torch.autograd.graph.increment_version(x)
    return stack


@contextlib.contextmanager
def context_parallel(mesh, *, buffers=None, buffer_seq_dims=None, no_restore_buffers=None, algorithm="auto", layout=None):
    """torch.distributed.tensor.experimental.context_parallel(): inside, `buffers` are this rank's shards, and
    torch.nn.functional.scaled_dot_product_attention attends to the tokens of all ranks. The backward pass is inside
    too: it may need the shards of buffers, and checkpoints run attention again. Any number of tokens is allowed; masks and dropout are errors.

        mesh                a DeviceMesh of one dimension, or a ProcessGroup
        buffers             whole tensors with a sequence dimension: ids, labels (shifted before), positions, rotary
                            tables; all of one length. At least one, since the layout follows from its length
        buffer_seq_dims     the sequence dimension of each
        no_restore_buffers  buffers that stay shards afterwards
        algorithm, layout   attention()'s; layout: a kind, None: "zigzag" (as torch balances its load), except for
                            algorithms with another layout
    """
    comm, buffers, dims = make_comm(mesh), list(buffers or []), list(buffer_seq_dims or [])
    if not buffers or len(buffers) != len(dims):
        raise ValueError(f"context_parallel: got {len(buffers)} buffers and {len(dims)} buffer_seq_dims, expected one "
                         "dimension for each, and at least one")
    kept = {id(x) for x in no_restore_buffers or ()}
    if not kept <= {id(x) for x in buffers}:
        raise ValueError("context_parallel: no_restore_buffers has tensors that are not among the buffers")
    lengths = sorted({x.shape[dim] for x, dim in zip(buffers, dims)})
    if len(lengths) != 1:
        raise ValueError(f"context_parallel: the buffers have {lengths} tokens, expected one length")
    where = layout_of(lengths[0], comm, algorithm, layout)
    originals = [x.data for x in buffers]
    functional, original = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention
    versions = contextlib.ExitStack()
    try:
        if comm.size > 1:
            for x in {id(x): x for x in buffers}.values():
                versions.enter_context(_versioned(x))
        for x, dim in zip(buffers, dims):
            x.data = shard(x.data, where, comm, dim=dim)
        functional.scaled_dot_product_attention = _sdpa(comm, where, algorithm)
        yield
    except Exception as error:
        tell(comm, error)
        raise
    finally:
        functional.scaled_dot_product_attention = original
        for x, whole in zip(buffers, originals):
            if id(x) not in kept:
                x.data = whole
        versions.close()


def context_parallel_unshard(mesh, buffers, seq_dims, *, tokens=None, algorithm="auto", layout=None):
    """Collective: the whole tensors, on every rank, of shards from context_parallel(). `tokens` of the whole, if shards
    differ in length."""
    comm = make_comm(mesh)
    return [unshard(x, layout_of(tokens or x.shape[dim] * comm.size, comm, algorithm, layout), comm, dim=dim)
            for x, dim in zip(buffers, seq_dims)]
