"""Attention by the caller's kernel on whole sequences: between the exchanges of Ulysses, or after a gather of keys and
values."""

import dataclasses
import functools
import typing

import torch

from .. import _shapes
from . import _documents, _ops
from ._agreement import agree_once
from ._collectives import all_gather, to_heads, to_sequence
from ._define import define
from ._layout import Layout, bounds_of, in_order, require_fit
from ._readable import Copied, ReadableGradient, ReadableInput

ALGORITHMS = ("ulysses", "allgather_kv")


@dataclasses.dataclass(frozen=True)
class LocalCall:
    """The arguments of a kernel for q [batch][queries][heads][dim] and k, v [batch][keys][kv heads][dim].

    Masks are aligned at the ends, as in FlashAttention: query i is aligned with key i + keys - queries, in each packed
    sequence.

    causal, window, scale, softcap  as in attention()
    sinks                           of the kernel's heads
    cu_seqlens_q, cu_seqlens_k      bounds of packed sequences; None: one sequence
    """

    causal: bool
    window: tuple
    scale: float
    softcap: float
    sinks: "torch.Tensor | None" = None
    cu_seqlens_q: "tuple[int, ...] | None" = None
    cu_seqlens_k: "tuple[int, ...] | None" = None

    def of_document(self):
        """The call of a packed sequence alone."""
        return LocalCall(self.causal, self.window, self.scale, self.softcap, self.sinks)

    def mask(self, queries, keys, device=None):
        """bool [queries][keys]: the keys that each query sees; None: all."""
        left, right = self.window
        right = 0 if self.causal else right
        if left < 0 and right < 0 and self.cu_seqlens_q is None:
            return None
        seen = []
        parts = zip(self.cu_seqlens_q or (0, queries), (self.cu_seqlens_q or (0, queries))[1:],
                    self.cu_seqlens_k or (0, keys), (self.cu_seqlens_k or (0, keys))[1:])
        for q0, q1, k0, k1 in parts:
            i = torch.arange(q0, q1, device=device)[:, None] - q1 + k1
            j = torch.arange(keys, device=device)[None, :]
            part = (j >= k0) & (j < k1)
            part = part & (j >= i - left) if left >= 0 else part.expand(q1 - q0, keys)
            seen.append(part & (j <= i + right) if right >= 0 else part)
        return torch.cat(seen)


def _known(condition):
    """A condition of sizes as a bool: under torch.compile with dynamic sizes it is a symbol, which a branch makes a guard."""
    return True if condition else False


def sdpa(q, k, v, call):
    """torch.nn.functional.scaled_dot_product_attention as a `kernel` of attention(). Packed sequences are a batch, or a few: a
    mask of all tokens takes much memory, and masked NaN and infinity would reach other sequences."""
    if call.softcap or call.sinks is not None:
        raise ValueError("sdpa: got softcap or sinks, expected none: scaled_dot_product_attention has neither")
    if call.cu_seqlens_q is not None:
        return _documents.attend(lambda *qkv: sdpa(*qkv, call.of_document()), q, k, v, call.cu_seqlens_q, call.cu_seqlens_k, call.causal)
    simple = call.causal and call.window[0] < 0 and q.shape[1] == k.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), scale=call.scale, enable_gqa=_known(k.shape[2] != q.shape[2]), is_causal=_known(simple),
        attn_mask=None if simple else call.mask(q.shape[1], k.shape[1], q.device))
    return out.transpose(1, 2)


def _mask_mod(queries, keys, call, device):
    """The mask of a call in FlexAttention's form; None: all keys. On hosts, PyTorch 2.15 has no kernel for a mask that a compiled
    graph computes as a tensor."""
    if device.type == "cuda":
        seen = call.mask(queries, keys, device)
        return None if seen is None else lambda b, h, i, j: seen[i, j]
    left, right, more = call.window[0], 0 if call.causal else call.window[1], keys - queries
    if left < 0 and right < 0:
        return None
    if left < 0:
        return lambda b, h, i, j: j <= i + more + right
    if right < 0:
        return lambda b, h, i, j: j >= i + more - left
    return lambda b, h, i, j: (j >= i + more - left) & (j <= i + more + right)


