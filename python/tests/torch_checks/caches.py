"""Attention to a KV cache that is distributed over the ranks, against whole attention in fp64."""

import itertools
import random

import torch

import seqpar.torch as sp
from torch_checks import Skip, check, raises, whole


def _reference(q, k, v, q_positions, k_positions, window=0, scale=None, softcap=0.0, sinks=None):
    """(out, lse) in fp64; lse without sinks."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.double(), k.double().repeat_interleave(group, 2), v.double().repeat_interleave(group, 2)
    x = torch.einsum("bqhd,bkhd->bqhk", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    x = softcap * torch.tanh(x / softcap) if softcap else x
    i, j = q_positions[:, :, None, None], k_positions[:, None, None, :]
    x = x.masked_fill(~((j >= 0) & (j <= i) & ((j > i - window) if window else True)), -torch.inf)
    lse = torch.logsumexp(x, -1)
    total = lse if sinks is None else torch.logaddexp(lse, sinks.double().expand_as(lse))
    weights = torch.exp(x - total[..., None]).nan_to_num(0.0)
    return torch.einsum("bqhk,bkhd->bqhd", weights, v), lse


def _close(found, expected, dtype=torch.float32):
    tolerance = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def _parts(seed, ranks, rows, heads, dim, dtype):
    """All ranks' partial results: a third of the rows is empty, with NaN in the output; the last rank has no tokens in odd rows."""
    lse = 5 * whole(seed, ranks, rows, heads)
    lse[whole(seed + 1, ranks, rows, heads) > 0.5] = -torch.inf
    lse[-1, 1::2] = -torch.inf
    lse[:, 0, 0] = -torch.inf
    out = whole(seed + 2, ranks, rows, heads, dim, dtype=dtype).masked_fill((lse == -torch.inf)[..., None], torch.nan)
    return out, lse


