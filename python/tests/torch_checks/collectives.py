"""The collectives and their derivatives."""

import torch

import seqpar.torch as sp
from seqpar.torch import _batches
from torch_checks import check, raises, same, summed, whole


@check
def heads_and_sequence(comm, seed):
    lengths = [3 * r + 1 for r in range(comm.size)]
    x = whole(seed, 2, sum(lengths), 5, 4)
    mine = x.split(lengths, 1)[comm.rank].clone().requires_grad_()
    heads = sp.to_heads(mine, comm, tokens=lengths)
    every = [list(part) for part in torch.arange(5).tensor_split(comm.size)]
    same(heads, x[:, :, every[comm.rank]])
    back = sp.to_sequence(heads, comm, heads=5, tokens=lengths)
    same(back, mine)
    grad = whole(seed + 1, *x.shape).split(lengths, 1)[comm.rank]
    same(torch.autograd.grad(back, mine, grad)[0], grad)
    kv = whole(seed, 2, 2 * comm.size, 1, 4)  # one head for all ranks: gradients are summed
    mine = sp.shard(kv, sp.Layout("contiguous", 2 * comm.size, comm.size), comm).requires_grad_()
    sp.to_heads(mine, comm, query_heads=6).sum().backward()
    same(mine.grad, torch.full_like(mine, comm.size))


@check
def gather_and_scatter(comm, seed):
    lengths = [2 * r for r in range(comm.size)]  # rank 0 has none
    x = whole(seed, 3, sum(lengths), 2)
    mine = x.split(lengths, 1)[comm.rank].clone().requires_grad_()
    full = sp.all_gather(mine, comm, tokens=lengths)
    same(full, x)
    (full * (comm.rank + 1)).sum().backward()
    same(mine.grad, torch.full_like(mine, comm.size * (comm.size + 1) / 2))
    part = whole(seed + comm.rank, 3, 2 * comm.size).requires_grad_()
    out = sp.reduce_scatter(part, comm, dim=-1)
    same(out, sum(whole(seed + r, 3, 2 * comm.size) for r in range(comm.size))[:, 2 * comm.rank:][:, :2], comm.size)
    out.sum().backward()
    same(part.grad, torch.ones_like(part))
    numbers = torch.arange(6, dtype=torch.int64).view(2, 3) + 100 * comm.rank
    assert sp.all_gather(numbers, comm, dim=1)[1, -1] == 5 + 100 * (comm.size - 1)


@check
def halos(comm, seed):
    tokens = 2 * comm.size + 1
    layout = sp.Layout("contiguous", tokens, comm.size)
    x = whole(seed, 2, tokens, 3)
    mine = sp.shard(x, layout, comm).requires_grad_()
    left, right = sp.halo(mine, comm, left=3, right=1, tokens=layout.lengths)
    begin = int(layout.positions(comm.rank)[0])
    padded = torch.cat([torch.zeros(2, 3, 3), x, torch.zeros(2, 1, 3)], 1)
    same(left, padded[:, begin:begin + 3])
    same(right, padded[:, begin + 3 + mine.shape[1]:][:, :1])
    grads = whole(seed + 1 + comm.rank, *left.shape), whole(seed + 9 + comm.rank, *right.shape)
    gradient, = torch.autograd.grad((left, right), mine, grads)
    # <halo(x), y> = <x, adjoint(y)>, summed over the ranks
    ours = torch.stack([(left * grads[0]).sum() + (right * grads[1]).sum(), (mine * gradient).sum()]).detach()
    total = summed(ours, comm)
    same(total[0], total[1], 50)


