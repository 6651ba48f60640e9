"""Packed sequences with scaled_dot_product_attention as the caller's kernel."""

import itertools
import unittest.mock

import torch

import seqpar.torch as sp
from seqpar.testing.reference import softmax
from torch_checks import Skip, check, same, whole


@check
def sdpa_separates_packed_sequences(comm, seed):
    """NaN and infinity in a sequence reach no other one, in outputs and gradients."""
    tokens = 7 * comm.size + 6
    documents, spoiled = (0, 3, 3, 9, tokens), slice(3, 9)
    q, k, v, grad = (whole(seed + i, 1, tokens, heads, 8) for i, heads in enumerate((4, 2, 2, 4)))
    bad_q, bad_k, bad_v = q.clone(), k.clone(), v.clone()
    bad_q[:, 4], bad_k[:, 5], bad_v[:, 6] = torch.nan, torch.inf, torch.nan
    for algorithm, kind, causal in itertools.product(("ulysses", "allgather_kv"), ("contiguous", "zigzag"), (True, False)):
        layout, found = sp.Layout(kind, tokens, comm.size), []
        for inputs in ((q, k, v), (bad_q, bad_k, bad_v)):
            mine = [sp.shard(x, layout, comm).requires_grad_() for x in inputs]
            out = sp.attention(*mine, comm, kernel="sdpa", layout=layout, algorithm=algorithm, causal=causal, cu_seqlens=documents)
            results = (out.detach(), *torch.autograd.grad(out, mine, sp.shard(grad, layout, comm)))
            found.append([sp.unshard(x, layout, comm) for x in results])
        for good, bad in zip(*found):
            assert bad[:, spoiled].isnan().any()
            for x in (good, bad):
                x[:, spoiled] = 0
            assert good.equal(bad), (algorithm, kind, causal)
        with torch.no_grad():  # FlexAttention has no backward pass on hosts
            for x, expected in zip(((q, k, v), (bad_q, bad_k, bad_v)), found):
                mine = [sp.shard(y, layout, comm) for y in x]
                out = sp.unshard(sp.attention(*mine, comm, kernel="flex_attention", layout=layout, algorithm=algorithm, causal=causal,
                                              cu_seqlens=documents), layout, comm)
                out[:, spoiled] = 0
                same(out, expected[0], 40)


@check
def compiled_flex_attention_on_hosts(comm, seed):
    """The runs of a zigzag are slices, which Inductor reads from wrong addresses; NaN in a packed sequence reaches no other one."""
    if comm.size != 2 or torch.empty(0).is_cuda or torch.__version__ < "2.15":
        raise Skip("compiles for hosts, runs on two ranks with PyTorch 2.15")
    documents, layout = (0, 20, 45, 100), sp.Layout("zigzag", 100, comm.size)
    q, k, v = (whole(seed + i, 1, 100, heads, 16) for i, heads in enumerate((4, 2, 2)))
    bad_k, bad_v = k.clone(), v.clone()
    bad_k[:, 22], bad_v[:, 21] = torch.inf, torch.nan
    mine, bad = ([sp.shard(x, layout, comm) for x in inputs] for inputs in ((q, k, v), (q, bad_k, bad_v)))
    for options in ({}, {"causal": True}, {"causal": True, "cu_seqlens": documents}):
        run = lambda *qkv: sp.attention(*qkv, comm, kernel="flex_attention", layout=layout, algorithm="allgather_kv", **options)
        compiled = torch.compile(run, fullgraph=True)
        same(compiled(*mine), run(*mine), 40)
        if "cu_seqlens" in options:
            out, expected = (sp.unshard(x, layout, comm) for x in (compiled(*bad), run(*mine)))
            assert out[:, 20:45].isnan().any()
            out[:, 20:45], expected[:, 20:45] = 0, 0
            same(out, expected, 40)
        torch.compiler.reset()


