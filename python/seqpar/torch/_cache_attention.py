"""Attention to a KV cache that is distributed over the ranks by tokens, by positions: prefill in chunks, decode."""

import torch

from .. import _shapes
from . import _ops
from ._collectives import merge
from ._define import without_autocast
from ._readable import readable
from ._refusals import collective

_MOST_SCORES = 1 << 24  # elements of a block of scores
_MOST_BIAS = 1 << 27  # elements of a block of a bias on GPUs
_FUSED = {"cpu": (torch.float32, torch.bfloat16, torch.float16), "cuda": (torch.bfloat16, torch.float16)}
_ALIGNED = 16  # elements of a row of a bias
_MOST_UNUSED = 2.0 ** 60  # of an unused key: its products with queries are finite in fp32


def _scores(q, k, scale, softcap):
    """[batch][kv heads][heads of each][queries][keys] in fp32."""
    x = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * scale
    return softcap * torch.tanh(x / softcap) if softcap else x


def _seen(q_positions, k_positions, window):
    """bool [batch][queries][keys]."""
    i, j = q_positions[:, :, None], k_positions[:, None, :]
    seen = (j >= 0) & (j <= i)
    return seen & (j > i - window) if window else seen


@without_autocast
def _by_products(q, k, v, seen, scale, softcap):
    """(out, lse) by matrix products; k, v in fp32; seen: bool [batch][queries][keys] or None."""
    x = _scores(q.float().unflatten(2, (k.shape[2], -1)), k, scale, softcap)
    if seen is not None:
        x = x.masked_fill(~seen[:, None, None], -torch.inf)
    total = torch.logsumexp(x, -1)  # [batch][kv heads][heads of each][queries]
    weights = torch.exp(x - total.masked_fill(total == -torch.inf, 0.0)[..., None])
    out = torch.einsum("bhgqk,bkhd->bqhgd", weights, v).flatten(2, 3)
    return out, total.permute(0, 3, 1, 2).flatten(2)


def _fused(q, k, v, seen, scale, softcap):
    """The same by PyTorch's flash attention for CPUs, in the type of q, k and v. The queries of all heads with the same keys are
    the rows of one head, so keys are not copied."""
    rows = q.unflatten(2, (k.shape[2], -1)).permute(0, 2, 3, 1, 4)  # [batch][kv heads][heads of each][queries][dim]
    shape = rows.shape[1:4]
    mask = None
    if seen is not None:
        mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -torch.inf)[:, None].expand(-1, shape[1], -1, -1)
        mask = mask.flatten(1, 2)[:, None]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(rows.flatten(2, 3), k.transpose(1, 2), v.transpose(1, 2),
                                                                          attn_mask=mask, scale=scale)
    out, lse = (x.unflatten(2, shape[1:]) for x in (out, lse.float()))
    out, lse = out.permute(0, 3, 1, 2, 4).flatten(2, 3), lse.permute(0, 3, 1, 2).flatten(2)
    return out, lse if seen is None else lse.masked_fill(~seen.any(2)[..., None], -torch.inf)


