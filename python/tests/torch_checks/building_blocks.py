"""Merges, rings, asynchronous work, short convolutions, the caller's kernels, and the cache of plans."""

import gc
import itertools
import unittest.mock

import torch

import seqpar.torch as sp
from seqpar.testing.reference import softmax
from torch_checks import Skip, check, raises, same, summed, whole


@check
def merging_partial_attention(comm, seed):
    lengths = [2 * r + 1 for r in range(comm.size)]
    shape = (2, sum(lengths), 3, 4)
    outs = [whole(seed + r, *shape).double().requires_grad_() for r in range(comm.size)]
    lses = [whole(seed + 20 + r, 2, 3, shape[1]).double() for r in range(comm.size)]
    for r, lse in enumerate(lses):
        lse[0, 0, r] = -torch.inf  # one rank has no key for the row
        lse[1, 2, 0] = -torch.inf  # no rank has one
        lse.requires_grad_()
    total = torch.logsumexp(torch.stack(lses), 0)
    weights = [torch.exp(lse - total.masked_fill(total == -torch.inf, 0)) for lse in lses]
    merged = sum(w.transpose(1, 2)[..., None] * o for w, o in zip(weights, outs))
    mine = outs[comm.rank].detach().float().clone()
    mine[0, comm.rank, 0] = torch.nan  # ignored
    mine.requires_grad_()
    lse = lses[comm.rank].detach().float().requires_grad_()
    out, top = sp.merge(mine, lse, comm, tokens=lengths)
    same(out, merged.split(lengths, 1)[comm.rank].float(), 8)
    same(top, total.split(lengths, 2)[comm.rank].float(), 8)
    grads = whole(seed + 50, *shape), whole(seed + 51, *total.shape)
    finite = total > -torch.inf
    loss = (merged * grads[0]).sum() + (total[finite] * grads[1][finite]).sum()
    expected = torch.autograd.grad(loss, (outs[comm.rank], lses[comm.rank]))
    found = torch.autograd.grad((out, top), (mine, lse), [g.split(lengths, d)[comm.rank] for g, d in zip(grads, (1, 2))])
    same(found[0], torch.nan_to_num(expected[0].float()), 40)
    same(found[1], torch.nan_to_num(expected[1].float()), 40)


@check
def equal_calls_on_two_streams(comm, seed):
    """Calls of one plan on two streams of a GPU do not share its workspace at the same time."""
    if comm.device.type != "cuda":
        raise Skip("runs on GPUs")
    inputs = [[whole(seed + 10 * i + j, 1, 2048, 8, 128, dtype=torch.bfloat16) for j in range(4)] for i in range(4)]
    gates = torch.full((1, 2048, 8, 128), -0.1)
    functions = {
        "ring": lambda q, k, v: sp.attention(q, k, v, comm, causal=True, algorithm="ring"),
        "ulysses": lambda q, k, v: sp.attention(q, k, v, comm, causal=True, algorithm="ulysses"),
        "gla": lambda q, k, v: sp.gla(q, k, v, gates, comm),
        "gated_delta_rule": lambda q, k, v: sp.gated_delta_rule(q, k, v, gates[..., 0], -gates[..., 0], comm, normalize=True)}
    streams = [torch.cuda.Stream() for _ in range(2)]
    for name, function in functions.items():
        def results(q, k, v, grad):
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            out = function(*leaves)
            return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

        expected = [results(*x) for x in inputs]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        found = []
        for i in range(16):
            with torch.cuda.stream(streams[i % 2]):
                found.append(results(*inputs[i % 4]))
        torch.cuda.synchronize()
        for i, tensors in enumerate(found):
            for x, exact in zip(tensors, expected[i % 4]):
                apart = (x - exact).float().norm() / exact.float().norm()
                assert apart <= 2.0 ** -8, (name, i, apart)


