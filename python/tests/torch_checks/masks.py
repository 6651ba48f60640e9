"""Masks as slices and solved layouts against scaled_dot_product_attention with a boolean mask."""

import torch

import seqpar.torch as sp
from torch_checks import Skip, check, raises, same, whole

MASKS = (sp.Mask.documents((0, 5, 5, 23, 40)), sp.Mask.prefix_lm(9, 37), sp.Mask.shared_prefix(11, (7, 1, 12)),
         sp.Mask.block_causal((0, 8, 16, 30)), sp.Mask.window(33, 6, 2))


@check
def masks_by_name_see_their_definitions(comm, seed):
    q, k = torch.arange(40)[:, None], torch.arange(40)[None]
    document, answer, block = (torch.bucketize(torch.arange(40), torch.tensor(ends), right=True) for ends in
                               ((5, 23), (11, 18, 19), (8, 16)))
    of = {name: (x[:, None], x[None]) for name, x in (("document", document), ("answer", answer), ("block", block))}
    seen = ((of["document"][0] == of["document"][1]) & (k <= q), (k < 9) | (k <= q),
            (k <= q) & ((k < 11) | (of["answer"][0] == of["answer"][1])), of["block"][1] <= of["block"][0], (k >= q - 6) & (k <= q + 2))
    for mask, expected in zip(MASKS, seen):
        assert mask.dense().cpu().equal(expected[:mask.tokens, :mask.tokens].cpu()), mask


@check
def masks_equal_dense_attention(comm, seed):
    for mask in MASKS:
        layout = sp.solve_layout(mask, comm.size)
        assert max(layout.lengths) - min(layout.lengths) <= 1 and len(layout.owners) <= 2 * comm.size - 1
        all_of = [whole(seed + i, 1, mask.tokens, 2, 8).requires_grad_() for i in range(3)]
        grad = whole(seed + 3, 1, mask.tokens, 2, 8)
        out = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in all_of), attn_mask=mask.dense())
        expected = torch.autograd.grad(out.transpose(1, 2), all_of, grad)
        for algorithm in ("auto", "ring", "allgather_kv", "ulysses", "mesh"):
            mine = [sp.shard(x.detach(), layout, comm).requires_grad_() for x in all_of]
            own = sp.attention(*mine, comm, mask=mask, layout=layout, algorithm=algorithm)
            same(sp.unshard(own.detach(), layout, comm), out.transpose(1, 2).detach(), 40)
            for got, want in zip(torch.autograd.grad(own, mine, sp.shard(grad, layout, comm)), expected):
                same(sp.unshard(got, layout, comm), want, 80)


@check
def masks_of_large_rectangles(comm, seed):
    """On GPUs rectangles of whole tiles with at least 8192 x 8192 scores are dense calls of cuDNN, the others ragged ones."""
    tile, dtype, bound = (4096, torch.bfloat16, 2.0 ** -6) if comm.device.type == "cuda" else (4, torch.float32, 2.0 ** -16)
    for mask in (sp.Mask.prefix_lm(4 * tile, 6 * tile), sp.Mask.block_causal([2 * tile * i for i in range(4)])):
        layout = sp.solve_layout(mask, comm.size)
        q, k, v, grad = (whole(seed + i, 1, mask.tokens, 1, 64).to(dtype) for i in range(4))
        inputs = [x.double()[0, :, 0].requires_grad_() for x in (q, k, v)]
        scores = (inputs[0] @ inputs[1].T / 8).masked_fill(~mask.dense(comm.device), -torch.inf)
        out = scores.softmax(1) @ inputs[2]
        expected = torch.autograd.grad(out, inputs, grad.double()[0, :, 0])
        del scores
        mine = [sp.shard(x, layout, comm).requires_grad_() for x in (q, k, v)]
        own = sp.attention(*mine, comm, mask=mask, layout=layout)
        for got, want in zip((own, *torch.autograd.grad(own, mine, sp.shard(grad, layout, comm))), (out, *expected)):
            apart = (sp.unshard(got.detach(), layout, comm)[0, :, 0] - want).norm() / want.norm()
            assert apart <= bound, f"{mask.tokens} tokens, relative error {apart.item()}, expected at most {bound}"