def _fused_on_gpu(q, k, v, seen, scale, softcap):
    """The same by FlashAttention's kernel in PyTorch, or, where some queries do not see all keys, by its memory-efficient kernel
    with a bias. Keys are not repeated for the heads that share them."""
    batch, queries, heads, dim = q.shape
    keys, kv_heads = k.shape[1:3]
    each = heads // kv_heads
    if seen is None:  # the queries of all heads with the same keys are the rows of one head
        rows = q.unflatten(2, (kv_heads, each)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(rows, k.transpose(1, 2), v.transpose(1, 2), 0.0, False, scale=scale)
        out, lse = (x.unflatten(2, (each, queries)) for x in (out, lse))
        return out.permute(0, 3, 1, 2, 4).flatten(2, 3), lse.permute(0, 3, 1, 2).flatten(2)
    bias = q.new_zeros(batch * kv_heads, queries, -(-keys // _ALIGNED) * _ALIGNED)[:, :, :keys]
    bias.masked_fill_(~seen.expand(batch, -1, -1).repeat_interleave(kv_heads, 0), -torch.inf)
    bias = bias[:, None].expand(-1, each, -1, -1)
    rows = q.unflatten(2, (kv_heads, each)).permute(0, 2, 3, 1, 4).flatten(0, 1)
    k, v = (x.transpose(1, 2).flatten(0, 1)[:, None].expand(-1, each, -1, -1) for x in (k, v))
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(rows, k, v, bias, True, scale=scale)
    out = out.unflatten(0, (batch, kv_heads)).permute(0, 3, 1, 2, 4).flatten(2, 3)
    lse = lse[..., :queries].unflatten(0, (batch, kv_heads)).permute(0, 3, 1, 2).flatten(2)
    blind = ~seen.any(2)[..., None]
    return out.masked_fill(blind[..., None], 0.0), lse.masked_fill(blind, -torch.inf)


def _harmless(x, unused):
    """x without values in unused entries that reach results through masks: infinity, NaN and huge ones, which memory without
    tokens may contain. On hosts."""
    if bool((x[unused].float().abs() <= _MOST_UNUSED).all()):
        return x
    return x.masked_fill(unused[..., None, None], 0)


def _require_positions(what, x, name, batch, tokens):
    if x.dim() != 2 or x.shape[0] not in (1, batch) or x.shape[1] != tokens or x.is_floating_point():
        raise ValueError(f"{what}: {name} is {x.dtype} {list(x.shape)}, expected integers [{batch} or 1][{tokens}]")


def _require(what, q, k, v, q_positions, k_positions, window):
    _shapes.require_fit(what, q.shape, k.shape, v.shape, linear=False)
    if window < 0:
        raise ValueError(f"{what}: window is {window}, expected the number of keys, or 0: all before a query")
    for x, name, tokens in ((q_positions, "q_positions", q.shape[1]), (k_positions, "k_positions", k.shape[1])):
        if x is not None:
            _require_positions(what, x, name, q.shape[0], tokens)


def local_attention(q, k, v, *, q_positions=None, k_positions=None, window=0, scale=None, softcap=0.0):
    """(out, lse) of causal attention to one rank's part of a cache, by PyTorch's flash attention: fp32, bf16 and fp16 on hosts, bf16
    and fp16 with a head dimension divisible by 8, up to 256, on GPUs. Matrix products in fp32 compute other types, a softcap, values
    of other dimensions than keys, and derivatives.

        q            [batch][queries][heads][dim]
        k, v         [batch][keys][kv heads][dim]; heads is a multiple of kv heads. Any order of keys
        q_positions  int64 [batch or 1][queries] in the whole sequence; None: q sees all keys
        k_positions  int64 [batch or 1][keys]; -1: no key (padding, an unused entry of a page). On GPUs, k and v are finite there
        window       keys that a query sees, with itself; 0: all before it
        scale        None: 1 / sqrt(dim)

    Returns out [batch][queries][heads][dim] and lse float32 [batch][queries][heads]: natural logarithms, -inf (and out 0) for
    queries without a key.
    """
    batch, queries, heads, dim = q.shape
    keys, kv_heads = k.shape[1:3]
    if (q_positions is None) != (k_positions is None):
        raise ValueError("local_attention: got one of q_positions and k_positions, expected both or none")
    _require("local_attention", q, k, v, q_positions, k_positions, window)
    scale = dim ** -0.5 if scale is None else scale
    out = q.new_zeros(batch, queries, heads, v.shape[-1])
    lse = torch.full((batch, queries, heads), -torch.inf, dtype=torch.float32, device=q.device)
    if keys == 0 or queries == 0:
        return out, lse
    device = q.device.type
    if device == "cpu" and k_positions is not None and bool((k_positions < 0).any()):
        k, v = (_harmless(x, (k_positions < 0).expand(batch, -1)) for x in (k, v))
    fused = (not softcap and q.dtype in _FUSED.get(device, ()) and q.dtype == k.dtype == v.dtype and v.shape[-1] == dim
             and (device == "cpu" or (dim % 8 == 0 and dim <= 256))
             and not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))))
    attend = {"cpu": _fused, "cuda": _fused_on_gpu}[device] if fused else _by_products
    q, k, v = (readable(x) for x in (q, k, v)) if fused else (q, k.float(), v.float())
    on_gpu = attend is _fused_on_gpu
    step = max(1, _MOST_BIAS // (batch * kv_heads * keys) if on_gpu else _MOST_SCORES // max(1, batch * heads * keys))
    for first in range(0, queries, step):
        part = slice(first, first + step)
        seen = None if q_positions is None else _seen(q_positions[:, part], k_positions, window)
        out[:, part], lse[:, part] = attend(q[:, part], k, v, seen, scale, softcap)
    return out, lse


def with_sinks(out, lse, sinks):
    """The output with an additional key of value 0 and logit sinks[head]; lse without it."""
    return (out * torch.sigmoid(lse - sinks.float())[..., None]).to(out.dtype)


def schedule_of(queries, keys, heads, kv_heads):
    """"pass_q" if queries and their outputs are fewer bytes than the keys and values: new / all tokens <= kv heads / heads."""
    return "pass_q" if queries * heads <= keys * kv_heads else "pass_kv"


def _lengths(x, comm):
    mine = torch.tensor([x.shape[1]], dtype=torch.int64, device=x.device)
    return _ops.all_gather(mine, 0, [], comm.name).tolist()


def _lengths_of(name, x, given, comm):
    """The tokens of every rank's x."""
    if given is None:
        return _lengths(x, comm)
    given = list(_shapes.integers(f"cached_attention: {name}", given, comm.size))
    if len(given) != comm.size or given[comm.rank] != x.shape[1]:
        raise ValueError(f"cached_attention: {name} is {given}, expected {comm.size} numbers with {x.shape[1]} for rank {comm.rank}")
    return given


def _gathered(x, lengths, comm):
    return _ops.all_gather(x.detach().contiguous(), 1, lengths, comm.name)


@collective
def cached_attention(q, k, v, comm, *, q_positions, k_positions, queries=None, keys=None, window=0, scale=None, softcap=0.0, sinks=None,
                     schedule="auto"):
    """Causal attention of a chunk of new tokens to a cache, both distributed over the ranks: chunked prefill.

        q, k, v      [batch][tokens of the rank][heads or kv heads][dim]: the rank's queries, and its part of the cache with the
                     chunk's keys
        q_positions, k_positions  int64 [batch or 1][tokens of the rank]: positions in each sequence; -1: no key. They align each
                     request at its end and allow any order of pages. Any assignment of tokens to ranks
        queries, keys  of every rank; None: gathered
        window, scale, softcap  local_attention()'s
        sinks        float [heads]: a logit in the sum of each head, without a value
        schedule     "pass_kv": keys and values are gathered. "pass_q": queries are gathered, and partial results are scattered by
                     merge(). "auto": pass_q where it sends fewer bytes (arXiv 2411.01783, section 3.4, with outputs counted):
                     queries x heads <= keys x kv heads

    Returns out [batch][tokens of the rank][heads][dim]. Without a derivative.
    """
    if schedule not in ("auto", "pass_q", "pass_kv"):
        raise ValueError(f"cached_attention: schedule is {schedule!r}, expected 'auto', 'pass_q' or 'pass_kv'")
    for name, x in (("q_positions", q_positions), ("k_positions", k_positions)):
        if x is None:
            raise ValueError(f"cached_attention: {name} is None, expected the positions of the rank's tokens")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise RuntimeError("cached_attention has no derivative: use it inside torch.no_grad()")
    _require("cached_attention", q, k, v, q_positions, k_positions, window)
    _shapes.require_sinks("cached_attention", sinks, q.shape[2])
    batch = q.shape[0]
    queries, keys = (_lengths_of(name, x, lengths, comm) for name, x, lengths in (("queries", q, queries), ("keys", k, keys)))
    if schedule == "auto":
        schedule = schedule_of(sum(queries), sum(keys), q.shape[2], k.shape[2])
    options = {"window": window, "scale": scale, "softcap": softcap}
    q_positions, k_positions = (x.expand(batch, -1) for x in (q_positions, k_positions))
    if schedule == "pass_kv":
        k, v, k_positions = (_gathered(x, keys, comm) for x in (k, v, k_positions))
        out, lse = local_attention(q, k, v, q_positions=q_positions, k_positions=k_positions, **options)
    else:
        out, lse = local_attention(_gathered(q, queries, comm), k, v, q_positions=_gathered(q_positions, queries, comm),
                                   k_positions=k_positions, **options)
        out, lse = merge(out, lse.transpose(1, 2).contiguous(), comm, tokens=queries)
        lse = lse.transpose(1, 2)
    return out if sinks is None else with_sinks(out, lse, sinks)