@check
def shifts_and_rings(comm, seed):
    size = comm.size
    xs = [whole(seed + r, 2, 3) for r in range(size)]
    weights = {(r, s): whole(seed + 100 + size * r + s, 2, 3) for r, s in itertools.product(range(size), repeat=2)}
    for reverse in (False, True):
        mine = xs[comm.rank].clone().requires_grad_()
        numbers, sources, loss = torch.tensor([comm.rank]), [], 0.0
        for source, (x, number) in sp.ring((mine, numbers), comm, reverse=reverse):
            same(x, xs[source])
            assert int(number) == source
            sources.append(source)
            loss = loss + (weights[comm.rank, source] * x).sum()
        step = -1 if not reverse else 1
        assert sources == [(comm.rank + step * i) % size for i in range(size)]
        loss.backward()
        same(mine.grad, sum(weights[r, comm.rank] for r in range(size)), size)
    moved = sp.shift(xs[comm.rank], comm, by=2)
    same(moved, xs[(comm.rank - 2) % size])
    with sp.Ring((xs[0], torch.zeros(3, dtype=torch.bfloat16), torch.zeros(0)), comm) as ring:
        for _ in range(2):
            ring.tensors[0].copy_(xs[comm.rank])
            ring.tensors[1].fill_(comm.rank)
            for step in range(size):
                if step + 1 < size:
                    ring.post()
                assert ring.source == (comm.rank - step) % size
                same(ring.tensors[0].clone(), xs[ring.source])
                assert (ring.tensors[1] == ring.source).all() and ring.tensors[2].numel() == 0
                if step + 1 < size:
                    ring.wait()
            ring.reset()
        assert ring.query()["engine"]
    raises(RuntimeError, "closed", ring.post)


@check
def work_in_two_halves(comm, seed):
    layouts = [sp.Layout(kind, 6 * comm.size, comm.size) for kind in ("contiguous", "zigzag")]

    def halves(x, decay):
        first = sp.start_redistribute(x, *layouts, comm)
        second = sp.start_to_heads(x, comm)
        third = sp.start_redistribute((x, 2 * x), *layouts, comm)
        scan = sp.start_all_scan(x[0, :4], decay, comm, op="scalar")
        beside = x.sin()
        heads = second.wait()  # not in the order of their starts
        (y, z), (prefix, total) = third.wait(), scan.wait()
        edges = sp.start_halo(x, comm, left=2).wait()
        return (first.wait() * y).sum() + heads.square().sum() + (beside * z).sum() + (prefix * total).sum() + edges[0].sum()

    def at_once(x, decay):
        y, z = sp.redistribute((x, 2 * x), *layouts, comm)
        prefix, total = sp.all_scan(x[0, :4], decay, comm, op="scalar")
        return ((sp.redistribute(x, *layouts, comm) * y).sum() + sp.to_heads(x, comm).square().sum() + (x.sin() * z).sum()
                + (prefix * total).sum() + sp.halo(x, comm, left=2)[0].sum())

    results = []
    functions = [at_once, halves]
    if comm.size == 2:
        functions.append(torch.compile(halves, fullgraph=True, backend="aot_eager"))
    for function in functions:
        x = whole(seed + comm.rank, 1, 6, 4, 3).requires_grad_()
        decay = whole(seed + 9 + comm.rank, 4).requires_grad_()
        value = function(x, decay)
        value.backward()
        results.append((value.detach(), x.grad, decay.grad))
    for result in results[1:]:
        for one, other in zip(result, results[0]):
            same(one, other, 100)
    work = sp.start_all_gather(whole(seed, 1, 2), comm)
    work.wait()
    raises(RuntimeError, "waited for once", work.wait)
    others = set(comm._started)  # of operators called without a Work
    for _ in range(5):  # dropped: they still run, in order, and leave nothing behind
        sp.start_redistribute(whole(seed, 1, 6, 2), *layouts, comm)
        dropped = sp.start_all_gather(whole(seed, 1, 2), comm)
    dropped = [dropped]
    dropped.append(dropped)  # for the garbage collector
    del dropped
    gc.collect()
    sp.start_all_gather(whole(seed, 1, 2), comm).wait()
    if comm.device.type == "cuda":
        torch.cuda.synchronize()
        sp.start_all_gather(whole(seed, 1, 2), comm).wait()
    assert set(comm._started) == others, (set(comm._started), others)
    raises(TypeError, "float64", sp.start_all_scan, whole(seed, 1, 2, 2).double(), None, comm, op="sum")


def _convolved(x, weight, bias, silu, bounds):
    parts = []
    for begin, end in ((b, e) for b, e in zip(bounds, bounds[1:]) if b < e):
        padded = torch.nn.functional.pad(x[:, begin:end].mT, (weight.shape[1] - 1, 0))
        parts.append(torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=len(weight)).mT)
    y = torch.cat(parts, 1)
    return torch.nn.functional.silu(y) if silu else y