def flex(q, k, v, call):
    """torch.nn.attention.flex_attention as a `kernel` of attention(). A compiled graph has one call, whose blocks contain tokens of
    one packed sequence each; otherwise, where all scores are in memory, packed sequences are batches, as for sdpa."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    if call.sinks is not None:
        raise ValueError("flex: got sinks, expected none")
    compiled = torch.compiler.is_compiling()

    def masked(q, k, v, mask_mod):
        if compiled and not q.is_cuda:  # PyTorch 2.15 reads slices from wrong addresses on hosts
            q, k, v = (Copied.apply(x) for x in (q, k, v))
        block_mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, q.shape[1], k.shape[1], device=q.device)
        capped = None if not call.softcap else lambda score, b, h, i, j: call.softcap * torch.tanh(score / call.softcap)
        out = flex_attention(*(x.transpose(1, 2) for x in (q, k, v)), score_mod=capped, block_mask=block_mask, scale=call.scale,
                             enable_gqa=_known(k.shape[2] != q.shape[2]))
        return out.transpose(1, 2)

    if call.cu_seqlens_q is not None:
        if compiled:
            return _documents.attend_blocks(masked, q, k, v, call)
        return _documents.attend(lambda *qkv: flex(*qkv, call.of_document()), q, k, v, call.cu_seqlens_q, call.cu_seqlens_k, call.causal)
    return masked(q, k, v, _mask_mod(q.shape[1], k.shape[1], call, q.device))


@functools.lru_cache(maxsize=64)
def _bounds(cu_seqlens, device):
    """(int32 tensor on the device, the longest sequence) of packed sequences."""
    longest = max((end - begin for begin, end in zip(cu_seqlens, cu_seqlens[1:])), default=0)
    with torch.inference_mode(False):  # a later call may need a gradient
        return torch.tensor(cu_seqlens, dtype=torch.int32, device=device), longest


def _flash_attn():
    import flash_attn  # torch.compile traces this, and not importlib
    return flash_attn


def _flash_attn_interface():
    import flash_attn_interface
    return flash_attn_interface


def _flash(name, package):
    def kernel(q, k, v, call):
        if call.sinks is not None:
            raise ValueError(f"{name}: got sinks, expected none")
        module = package()
        options = dict(softmax_scale=call.scale, causal=call.causal, window_size=call.window, softcap=call.softcap)
        if call.cu_seqlens_q is None:
            out = module.flash_attn_func(q, k, v, **options)
            return out[0] if isinstance(out, tuple) else out  # some releases also return the log-sum-exps
        (bounds_q, longest_q), (bounds_k, longest_k) = (_bounds(x, q.device) for x in (call.cu_seqlens_q, call.cu_seqlens_k))
        out = module.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), bounds_q, bounds_k, longest_q, longest_k,
                                            **options)
        return (out[0] if isinstance(out, tuple) else out)[None]

    kernel.__name__ = kernel.__qualname__ = name
    kernel.__doc__ = f"FlashAttention as a `kernel` of attention(); needs the package {package.__name__[1:]}."
    return kernel


# By transformers' names.
KERNELS = {"sdpa": sdpa, "flex_attention": flex, "flash_attention_2": _flash("flash_attention_2", _flash_attn),
           "flash_attention_3": _flash("flash_attention_3", _flash_attn_interface)}


def kernel_of(kernel):
    """A `kernel` of attention(): a function or a name."""
    if isinstance(kernel, str):
        if kernel not in KERNELS:
            raise ValueError(f"attention: kernel is {kernel!r}, expected a function or one of {', '.join(KERNELS)}")
        return KERNELS[kernel]
    if kernel is not None and not callable(kernel):
        raise TypeError(f"attention: kernel: got {_shapes.shown(kernel)}, expected a function or one of {', '.join(KERNELS)}")
    return kernel


class _Tokens(typing.NamedTuple):
    """The needed part of a Layout, which cannot be created inside of a compiled graph."""

    kind: str
    tokens: int
    lengths: list
    key: str


@functools.lru_cache(maxsize=64)
def _order(key, inverse, device):
    order = Layout.from_key(key).order()
    return (torch.argsort(order) if inverse else order).to(device)


def _order_outputs(like, layout, inverse):
    return (like.new_empty(Layout.from_key(layout).tokens, dtype=torch.int64),)


# An operator, so that a compiled graph contains a call instead of a constant of the sequence's length.
layout_order = define("layout_order(Tensor like, str layout, bool inverse) -> Tensor", _order_outputs,
                      lambda made, like, layout, inverse: made[0].copy_(_order(layout, inverse, like.device)))


@torch.compiler.assume_constant_result
def _runs(key, rank):
    """((first position, one past the last), ...) of a rank's tokens, in order."""
    positions = Layout.from_key(key).positions(rank)
    if not len(positions):
        return ()
    breaks = (torch.nonzero(positions.diff() != 1)[:, 0] + 1).tolist()
    edges = [0, *breaks, len(positions)]
    return tuple((int(positions[i]), int(positions[j - 1]) + 1) for i, j in zip(edges, edges[1:]))