@check
def compiled_flex_attention_separates_packed_sequences(comm, seed):
    """A compiled graph has one call of flex_attention. On hosts it has no backward pass and compiles slowly: one rank, one case."""
    gpu = torch.empty(0).is_cuda
    if not gpu and (comm.size > 1 or torch.__version__ < "2.15"):
        raise Skip("GPUs, or one rank and PyTorch 2.15")
    documents, spoiled = (0, 3, 3, 140, 145, 300), slice(140, 145)
    q, k, v, grad = (whole(seed + i, 1, 300, heads, 16) for i, heads in enumerate((4, 2, 2, 4)))
    bad_q, bad_k, bad_v = q.clone(), k.clone(), v.clone()
    bad_q[:, 140], bad_k[:, 142], bad_v[:, 144] = torch.nan, torch.inf, torch.nan
    cases = (("ulysses", "zigzag", {"window": (9, 2), "softcap": 3.0}), ("ulysses", "contiguous", {"causal": True}),
             ("allgather_kv", "zigzag", {"causal": True, "window": (4, -1)}))
    for algorithm, kind, options in cases if gpu else cases[:1]:
        layout = sp.Layout(kind, 300, comm.size)
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        expected = softmax(*exact, cu_seqlens=documents, **options)
        expected = [expected.detach(), *torch.autograd.grad(expected, exact, grad.double())]
        run = torch.compile(lambda *qkv: sp.attention(*qkv, comm, kernel="flex_attention", layout=layout, algorithm=algorithm,
                                                      cu_seqlens=documents, **options), fullgraph=True)
        for inputs in ((q, k, v), (bad_q, bad_k, bad_v)):
            mine = [sp.shard(x, layout, comm).requires_grad_(gpu) for x in inputs]
            out = run(*mine)
            results = (out.detach(), *torch.autograd.grad(out, mine, sp.shard(grad, layout, comm))) if gpu else (out,)
            for one, other in zip(results, expected):
                one, other = sp.unshard(one, layout, comm), other.float()
                if inputs[0] is bad_q:
                    assert one[:, spoiled].isnan().any()
                    one[:, spoiled] = other[:, spoiled] = 0
                same(one, other, 80)
        torch.compiler.reset()


@check
def sdpa_of_many_documents(comm, seed):
    """Short documents are batches: a call for each length, in causal calls for similar lengths."""
    random = torch.Generator("cpu").manual_seed(seed)
    attend, calls = torch.nn.functional.scaled_dot_product_attention, []
    none = (-1, -1)
    for most, causal, window in ((16, True, none), (40, True, (3, -1)), (3, False, none), (1, True, none), (600, True, none)):
        lengths = torch.randint(1, most + 1, (30 if most < 100 else 4,), generator=random, device="cpu").tolist()
        lengths += [most, 0, most] if most < 100 else [513, 17, 513]
        bounds = tuple([0, *torch.tensor(lengths, device="cpu").cumsum(0).tolist()])
        exact = [whole(seed + i, 1, bounds[-1], heads, 8).double().requires_grad_() for i, heads in enumerate((4, 2, 2))]
        expected = softmax(*exact, causal=causal, window=window, cu_seqlens=bounds)
        grad = whole(seed + 5, *expected.shape)
        d_exact = torch.autograd.grad((expected * grad).sum(), exact)
        for algorithm, kind in (("ulysses", "contiguous"), ("allgather_kv", "zigzag"), ("allgather_kv", "contiguous")):
            layout = sp.Layout(kind, bounds[-1], comm.size)
            mine = [sp.shard(x.detach().float(), layout, comm).requires_grad_() for x in exact]
            run = lambda *qkv: sp.attention(*qkv, comm, kernel="sdpa", layout=layout, algorithm=algorithm, causal=causal, window=window,
                                            cu_seqlens=bounds)
            calls.clear()
            with unittest.mock.patch.object(torch.nn.functional, attend.__name__, lambda *x, **y: calls.append(0) or attend(*x, **y)):
                out = run(*mine)
            forms = {1: 1, 3: 3, 16: 1, 40: 3, 600: len(lengths)}[most]
            assert algorithm == "allgather_kv" or len(calls) <= forms, (most, len(calls))
            graph = torch.compile(run, fullgraph=True, backend="aot_eager") if most == 40 and comm.size == 2 and kind == "zigzag" else run
            for found in (out, graph(*mine)):
                same(found, sp.shard(expected.detach().float(), layout, comm), 40)
                for one, other in zip(torch.autograd.grad(found, mine, sp.shard(grad, layout, comm)), d_exact):
                    same(one, sp.shard(other.float(), layout, comm), 80)