@check
def short_convolutions(comm, seed):
    for tokens, bounds, silu, biased in ((17, None, True, True), (17, (0, 1, 3, 3, 16, 17), False, True), (2, None, True, False)):
        layout = sp.Layout("contiguous", tokens, comm.size)
        batch = 1 if bounds else 2
        exact = [whole(seed, batch, tokens, 5), whole(seed + 1, 5, 4)] + ([whole(seed + 2, 5)] if biased else [])
        exact = [x.double().requires_grad_() for x in exact]
        expected = _convolved(*exact, *([] if biased else [None]), silu, bounds or (0, tokens))
        grad = whole(seed + 3, *expected.shape)
        d_exact = torch.autograd.grad((expected * grad).sum(), exact)
        mine = [sp.shard(exact[0].detach().float(), layout, comm), *(x.detach().float() for x in exact[1:])]
        mine = [x.clone().requires_grad_() for x in mine]
        y = sp.short_conv(mine[0], mine[1][:, None], comm, bias=mine[2] if biased else None,
                          activation="silu" if silu else None, cu_seqlens=bounds, layout=layout)
        same(y, sp.shard(expected.detach().float(), layout, comm), 8)
        d_mine = torch.autograd.grad(y, mine, sp.shard(grad, layout, comm))
        same(d_mine[0], sp.shard(d_exact[0].float(), layout, comm), 16)
        for one, other in zip(d_mine[1:], d_exact[1:]):
            same(summed(one, comm), other.float(), 8 * tokens)
    x = whole(seed, 1, 4, 5)
    raises(ValueError, "activation", sp.short_conv, x, whole(seed, 5, 4), comm, activation="gelu")
    raises(TypeError, "short_conv: layout: got 'zigzag', expected a seqpar.torch.Layout", sp.short_conv, x, whole(seed, 5, 4), comm, layout="zigzag")
    raises(ValueError, "zigzag", sp.short_conv, x, whole(seed, 5, 4), comm, layout=sp.Layout("zigzag", 4 * comm.size, comm.size))
    if comm.device.type == "cpu":  # elsewhere it consists of a halo and a sum, which accept any
        raises(sp.Error, "width", sp.short_conv, x, whole(seed, 5, 40), comm)


@check
def kernels_of_the_caller(comm, seed):
    tokens = 8 * comm.size + 5
    documents = (0, 1, 3, 3, 9, tokens)
    cases = [({"causal": True}, 4, 2), ({}, 4, 1), ({"causal": True, "window": (3, -1)}, 5, 5), ({"causal": True}, 9, 3),
             ({"causal": True, "cu_seqlens": documents}, 6, 2), ({"cu_seqlens": documents}, 2, 1),
             ({"causal": True, "cu_seqlens": documents, "window": (2, -1)}, 1, 1), ({"window": (2, 3)}, 4, 4)]
    for options, heads, kv_heads in cases:
        exact = [whole(seed + i, 1, tokens, h, 8).double().requires_grad_() for i, h in enumerate((heads, kv_heads, kv_heads))]
        expected = softmax(*exact, scale=0.5, **options)
        grad = whole(seed + 5, *expected.shape)
        d_exact = torch.autograd.grad((expected * grad).sum(), exact)
        for algorithm, kind in itertools.product(("ulysses", "allgather_kv"), ("contiguous", "zigzag")):
            layout = sp.Layout(kind, tokens, comm.size)
            mine = [sp.shard(x.detach().float(), layout, comm).requires_grad_() for x in exact]
            run = lambda: sp.attention(*mine, comm, kernel=sp.sdpa, layout=layout, algorithm=algorithm, scale=0.5, **options)
            if algorithm == "allgather_kv" and "window" in options and "causal" not in options:
                raises(ValueError, "ulysses", run)
                continue
            out = run()
            same(out, sp.shard(expected.detach().float(), layout, comm), 40)
            for one, other in zip(torch.autograd.grad(out, mine, sp.shard(grad, layout, comm)), d_exact):
                same(one, sp.shard(other.float(), layout, comm), 80)
    layout, x = sp.Layout("zigzag", 6 * comm.size, comm.size), whole(seed, 1, 6 * comm.size, 4, 8)
    expected = sp.shard(softmax(x, x, x, causal=True, softcap=2.0), layout, comm)
    mine = sp.shard(x, layout, comm)
    same(sp.attention(mine, mine, mine, comm, kernel=sp.flex, layout=layout, causal=True, softcap=2.0), expected, 40)
    sinks = whole(seed + 1, 4)
    seen = []
    sp.attention(mine, mine, mine, comm, kernel=lambda q, k, v, call: seen.append(call) or v, layout=layout, sinks=sinks)
    first, count, *_ = sp._kernels._heads_of(4, 4, comm.size, comm.rank)
    assert seen[0].sinks.equal(sinks[first:first + count])
    one, leaf = whole(seed, 1, 4, 1, 8), torch.zeros(1, requires_grad=True)  # one head: other ranks' gradient is 0
    sp.attention(one, one, one, comm, sinks=leaf, kernel=lambda q, k, v, call: v * call.sinks[:, None]).sum().backward()
    same(summed(leaf.grad, comm), summed(one.sum()[None], comm), 200)
    raises(ValueError, "expected one of ulysses", sp.attention, mine, mine, mine, comm, kernel=sp.sdpa, algorithm="ring")
    raises(ValueError, "striped", sp.attention, mine, mine, mine, comm, kernel=sp.sdpa, algorithm="allgather_kv",
           layout=sp.Layout("striped", 6 * comm.size, comm.size))
    if comm.size == 2:
        for algorithm in ("ulysses", "allgather_kv"):
            function = torch.compile(lambda q: sp.attention(q, q, q, comm, kernel=sp.sdpa, layout=layout, causal=True,
                                                            algorithm=algorithm), fullgraph=True, backend="aot_eager")
            one, other = mine.clone().requires_grad_(), mine.clone().requires_grad_()
            out = function(one)
            same(out, sp.attention(other, other, other, comm, causal=True, layout=layout, algorithm=algorithm), 40)
            out.square().sum().backward()
            sp.attention(other, other, other, comm, causal=True, layout=layout, algorithm=algorithm).square().sum().backward()
            same(one.grad, other.grad, 80)