@check
def merges_of_partial_attention(comm, seed):
    for dtype, rows, heads, dim in ((torch.float32, 5, 7, 16), (torch.bfloat16, 3, 4, 9), (torch.float16, 90, 8, 64)):
        out, lse = _parts(seed + rows, comm.size, rows, heads, dim, dtype)
        total = torch.logsumexp(lse.double(), 0)
        weights = torch.exp(lse.double() - total).nan_to_num(0.0)
        expected = (weights[..., None] * out.double().nan_to_num(0.0)).sum(0)
        found, found_lse = sp.all_reduce_lse(out[comm.rank], lse[comm.rank], comm)
        _close(found, expected, dtype)
        _close(found_lse, total)
        everyone = sp.all_gather(found[None].contiguous(), comm, dim=0)
        assert all(x.equal(found) for x in everyone), "the ranks' results differ"
        base2 = sp.all_reduce_lse(out[comm.rank].unflatten(0, (1, rows)), lse[comm.rank][None] / torch.log(torch.tensor(2.0)), comm, base=2)
        _close(base2[0][0], expected, dtype)
        _close(base2[1][0] * torch.log(torch.tensor(2.0)), total)
        first, count = sp._ops.heads_of_member(heads, 0, comm.size, comm.rank)
        mine = sp.reduce_scatter_lse(out[comm.rank], lse[comm.rank], comm)
        assert mine[0].equal(found[:, first:first + count]) and mine[1].equal(found_lse[:, first:first + count])
        used = torch.tensor([rows // 2], dtype=torch.int32, device=out.device)
        some = sp.all_reduce_lse(out[comm.rank], lse[comm.rank], comm, row_count=used)
        assert some[0][:rows // 2].equal(found[:rows // 2])


@check
def unused_entries_of_a_cache_have_no_effect(comm, seed):
    """NaN, infinity and huge values in pages without tokens, also under torch.autocast."""
    if comm.device.type != "cpu":
        raise Skip("runs on hosts")
    heads, kv_heads, dim, keys = 4, 2, 16, 23
    q = whole(seed, 2, 3, heads, dim)
    k, v = whole(seed + 1, 2, keys, kv_heads, dim), whole(seed + 2, 2, keys, kv_heads, dim)
    lengths = torch.tensor([17, 5])[:, None]
    k_positions = torch.where(torch.arange(keys)[None] < lengths, torch.arange(keys)[None], -1)
    q_positions = lengths - 3 + torch.arange(3)
    unused = k_positions < 0
    expected = [_reference(q, k, v, q_positions, k_positions, softcap=softcap) for softcap in (0.0, 50.0)]
    for junk in (torch.nan, torch.inf, -3e38, 1e4):
        k[unused], v[unused] = junk, -junk
        for options in ({}, {"softcap": 50.0}):
            for autocast in (False, True):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    found = sp.local_attention(q, k, v, q_positions=q_positions, k_positions=k_positions, **options)
                for x, exact in zip(found, expected[bool(options)]):
                    _close(x, exact)


@check
def caches_that_do_not_fit_are_refused(comm, seed):
    q, k, at = whole(seed, 2, 8, 4, 8), whole(seed + 1, 2, 8, 2, 8), torch.arange(8)[None]
    attend = lambda q, k, v, **named: sp.cached_attention(q, k, v, comm, **{"q_positions": at, "k_positions": at, **named})
    raises(ValueError, "local_attention: k has the shape", sp.local_attention, q, k[:1], k[:1])
    raises(ValueError, "local_attention: v has the shape", sp.local_attention, q, k, k[:, :, :1])
    raises(ValueError, "cached_attention: v has the shape", attend, q, k, k[:1])
    raises(ValueError, "cached_attention: k_positions is torch.int64 [1, 7], expected integers [2 or 1][8]", attend, q, k, k,
           k_positions=at[:, 1:])
    raises(ValueError, "cached_attention: window is -1", attend, q, k, k, window=-1)
    raises(ValueError, "cached_attention: sinks has the shape (1,), expected (4,)", attend, q, k, k, sinks=torch.zeros(1))
    raises(ValueError, "cached_attention: keys is ", attend, q, k, k, keys=[9] * comm.size)


@check
def decode_over_a_sharded_cache(comm, seed):
    batch, heads, kv_heads, dim, keys = 3, 2 * comm.size, 2, 16, 29
    q = whole(seed, batch, 1, heads, dim)
    k, v = whole(seed + 1, batch, keys, kv_heads, dim), whole(seed + 2, batch, keys, kv_heads, dim)
    lengths = torch.tensor([29, 3, 11])[:, None]
    k_positions = torch.where(torch.arange(keys)[None] < lengths, torch.arange(keys)[None], -1).to(q.device)
    q_positions = (lengths - 1).to(q.device)
    expected, _ = _reference(q, k, v, q_positions, k_positions)
    for pages in (4, 40):  # with pages of 40 tokens only rank 0 has keys
        own = torch.arange(keys)[torch.arange(keys) // pages % comm.size == comm.rank]

        def kernel(queries):
            return sp.local_attention(queries, k[:, own], v[:, own], q_positions=q_positions, k_positions=k_positions[:, own])

        _close(sp.decode(q, kernel, comm), expected)
        each = heads // comm.size
        mine = slice(comm.rank * each, (comm.rank + 1) * each)
        _close(sp.decode(q[:, :, mine].contiguous(), kernel, comm, by="heads"), expected[:, :, mine])


@check
def chunks_of_prompts_to_a_sharded_cache(comm, seed):
    """Requests of unequal lengths, aligned at their ends; keys in random order on random ranks; queries on random ranks."""
    draw = random.Random(seed)
    for round in range(8):
        batch, dim = draw.randint(1, 3), draw.choice((8, 16))
        kv_heads = draw.randint(1, 3)
        heads = kv_heads * draw.randint(1, 3)
        keys, new = draw.randint(1, 40), draw.randint(1, 12)
        options = {"window": draw.choice((0, 0, 5)), "softcap": draw.choice((0.0, 3.0)), "scale": draw.choice((None, 0.3)),
                   "sinks": whole(seed + round, heads) if draw.random() < 0.5 else None}
        q = whole(seed + 10 + round, batch, new, heads, dim)
        k, v = (whole(seed + i + round, batch, keys, kv_heads, dim) for i in (20, 30))
        lengths = torch.tensor([draw.randint(1, keys) for _ in range(batch)])[:, None]
        k_positions = torch.where(torch.arange(keys)[None] < lengths, torch.arange(keys)[None], -1).to(q.device)
        q_positions = (torch.arange(new)[None] - new + lengths).to(q.device)  # negative: before the request, sees nothing
        expected, _ = _reference(q, k, v, q_positions, k_positions, **options)
        owners = [[draw.randrange(comm.size) for _ in range(n)] for n in (new, keys)]
        order = draw.sample(range(keys), keys)
        mine = [i for i in range(new) if owners[0][i] == comm.rank]
        own = [i for i in order if owners[1][i] == comm.rank]
        counts = [[x.count(rank) for rank in range(comm.size)] for x in owners]
        for schedule in ("pass_q", "pass_kv", "auto"):
            given = {} if schedule == "auto" else {"queries": counts[0], "keys": counts[1]}
            found = sp.cached_attention(q[:, mine], k[:, own], v[:, own], comm, q_positions=q_positions[:, mine],
                                        k_positions=k_positions[:, own], schedule=schedule, **given, **options)
            _close(found, expected[:, mine])


@check
def chunks_of_prompts_in_pages(comm, seed):
    """Batches of requests whose keys are in pages of any order on any ranks, by the plans of attention()."""
    draw = random.Random(seed)
    for round in range(8):
        page, kv_heads, dim = draw.choice((1, 4, 7)), comm.size, draw.choice((8, 16))
        heads = kv_heads * draw.randint(1, 2)
        lengths = [draw.randint(1, 40) for _ in range(draw.randint(1, 3))]
        new = [draw.randint(1, length) for length in lengths]
        pages = [(r, at, min(page, length - at)) for r, length in enumerate(lengths) for at in range(0, length, page)]
        pages += [(-1, 0, 0)] * draw.randint(0, 2)
        draw.shuffle(pages)
        columns = page * len(pages)
        starts = [sum(new[:r]) for r in range(len(new) + 1)]
        window = draw.choice((None, None, 5))
        mask = sp.Mask.of_pages(starts, lengths, [(page * i, *x) for i, x in enumerate(pages)], window=window)
        kv_layout = sp.Layout("pieces", columns, comm.size, bounds=tuple(range(0, columns + 1, page)),
                              owners=tuple(draw.randrange(comm.size) for _ in pages))
        layout = sp.Layout("pieces", starts[-1], comm.size, bounds=(0, starts[-1] // 3, starts[-1]),
                           owners=tuple(draw.randrange(comm.size) for _ in range(2)))
        q = whole(seed + 40 + round, 1, starts[-1], heads, dim)
        k, v = (whole(seed + i + round, 1, columns, kv_heads, dim) for i in (50, 60))
        mine, own = layout.positions(comm.rank, device=q.device), kv_layout.positions(comm.rank, device=q.device)
        for algorithm in ("ring", "ring_pass_q", "allgather_kv", "auto"):
            found = sp.attention(q[:, mine], k[:, own], v[:, own], comm, mask=mask, layout=layout, kv_layout=kv_layout, algorithm=algorithm)
            for r, length in enumerate(lengths):
                place = torch.full((columns,), -1, device=q.device)
                for i, (request, at, count) in enumerate(pages):
                    if request == r:
                        place[page * i:page * i + count] = torch.arange(at, at + count, device=q.device)
                rows = torch.arange(starts[r], starts[r + 1], device=q.device)
                expected, _ = _reference(q[:, rows], k, v, (rows - starts[r + 1] + length)[None], place[None], window or 0)
                here = (mine >= starts[r]) & (mine < starts[r + 1])
                _close(found[:, here], expected[:, mine[here] - starts[r]])


@check
def kernels_of_local_attention(comm, seed):
    """Flash attention and matrix products equal fp64, in every type, also for queries without a key."""
    positions = torch.tensor([[2, 9, 30], [-1, 0, 12]])
    keys = torch.where(torch.arange(31) % 5 == 0, -1, torch.arange(31).flip(0))[None]
    for dtype, rows in itertools.product((torch.float32, torch.bfloat16, torch.float16), (1, 2)):
        for v_dim, window, softcap in ((8, 0, 0.0), (8, 4, 0.0), (8, 0, 3.0), (12, 0, 0.0)):
            shapes = ((3, 6, 8), (31, 2, 8), (31, 2, v_dim))
            q, k, v = (whole(seed + i, 2, *shape, dtype=dtype) for i, shape in enumerate(shapes))
            given = {"q_positions": positions[:rows].to(q.device), "k_positions": keys.to(q.device), "window": window, "softcap": softcap}
            out, lse = sp.local_attention(q, k, v, **given)
            expected, expected_lse = _reference(q, k, v, **given)
            assert out.dtype == dtype and lse.dtype == torch.float32
            _close(out, expected, dtype)
            _close(lse, expected_lse, dtype)


@check
def strides_of_local_attention(comm, seed):
    """Heads whose elements are not in a row, and addresses and rows that are not multiples of 16 bytes."""
    def columns(x):
        return x.transpose(1, 3).contiguous().transpose(1, 3)

    def later(x):
        return x.new_zeros(x.numel() + 1)[1:].view(x.shape).copy_(x)

    def wide(x):
        return x.new_zeros(*x.shape[:-1], x.shape[-1] + 3)[..., :-3].copy_(x)

    positions, keys = torch.tensor([[5, 30, 100]]), torch.arange(101)[None]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k, v = (whole(seed + i, 1, *shape, dtype=dtype) for i, shape in enumerate(((3, 12, 16), (101, 3, 16), (101, 3, 16))))
        for given in ({}, {"q_positions": positions.to(q.device), "k_positions": keys.to(q.device)}):
            expected = [x.float() for x in sp.local_attention(q, k, v, **given)]
            for change in (columns, later, wide):
                for changed in ((change(q), k, v), (q, change(k), v), (q, k, change(v))):
                    out, lse = sp.local_attention(*changed, **given)
                    _close(out, expected[0].double(), dtype)
                    _close(lse, expected[1].double(), dtype)


@check
def blocks_of_local_attention(comm, seed):
    """Scores are computed in blocks of queries: the result does not depend on them."""
    from seqpar.torch import _cache_attention
    q, k, v = whole(seed, 2, 9, 4, 8), whole(seed + 1, 2, 31, 2, 8), whole(seed + 2, 2, 31, 2, 8)
    most = _cache_attention._MOST_SCORES
    expected = sp.local_attention(q, k, v)
    try:
        _cache_attention._MOST_SCORES = 2 * 4 * 31 * 2
        for found, one in zip(sp.local_attention(q, k, v), expected):
            torch.testing.assert_close(found, one)
    finally:
        _cache_attention._MOST_SCORES = most


@check
def schedules_of_chunks(comm, seed):
    from seqpar.torch._cache_attention import schedule_of
    assert schedule_of(128, 128 * 1024, 32, 8) == "pass_q"
    assert schedule_of(1024, 1024, 32, 8) == "pass_kv"
    assert schedule_of(1024, 4096, 32, 8) == "pass_q" and schedule_of(1025, 4096, 32, 8) == "pass_kv"
    assert schedule_of(64, 64, 8, 8) == "pass_q"


@check
def refusals_of_cache_functions(comm, seed):
    out, lse = whole(seed, 2, 4, 8), whole(seed, 2, 4)
    raises(ValueError, "expected float32 [2, 4]", sp.all_reduce_lse, out, lse.T.contiguous(), comm)
    raises(ValueError, "expected float32 [2, 4]", sp.reduce_scatter_lse, out, lse.half(), comm)
    raises(ValueError, "at least three dimensions", sp.all_reduce_lse, out[0], lse[0], comm)
    raises(ValueError, "base is 10", sp.all_reduce_lse, out, lse, comm, base=10)
    raises(ValueError, "expected one int32", sp.all_reduce_lse, out, lse, comm, row_count=torch.tensor([1]))
    raises(RuntimeError, "no derivative", sp.all_reduce_lse, out.clone().requires_grad_(), lse, comm)
    raises(TypeError, "float64", sp.all_reduce_lse, out.double(), lse, comm)
    raises(ValueError, "by is 'rows'", sp.decode, out, None, comm, by="rows")
    raises(ValueError, "local_kernel returned out [1, 4, 8]", sp.decode, out, lambda q: (q[:1], lse[:1]), comm)
    q = whole(seed, 1, 2, 4, 8)
    positions = torch.arange(2, device=q.device)[None]
    raises(ValueError, "schedule is 'ring'", sp.cached_attention, q, q, q, comm, q_positions=positions, k_positions=positions,
           schedule="ring")
    raises(ValueError, "k has 2 heads, expected a divisor of the 3 heads of q", sp.local_attention, q[:, :, :3], q[:, :, :2], q[:, :, :2])
    raises(ValueError, "expected one bound more", sp.Mask.of_pages, [0, 2], [3, 4], [])
    raises(ValueError, "window is 0", sp.Mask.of_pages, [0, 2], [3], [], window=0)
    raises(sp.Error, "page[0].keys is 4", sp.Mask.of_pages, [0, 2], [3], [(0, 0, 0, 4)])
    raises(ValueError, "expected both or none", sp.local_attention, q, q, q, q_positions=positions)
