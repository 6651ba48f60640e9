"""The interfaces of ring-flash-attention."""

import pickle

import torch

import seqpar.torch as sp
from seqpar.testing import reference
from seqpar.torch import ring_flash_attn
from torch_checks import check, raises, same, whole


@check
def drop_ins(comm, seed):
    q, kv = whole(seed, 2, 6 * comm.size, 4, 8), whole(seed + 1, 2, 6 * comm.size, 2, 2, 8)
    from seqpar.testing.reference import softmax
    expected = softmax(q, kv[:, :, 0], kv[:, :, 1], causal=True, scale=0.4)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, kv[:, :, 0].repeat_interleave(2, 2)) * 0.4
    exact_lse = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf).logsumexp(-1)
    equal = torch.cat((q[:, :, None], kv.repeat_interleave(2, 3)), 2)  # with as many keys as queries
    for prefix, kind in (("ring", "contiguous"), ("zigzag_ring", "zigzag"), ("stripe", "striped")):
        layout = sp.Layout(kind, 6 * comm.size, comm.size)
        kvpacked, qkvpacked = (getattr(ring_flash_attn, f"{prefix}_flash_attn_{what}_func") for what in ("kvpacked", "qkvpacked"))
        out, lse, _ = kvpacked(sp.shard(q, layout, comm), sp.shard(kv, layout, comm), 0.0, 0.4, True, return_attn_probs=True)
        same(out, sp.shard(expected, layout, comm), 50)
        same(lse, sp.shard(exact_lse, layout, comm, dim=2), 50)
        same(qkvpacked(sp.shard(equal, layout, comm), softmax_scale=0.4, causal=True), out, 50)
        narrow = softmax(q, kv[:, :, 0], kv[:, :, 1], causal=True, window=(3, -1))
        same(qkvpacked(sp.shard(equal, layout, comm), causal=True, window_size=(3, 0)), sp.shard(narrow, layout, comm), 50)
    bounds = (0, 2, 2, 5, 12)  # of the shards: each sequence is cut evenly
    qkv = whole(seed + 2, 12 * comm.size, 3, 4, 8)
    whole_bounds = tuple(x * comm.size for x in bounds)
    expected = softmax(*(qkv[None, :, i] for i in range(3)), causal=True, cu_seqlens=whole_bounds, window=(5, -1))
    for prefix, kind in (("ring", "contiguous"), ("zigzag_ring", "zigzag")):
        layout = sp.Layout(kind, 12 * comm.size, comm.size, cu_seqlens=whole_bounds)
        mine, exact = sp.shard(qkv, layout, comm, dim=0), sp.shard(expected, layout, comm)[0]
        same(getattr(ring_flash_attn, f"{prefix}_flash_attn_varlen_qkvpacked_func")(
            mine, torch.tensor(bounds), 7, causal=True, window_size=(5, -1)), exact, 50)
        out, lse, _ = getattr(ring_flash_attn, f"{prefix}_flash_attn_varlen_kvpacked_func")(
            mine[:, 0], mine[:, 1:], bounds, 7, causal=True, window_size=(5, 0), return_attn_probs=True)
        same(out, exact, 50)
        assert lse.shape == (4, 12)
    raises(ValueError, "expected 11", ring_flash_attn.zigzag_ring_flash_attn_varlen_func, *mine.unbind(1), (0, 3, 11), 8)
    raises(ValueError, "dropout_p", ring_flash_attn.ring_flash_attn_func, q, q, q, dropout_p=0.1)
    raises(TypeError, "softcap", ring_flash_attn.ring_flash_attn_func, q, q, q, softcap=1.0)


@check
def llama3_of_ring_flash_attention(comm, seed):
    """Packed sequences that are cut without regard to their bounds, against attention in fp64."""
    tokens = 9 * comm.size
    layout = sp.Layout("contiguous", tokens, comm.size)
    q, kv, grad = whole(seed, tokens, 4, 8), whole(seed + 1, tokens, 2, 2, 8), whole(seed + 2, tokens, 4, 8)
    exact = [x.double().requires_grad_() for x in (q, kv)]
    prepare = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens
    for bounds in ((0, tokens), (0, 1, 6, 6, tokens - 2, tokens)):
        for causal, stride, window in ((True, 1, (-1, -1)), (False, 2, (-1, -1)), (True, 2, (3, 0))):
            *arguments, local = prepare(torch.tensor(bounds), causal, comm.rank, comm.size)
            mine = [sp.shard(x, layout, comm, dim=0).detach().requires_grad_() for x in (q, kv)]
            out, lse, _ = ring_flash_attn.llama3_flash_attn_varlen_kvpacked_func(
                *mine, *arguments, stride, local, 0.0, 0.4, causal, window, return_attn_probs=True)
            assert lse.shape == (4, 9)
            out.backward(sp.shard(grad, layout, comm, dim=0))
            expected = reference.softmax(exact[0][None], *(exact[1][None, :, i] for i in range(2)), causal=causal, scale=0.4,
                                         cu_seqlens=bounds, window=(window[0], -1) if causal else window)[0]
            gradients = torch.autograd.grad(expected, exact, grad.double())
            for found, right in zip((out, *(x.grad for x in mine)), (expected, *gradients)):
                same(found, sp.shard(right.detach().float(), layout, comm, dim=0), 100)
    # (rank, ranks, causal): what ring-flash-attention returns for the same bounds
    known = {(0, 2, True): ([0, 4, 6], [0, 4, 6], 4, 4, 0, 6), (1, 2, True): ([0, 4, 6], [0, 6, 8], 4, 6, 4, 12),
             (0, 2, False): ([0, 4, 6], [0, 4, 10], 4, 6, 0, 10), (1, 4, False): ([0, 1, 3], [0, 4, 10], 2, 6, 0, 10)}
    for (rank, ranks, causal), found in known.items():
        q_bounds, k_bounds, longest_q, longest_k, local = prepare(torch.tensor([0, 4, 10, 12], dtype=torch.int32), causal, rank, ranks)
        assert (q_bounds.tolist(), k_bounds.tolist(), longest_q, longest_k, local.start, local.stop) == found, (rank, ranks, causal)
        assert q_bounds.dtype == k_bounds.dtype == torch.int32
    assert pickle.loads(pickle.dumps(local)).start.prepared == local.start.prepared
    attend = lambda *rest, **named: ring_flash_attn.llama3_flash_attn_varlen_qkvpacked_func(q[:9, None].expand(9, 3, 4, 8), *rest, **named)
    *arguments, local = prepare(bounds, True, comm.rank, comm.size)
    raises(ValueError, "expected the slice that", attend, *arguments, 1, slice(0, 9), causal=True)
    raises(ValueError, "causal is False, expected True", attend, *arguments, 1, local)
    raises(ValueError, "heads_k_stride is 3", attend, *arguments, 3, local, causal=True)
    raises(ValueError, f"got {tokens} tokens", prepare, bounds, True, 0, tokens - 1)