@check
def checkpoints_of_kernels_of_the_caller(comm, seed):
    """Ranks without heads or tokens take part in the exchanges that torch.utils.checkpoint calls again."""
    x, uneven = whole(seed, 1, 6, 1, 8), sp.Layout("pieces", 6, comm.size, bounds=(0, 6), owners=(comm.size - 1,))
    for algorithm, layout in (("ulysses", None), ("allgather_kv", uneven)):
        for needed in (0, 1, 2):
            found = []
            for checkpointed in (False, True):
                mine = [(x if layout is None else sp.shard(x, layout, comm)).clone() for _ in range(3)]
                mine[needed].requires_grad_()
                attend = lambda *qkv: sp.attention(*qkv, comm, kernel="sdpa", algorithm=algorithm, layout=layout, causal=True)
                out = torch.utils.checkpoint.checkpoint(attend, *mine, use_reentrant=False) if checkpointed else attend(*mine)
                out.square().sum().backward()
                found.append(mine[needed].grad)
            assert found[0].equal(found[1]), (algorithm, needed)
    leaf = x.clone().requires_grad_()
    attend = lambda x: sp.attention(x, x, x, comm)
    with unittest.mock.patch.object(sp._refusals, "text_of", lambda error: 1 / 0):  # the end of a second run is no error
        torch.utils.checkpoint.checkpoint(attend, leaf, use_reentrant=False).sum().backward()


@check
def kernels_of_the_caller_read_any_memory(comm, seed):
    """Queries and gradients between the elements of other tensors: on GPUs 2 bytes behind a multiple of 16, and with rows of 41
    elements. A kernel gets its gradient in the strides of its output."""
    tokens, dim, kind = 9 * comm.size, 40, torch.float32 if comm.device.type == "cpu" else torch.bfloat16
    layout = sp.Layout("pieces", tokens, comm.size, bounds=(0, *range(5, tokens, 9), tokens), owners=(0, *range(comm.size)))
    read, strides = [], []

    def kernel(q, k, v, call):
        read.append(q)
        out = sp.sdpa(q, k, v, call)
        out.register_hook(lambda grad: (read.append(grad), strides.append((grad.stride(), out.stride())))[0])
        return out

    x, grad = (whole(seed + i, 2, tokens, 2, dim).to(kind) for i in range(2))
    mine = [sp.shard(y, layout, comm) for y in (x, x, x, grad)]
    results = []
    places = [lambda y: y, lambda y: torch.empty(y.numel() + 1, dtype=y.dtype, device=y.device)[1:].view_as(y),
              lambda y: y.new_empty(*y.shape[:3], dim + 1)[..., 1:], lambda y: y.new_empty(*y.shape, 2)[..., 1],
              lambda y: y.transpose(1, 2).contiguous().transpose(1, 2), lambda y: y.new_empty(*y.shape[:3], 2 * dim)[..., :dim]]
    for place in places:
        q, k, v, d_out = (place(y).copy_(y) for y in mine)
        leaf = q.requires_grad_()
        out = sp.attention(leaf, k, v, comm, causal=True, kernel=kernel, algorithm="allgather_kv", layout=layout)
        results.append((out, *torch.autograd.grad(out, leaf, d_out)))
    for y in read:
        assert y.stride(-1) == 1 and (not y.is_cuda or y.data_ptr() % 16 == 0), (y.shape, y.stride(), y.data_ptr() % 16)
    assert strides and all(one == other for one, other in strides), strides
    for found in results[1:]:
        for one, other in zip(found, results[0]):
            torch.testing.assert_close(one, other, rtol=2.0 ** -7, atol=2.0 ** -7)