@torch.compiler.assume_constant_result
def _heads_of(heads, kv_heads, members, member):
    """(query heads, first of them; kv heads, first of them) of a member."""
    first, count = _ops.heads_of_member(heads, heads, members, member)
    first_kv, count_kv = _ops.heads_of_member(kv_heads, heads, members, member)
    return first, count, first_kv, count_kv


def _constant(size):
    """A size as an int, which torch.compile with dynamic sizes makes a constant of the graph."""
    return len(range(size)) if torch.compiler.is_compiling() else size


def _block(kernel, q, k, v, begin, end, bounds, call):
    """Runs the kernel for the queries at a range of positions of the whole, with whole k and v."""
    left = call["window"][0]
    if bounds is None:
        first, last = 0, end if call["causal"] else k.shape[1]
        if call["causal"] and left >= 0:
            first = max(0, begin - left)
        queries = keys = None
    else:
        documents = [(s, e) for s, e in zip(bounds, bounds[1:]) if s < e and e > begin and s < end]
        first, last = documents[0][0], end if call["causal"] else documents[-1][1]
        queries = tuple(max(s, begin) - begin for s, _ in documents) + (end - begin,)
        keys = tuple(s - first for s, _ in documents) + (last - first,)
    call = LocalCall(**call, cu_seqlens_q=queries, cu_seqlens_k=keys)
    return ReadableGradient.apply(kernel(q, k[:, first:last], v[:, first:last], call))


def _nothing(q, k, v, sinks):
    """0 with gradients of zeros, on a rank whose kernel does not run. The last product saves a tensor for the backward pass,
    as a kernel does: torch.utils.checkpoint calls again only the exchanges before the last saved tensor."""
    zero = q[:0].sum() * k[:0].sum() * v[:0].sum()
    return zero if sinks is None else zero * (1 + sinks[:0].sum())