@check
def other_forms_of_masks_become_slices(comm, seed):
    from torch.nn.attention import flex_attention as flex
    document = torch.tensor([0] * 70 + [1] * 3 + [2] * 150 + [3] * 77)
    mods = {"documents": (lambda b, h, q, k: (document[q] == document[k]) & (q >= k), 4),
            "window": (lambda b, h, q, k: (q >= k) & (q - k < 40), 2),
            "prefix": (lambda b, h, q, k: (k < 90) | (q >= k), 2),
            "every third key": (lambda b, h, q, k: (q >= k) & (k % 3 == 0), None),
            "nothing": (lambda b, h, q, k: (q < 0) & (k < 0), 1)}
    for name, (mod, count) in mods.items():
        block_mask = flex.create_block_mask(mod, None, None, 300, 300, device="cpu", BLOCK_SIZE=64)
        mask, dense = sp.Mask.from_block_mask(block_mask), flex.create_mask(mod, 1, 1, 300, 300, device="cpu")[0, 0]
        assert mask.dense().equal(dense) and sp.Mask.from_dense(dense).dense().equal(dense), name
        assert (mask.rest is not None) == (count is None)
        assert count is None or len(mask.slices) == count, f"{name}: {len(mask.slices)} slices, expected {count}"
    for x in MASKS:
        again = sp.Mask.from_dense(x.dense())
        assert again.dense().equal(x.dense()) and len(again.slices) <= len(x.slices) + 2
    random = torch.rand(31, 31, generator=torch.Generator().manual_seed(seed)) < 0.6
    assert sp.Mask.from_dense(random).dense().equal(random)
    sp.solve_layout(sp.Mask.from_dense(random), comm.size)
    raises(ValueError, "expected torch.bool", sp.Mask.from_dense, torch.ones(3, 3))
    raises(ValueError, "B = 2 and H = 1", sp.Mask.from_block_mask, flex.create_block_mask(mods["prefix"][0], 2, None, 8, 8, device="cpu"))
    raises(ValueError, "8 queries and 9 keys", sp.Mask.from_block_mask,
           flex.create_block_mask(mods["prefix"][0], None, None, 8, 9, device="cpu"))