@check
def redistribution(comm, seed):
    bounds = (0, 1, 1, 9, 23)
    a, b = sp.Layout("contiguous", 23, comm.size), sp.Layout("zigzag", 23, comm.size, cu_seqlens=bounds)
    x, ids = whole(seed, 2, 23, 3), torch.arange(23).repeat(2, 1)
    moved, moved_ids = sp.redistribute((sp.shard(x, a, comm).requires_grad_(), sp.shard(ids, a, comm)), a, b, comm)
    same(moved, sp.shard(x, b, comm))
    assert moved_ids.equal(sp.shard(ids, b, comm))
    mine = sp.shard(x, a, comm).requires_grad_()
    grad = whole(seed + 1, *x.shape)
    sp.redistribute(mine, a, b, comm).backward(sp.shard(grad, b, comm))
    same(mine.grad, sp.shard(grad, a, comm))
    assert b.positions(comm.rank, cu_seqlens=bounds).max() < 14
    assert sp.unshard(moved_ids, b, comm).equal(ids)
    table, mixed = whole(seed + 2, 23, 23 // comm.size), (sp.shard(x, a, comm), sp.shard(whole(seed + 2, 23, 23 // comm.size), a, comm, dim=0))
    moved, moved_table = sp.redistribute(mixed, a, b, comm, dim=-2)  # another dimension of each
    assert moved.equal(sp.shard(x, b, comm)) and moved_table.equal(sp.shard(table, b, comm, dim=0))


def scan_reference(states, factors, initial, op, reverse, marks):
    """{rank: (prefix, total)}; marks[rank]: the flag of every head."""
    x, result = initial, {}
    for p in sorted(range(len(states)), reverse=reverse):
        a = factors[p]
        x = torch.where((marks[p] == 1)[:, None, None], 0.0, x)
        moved = {"sum": lambda: x, "scalar": lambda: a[:, None, None] * x, "diag": lambda: a[:, :, None] * x,
                 "matrix": lambda: (a.mT if reverse else a) @ x}[op]()
        total = torch.where((marks[p] > 0)[:, None, None], 0.0, moved) + states[p]
        result[p] = (x, total)
        x = total
    return result


@check
def scans(comm, seed):
    heads, dk, dv, size = 4, 3, 2, comm.size
    shapes = {"sum": (), "scalar": (heads,), "diag": (heads, dk), "matrix": (heads, dk, dk)}
    for op, shape in shapes.items():
        for reverse in (False, True):
            for decay in ("linear", "log", "log2") if op in ("scalar", "diag") else ("linear",):
                for packed in (False, True):
                    flags = [[(r + s) % 3 for s in range(2)] for r in range(size)] if packed else None
                    exact = [whole(seed + r, heads, dk, dv).double().requires_grad_() for r in range(size)]
                    raw = [(-whole(seed + 50 + r, *shape).abs() if decay != "linear" else whole(seed + 50 + r, *shape))
                           .double().requires_grad_() for r in range(size)]
                    factors = [{"linear": lambda a: a, "log": torch.exp, "log2": torch.exp2}[decay](a) for a in raw]
                    initial = whole(seed + 99, heads, dk, dv).double().requires_grad_()
                    marks = [torch.tensor(flags[r] if packed else [0, 0]).repeat_interleave(heads // 2)
                             for r in range(size)]
                    expected = scan_reference(exact, factors, initial, op, reverse, marks)
                    grads = [(whole(seed + 7 + r, heads, dk, dv), whole(seed + 8 + r, heads, dk, dv)) for r in range(size)]
                    loss = sum((o.double() * g.double()).sum() for r in range(size) for o, g in zip(expected[r], grads[r]))
                    inputs = [exact[comm.rank], initial] + ([raw[comm.rank]] if shape else [])
                    d_exact = torch.autograd.grad(loss, inputs, allow_unused=True)
                    mine = [x.detach().float().requires_grad_() for x in inputs]
                    out = sp.all_scan(mine[0], mine[2] if shape else None, comm, op=op, initial=mine[1], reverse=reverse,
                                      decay=decay, flags=flags and flags[comm.rank])
                    for one, other in zip(out, expected[comm.rank]):
                        same(one, other.float(), 200)
                    d_mine = torch.autograd.grad(out, mine, grads[comm.rank])
                    for i, (one, other) in enumerate(zip(d_mine, d_exact)):
                        if other is None or (i == 1 and comm.rank != (size - 1 if reverse else 0)):
                            other = torch.zeros_like(one)  # only the first rank reads the initial state
                        same(one, other.float(), 500)


@check
def transitions_before_sequences_have_no_effect(comm, seed):
    """A rank where all sequences start discards what its transition multiplies, NaN too, also in gradients."""
    state = whole(seed + comm.rank, 4, 3, 2).requires_grad_()
    decay = torch.full((4, 3), torch.nan, requires_grad=True)
    prefix, total = sp.all_scan(state, decay, comm, flags=[1, 1])
    d_state, d_decay = torch.autograd.grad(prefix.sum() + total.sum(), (state, decay))
    assert not prefix.any() and total.equal(state) and not d_decay.any()
    same(d_state, torch.ones_like(state))


@check
def batches(comm, seed):
    ids = torch.arange(1, 24).repeat(2, 1)
    layout = sp.Layout("zigzag", 23, comm.size)
    mine, labels, positions = sp.shard_batch(ids, layout, comm)
    assert (mine == positions + 1).all()
    assert (labels == torch.where(mine == 23, -100, mine + 1)).all()
    packed = sp.shard_batch({"input_ids": ids}, layout, comm, cu_seqlens=(0, 9, 23))
    assert (packed[1][packed[0] == 9] == -100).all()
    assert packed[2].max() < 14
    losses = mine.float().masked_fill(labels == -100, float("nan"))  # ignored tokens must not matter
    total = summed(sp.token_mean(losses, labels != -100, comm), comm)
    raises(ValueError, "token_mean: mask has the shape", sp.token_mean, losses, (labels != -100)[..., None], comm)
    same(total, torch.tensor(11.5), 50)
    half = torch.full((70000,), 1.5, dtype=torch.float16)  # the sum is infinite in fp16
    same(summed(sp.token_mean(half, None, comm), comm), torch.tensor(1.5), 50)
    weights = torch.full((3,), 0.125 / comm.size)
    same(summed(sp.token_mean(torch.full((3,), 7.0), weights, comm), comm), torch.tensor(7.0), 50)
    assert not sp.token_mean(losses, torch.zeros_like(losses), comm)
    for bounds in ((3, 23), (0, 9), (0, 9, 5, 23), (0, 24)):
        raises(ValueError, "expected ascending bounds from 0 to 23", sp.shard_batch, ids, layout, comm, cu_seqlens=bounds)
        raises(ValueError, "expected ascending bounds from 0 to 23", layout.positions, comm.rank, cu_seqlens=bounds)
    unordered = {"input_ids": ids[:1], "cu_seq_lens_q": torch.tensor([0, 9, 5, 23])}
    raises(ValueError, "expected ascending bounds from 0 to 23", _batches.whole_of, unordered)
    raises(ValueError, "shift_labels: ids has the shape (23,)", sp.shift_labels, ids[0])