def _by_heads(kernel, q, k, v, comm, layout, bounds, call):
    tokens, heads, kv_heads = layout.lengths, _constant(q.shape[2]), _constant(k.shape[2])
    q = to_heads(q, comm, tokens=tokens)
    k, v = (to_heads(x, comm, query_heads=heads, tokens=tokens) for x in (k, v))
    first, count, first_kv, count_kv = _heads_of(heads, kv_heads, *map(_constant, (comm.size, comm.rank)))
    permuted = not in_order(layout)
    if not count or not layout.tokens:  # no queries: still takes part in the exchanges, also backward
        out = q.new_zeros(*q.shape[:3], v.shape[3]) + _nothing(q, k, v, call["sinks"])
        return to_sequence(out, comm, heads=heads, tokens=tokens)
    if permuted:
        q, k, v = (x.index_select(1, layout_order(x, layout.key, True)) for x in (q, k, v))
    group = heads // kv_heads
    used = [(first + h) // group - first_kv for h in range(count)]
    if count % count_kv or used != [h // (count // count_kv) for h in range(count)]:  # uneven groups: a copy each
        counts = [used.count(i) for i in range(count_kv)]
        k, v = (torch.cat([x[:, :, i:i + 1].expand(-1, -1, n, -1) for i, n in enumerate(counts)], 2) for x in (k, v))
    if call["sinks"] is not None:
        call = {**call, "sinks": call["sinks"][first:first + count]}
    out = _block(kernel, q, k, v, 0, layout.tokens, bounds, call)
    if permuted:
        out = out.index_select(1, layout_order(out, layout.key, False))
    return to_sequence(out, comm, heads=heads, tokens=tokens)


def _by_gather(kernel, q, k, v, comm, layout, bounds, call):
    if layout.kind == "striped":
        raise ValueError("attention: layout.kind is 'striped', expected 'contiguous' or 'zigzag': allgather_kv calls the "
                         "kernel for each run of tokens")
    if not call["causal"] and call["window"] != (-1, -1):  # a kernel's mask is aligned at the ends
        raise ValueError(f"attention: got the window {call['window']} without a causal mask, expected algorithm 'ulysses', "
                         "whose kernel has whole sequences")
    k, v = (all_gather(x, comm, tokens=layout.lengths) for x in (k, v))
    if not in_order(layout):
        k, v = (x.index_select(1, layout_order(x, layout.key, True)) for x in (k, v))
    # The exchanges of "ulysses" write new memory, but these queries are the caller's.
    q = ReadableInput.apply(q)
    outputs, done = [], 0
    for begin, end in _runs(layout.key, _constant(comm.rank)):
        outputs.append(_block(kernel, q[:, done:done + end - begin], k, v, begin, end, bounds, call))
        done += end - begin
    if not outputs:  # no tokens: still takes part in the exchanges, also backward
        return q.new_zeros(*q.shape[:3], v.shape[3]) + _nothing(q, k, v, call["sinks"])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def attention_by(kernel, q, k, v, comm, *, algorithm="ulysses", causal=False, window=(-1, -1), scale=None, softcap=0.0,
                 sinks=None, cu_seqlens=None, layout=None):
    """attention() with `kernel`."""
    kernel = kernel_of(kernel)
    algorithm = "ulysses" if algorithm == "auto" else algorithm
    if algorithm not in ALGORITHMS:
        raise ValueError(f"attention: algorithm is {algorithm!r} with a kernel of the caller's, expected one of "
                         f"{', '.join(ALGORITHMS)}")
    if layout is None:
        local, ranks = _constant(q.shape[1]), _constant(comm.size)
        layout = _Tokens("contiguous", local * ranks, [local] * ranks, f"contiguous:{local * ranks}:{ranks}:1:1:")
    else:
        require_fit("attention: layout", layout, comm, local=q.shape[1])
    _shapes.require_fit("attention", q.shape, k.shape, v.shape, linear=False)
    window, bounds = _shapes.window_of("attention", window), bounds_of(cu_seqlens)
    _shapes.require_bounds("attention", bounds, layout.tokens)
    if bounds is not None and q.shape[0] != 1:
        raise ValueError(f"attention: got cu_seqlens and a batch of {q.shape[0]}, expected 1")
    if k.shape[1] != q.shape[1]:
        raise ValueError(f"attention: got {q.shape[1]} queries and {k.shape[1]} keys, expected equally many with a kernel of "
                         "the caller's")
    call = {"causal": _shapes.flag("attention: causal", causal), "window": window, "scale": q.shape[3] ** -0.5 if scale is None else scale,
            "softcap": softcap, "sinks": sinks}
    run = _by_heads if algorithm == "ulysses" else _by_gather
    if not torch.compiler.is_compiling():  # the exchanges alone have equal sizes for most of them
        agree_once(comm, "attention", **{**call, "sinks": sinks is not None}, algorithm=algorithm, cu_seqlens=bounds, layout=layout.key)
    return run(kernel, q, k, v, comm, layout, bounds, call)