@check
def blocks_of_scattered_keys_are_computed_by_flex_attention(comm, seed):
    from torch.nn.attention import flex_attention as flex
    device = comm.device
    document = torch.tensor([0] * 70 + [1] * 33 + [2] * 97, device=device)
    mods = ((lambda b, h, q, k: (document[q] == document[k]) & (q >= k) & ((k < 128) | ((q + k) % 3 == 0)), {}),
            (lambda b, h, q, k: (q * 7 + k * 5) % 11 < 4, {"causal": True, "window": (90, -1), "softcap": 2.0}))
    for mod, options in mods:
        mask = sp.Mask.from_block_mask(flex.create_block_mask(mod, None, None, 200, 200, device=device, BLOCK_SIZE=64))
        dense = flex.create_mask(mod, 1, 1, 200, 200, device=device)[0, 0]
        assert mask.rest is not None and mask.dense(device).equal(dense)
        at = torch.arange(200, device=device)
        if options:
            dense = dense & (at[:, None] >= at) & (at[:, None] - at <= 90)
        q, k, v, grad = (whole(seed + i, 2, 200, heads, 16) for i, heads in enumerate((4, 2, 2, 4)))
        inputs = [x.requires_grad_() for x in (q, k, v)]
        ends = [x.transpose(1, 2).repeat_interleave(4 // x.shape[2], 1) for x in inputs]
        scores = ends[0] @ ends[1].transpose(2, 3) / 4
        scores = 2 * torch.tanh(scores / 2) if options else scores
        weights = torch.softmax(scores.masked_fill(~dense, -torch.inf), 3).nan_to_num(0)
        out = (weights @ ends[2]).transpose(1, 2)
        expected = torch.autograd.grad(out, inputs, grad)
        for layout, algorithm in ((sp.solve_layout(mask, comm.size), "allgather_kv"), (sp.Layout("zigzag", 200, comm.size), "ring")):
            mine = [sp.shard(x.detach(), layout, comm).requires_grad_() for x in inputs]
            own, lse = sp.attention(*mine, comm, mask=mask, layout=layout, algorithm=algorithm, return_lse=True, reserve=True, **options)
            same(sp.unshard(own.detach(), layout, comm), out.detach(), 60)
            assert ((lse == -torch.inf) == (own.detach() == 0).all(3).transpose(1, 2)).all()
            for got, want in zip(torch.autograd.grad(own, mine, sp.shard(grad, layout, comm)), expected):
                same(sp.unshard(got, layout, comm), want, 120)
    raises(ValueError, "got kernel and a mask", sp.attention, *mine, comm, mask=mask, layout=layout, kernel="sdpa")


@check
def scattered_keys_on_any_shards(comm, seed):
    """Ranks without tokens, keys in a layout of their own, "local", which sees the rank's own keys, and torch.autocast."""
    from torch.nn.attention import flex_attention as flex
    if comm.device.type != "cpu":
        raise Skip("runs on hosts")
    mod, last, tokens = lambda b, h, q, k: (q * 7 + k * 5) % 11 < 4, comm.size - 1, 40
    mask = sp.Mask.from_block_mask(flex.create_block_mask(mod, None, None, tokens, tokens, device="cpu", BLOCK_SIZE=16))
    assert mask.rest is not None
    seen = flex.create_mask(mod, 1, 1, tokens, tokens, device="cpu")[0, 0]
    inputs = [whole(seed + i, 1, tokens, 2, 8).requires_grad_() for i in range(3)]
    grad = whole(seed + 3, 1, tokens, 2, 8)
    uneven = sp.Layout("pieces", tokens, comm.size, bounds=(0, 11, tokens), owners=(last, last))
    zigzag, striped = (sp.Layout(kind, tokens, comm.size) for kind in ("zigzag", "striped"))
    owners = torch.empty(tokens, dtype=torch.int64)
    for rank in range(comm.size):
        owners[zigzag.positions(rank)] = rank
    for layout, kv_layout, options in ((uneven, uneven, {"algorithm": "allgather_kv"}), (striped, zigzag, {"algorithm": "ring"}),
                                       (zigzag, zigzag, {"algorithm": "local"})):
        visible = seen & (owners[:, None] == owners[None]) if options["algorithm"] == "local" else seen
        weights = (torch.einsum("bqhd,bkhd->bhqk", *inputs[:2]) * 8 ** -0.5).masked_fill(~visible, -torch.inf).softmax(3).nan_to_num(0)
        out = torch.einsum("bhqk,bkhd->bqhd", weights, inputs[2])
        expected = torch.autograd.grad(out, inputs, grad)
        mine = [sp.shard(x.detach(), at, comm).requires_grad_() for x, at in zip(inputs, (layout, kv_layout, kv_layout))]
        if kv_layout is not layout:
            options["kv_layout"] = kv_layout
        own = sp.attention(*mine, comm, mask=mask, layout=layout, **options)
        same(sp.unshard(own.detach(), layout, comm), out.detach(), 60)
        for got, want, at in zip(torch.autograd.grad(own, mine, sp.shard(grad, layout, comm)), expected, (layout, kv_layout, kv_layout)):
            same(sp.unshard(got, at, comm), want, 120)
    rounded = [sp.shard(x.detach().bfloat16(), striped, comm) for x in inputs]
    _, exact = sp.attention(*(x.float() for x in rounded), comm, mask=mask, layout=striped, return_lse=True)
    with torch.autocast("cpu", torch.bfloat16):
        _, found = sp.attention(*(x.float() for x in rounded), comm, mask=mask, layout=striped, return_lse=True)
    same(found, exact, 60)


@check
def solved_layouts_move_and_number_tokens(comm, seed):
    mask = MASKS[2]
    layout, plain = sp.solve_layout(mask, comm.size), sp.Layout("contiguous", mask.tokens, comm.size)
    assert sp.Layout.from_key(layout.key) == layout
    x = whole(seed, 1, mask.tokens, 3)
    moved = sp.redistribute(sp.shard(x, plain, comm), plain, layout, comm)
    assert moved.equal(x[:, layout.positions(comm.rank)])
    assert sp.unshard(moved, layout, comm).equal(x)
    ids, _, positions = sp.shard_batch(torch.arange(mask.tokens)[None], layout, comm)
    assert ids[0].equal(positions)


@check
def masks_that_do_not_fit_are_refused(comm, seed):
    x = whole(seed, 1, 4, 2, 8)
    raises(ValueError, f"mask has 3 tokens, expected {4 * comm.size}", sp.attention, x, x, x, comm, mask=sp.Mask.prefix_lm(1, 3))
    raises(TypeError, "expected a seqpar.torch.Mask", sp.attention, x, x, x, comm, mask=5)
    raises(ValueError, "a slice has 7 numbers", sp.Mask, ((0,) * 7,), 4)
    for text, create, *given in (("Mask.window: tokens, left and right: got (4, -1, 0), expected numbers", sp.Mask.window, 4, -1),
                                 ("Mask.shared_prefix: prefix and lengths: got (2, -1), expected numbers", sp.Mask.shared_prefix, 2, [-1]),
                                 ("Mask.prefix_lm: prefix is 5, expected at most 4", sp.Mask.prefix_lm, 5, 4),
                                 ("Mask.documents: cu_seqlens are (1, 4), expected ascending numbers from 0", sp.Mask.documents, (1, 4)),
                                 ("Mask.block_causal: bounds are (0, 3, 2), expected ascending", sp.Mask.block_causal, (0, 3, 2)),
                                 ("Mask: tokens: got (-4,), expected numbers", sp.Mask, (), -4)):
        raises(ValueError, text, create, *given)
    raises(TypeError, "Mask.window: tokens, left and right: got (4, 1.5, 0), expected integers", sp.Mask.window, 4, 1.5)
    raises(TypeError, "Mask.from_dense: got [[True]], expected a torch.Tensor", sp.Mask.from_dense, [[True]])
    raises(TypeError, "solve_layout: got 'causal', expected a seqpar.torch.Mask", sp.solve_layout, "causal", 2)
    raises(ValueError, "expected one bound more", sp.Layout, "pieces", 4, 1, bounds=(0, 4), owners=(0, 0))