@check
def layouts_of_packed_sequences(comm, seed):
    """A contiguous layout of each sequence is no contiguous layout of the whole."""
    tokens = 7 * comm.size
    layout = sp.Layout("contiguous", tokens, comm.size, cu_seqlens=(0, 2, 2, tokens // 2, tokens))
    x = whole(seed, 1, tokens, comm.size, 8)
    mine, expected = sp.shard(x, layout, comm), sp.shard(softmax(x, x, x, causal=True), layout, comm)
    for algorithm in ("ulysses", "allgather_kv"):
        same(sp.attention(mine, mine, mine, comm, kernel="sdpa", algorithm=algorithm, layout=layout, causal=True), expected, 40)
    raises(ValueError, "short_conv: layout.cu_seqlens is ", sp.short_conv, mine[:, :, 0], torch.ones(8, 3), comm, layout=layout)


@check
def plans_are_evicted_in_order(comm, seed):
    group = torch.distributed.new_group(list(range(comm.size)))
    with sp.comm(group, plans=3) as small:
        expected = {}
        for tokens in (4, 5, 6, 4, 7, 8, 4, 5):  # more packings than plans, forward and backward
            x = whole(seed + small.rank, 1, tokens, 2, 8).requires_grad_()
            bounds = (0, tokens, tokens * small.size)
            out = sp.attention(x, x, x, small, causal=True, cu_seqlens=bounds, algorithm="ring")
            out.square().sum().backward()
            assert len(small.plans) <= 3
            if tokens in expected:
                assert expected[tokens].equal(x.grad)
            expected[tokens] = x.grad
        keys = [key[2][1] for key in sorted(small.plans, key=lambda key: small.plans[key].used)]
        assert keys == [8, 4, 5], keys  # the tokens of q's shape, the latest last
    with sp.comm(group, packings=2) as few:
        outs, xs = [], []
        for tokens in (4, 5, 6, 4):  # the plans of the first packings are freed before their backward passes
            xs.append(whole(seed + few.rank, 1, 8, 2, 8).requires_grad_())
            outs.append(sp.attention(xs[-1], xs[-1], xs[-1], few, causal=True, cu_seqlens=(0, tokens, 8 * few.size), algorithm="ring"))
            assert len(few.plans) <= 2
        sp.attention(xs[0], xs[0], xs[0], few, causal=True, cu_seqlens=(0, 4, 8 * few.size), window=(3, 0), algorithm="ring")
        sp.attention(xs[0], xs[0], xs[0], few, causal=True, algorithm="ring")
        assert len(few.plans) == 4, few.plans.keys()  # other options, and no packing, do not count
        for out in outs:
            out.square().sum().backward()
        assert xs[0].grad.equal(xs[3].grad) and not xs[0].grad.equal(xs[1].grad)
    raises(ValueError, "packings is 0", sp.comm, torch.distributed.group.WORLD, packings=0)
    raises(ValueError, "plans is 0", sp.comm, torch.distributed.group.WORLD, plans=0)


@check
def plans_in_graphs_are_kept(comm, seed):
    """A replay uses the workspace of the captured plan, however many plans have been created since the capture."""
    group = torch.distributed.new_group(list(range(comm.size)))
    with sp.comm(group, packings=2) as few:
        def call(x, tokens):
            return sp.attention(x, x, x, few, causal=True, cu_seqlens=(0, tokens, 256 * few.size), algorithm="ring")

        inputs = [whole(seed + i + few.rank, 1, 256, 2, 64, dtype=torch.bfloat16) for i in (0, 10)]
        expected = [call(x, 5) for x in inputs]
        captured, x, graph = next(iter(few.plans.values())), inputs[0].clone(), None
        if comm.device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                out = call(x, 5)
        else:
            captured.captured = True
        for tokens in (6, 7, 8, 9):
            call(x, tokens)
            torch.full((1 << 22,), torch.nan)  # takes the memory of plans that were freed
        assert captured.handle is not None and len(few.plans) == 3, few.plans
        if graph is not None:
            x.copy_(inputs[1])
            graph.replay()
            assert out.equal(expected[1])
            del graph
