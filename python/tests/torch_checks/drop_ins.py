"""The interfaces that other libraries have."""

import torch
import torch.distributed as dist

import seqpar.torch as sp
from seqpar.testing import reference
from seqpar.torch import fla
from torch_checks import check, raises, same, summed, whole


@check
def drop_ins(comm, seed):
    q, kv = whole(seed, 2, 6 * comm.size, 4, 8), whole(seed + 1, 2, 6 * comm.size, 2, 2, 8)
    from seqpar.testing.reference import softmax
    expected = softmax(q, kv[:, :, 0], kv[:, :, 1], causal=True)
    for function, kind in ((sp.ring_flash_attn_kvpacked_func, "contiguous"),
                           (sp.zigzag_ring_flash_attn_kvpacked_func, "zigzag"),
                           (sp.stripe_flash_attn_kvpacked_func, "striped")):
        layout = sp.Layout(kind, 6 * comm.size, comm.size)
        out, lse, _ = function(sp.shard(q, layout, comm), sp.shard(kv, layout, comm), causal=True, return_attn_probs=True)
        same(out, sp.shard(expected, layout, comm), 50)
        assert lse.shape == (2, 4, 6)
    raises(ValueError, "dropout_p", sp.ring_flash_attn_func, q, q, q, dropout_p=0.1)
    raises(TypeError, "softcap", sp.ring_flash_attn_func, q, q, q, softcap=1.0)


@check
def models_of_transformers(comm, seed):
    try:
        import transformers
    except ImportError:
        print("skipped: no transformers")
        return
    from seqpar.torch.transformers import register
    shape = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=8, use_cache=False)
    ids = torch.randint(50, (2, 21), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(comm.device)
    for family, kind, algorithm, more in (("Llama", "zigzag", "zigzag", {}),
                                          ("Llama", "zigzag", "kernel", {}),
                                          ("Mistral", "contiguous", "ring", {"sliding_window": 5}),
                                          ("Gemma2", "contiguous", "allgather_kv", {"sliding_window": 5})):
        layout = sp.Layout(kind, 21, comm.size)
        own = {"algorithm": "ulysses", "kernel": sp.sdpa} if algorithm == "kernel" else {"algorithm": algorithm}
        registration = register(comm, layout=layout, **own)
        models = []
        for name in ("eager", "seqpar"):
            config = getattr(transformers, family + "Config")(**shape, **more)
            models.append(getattr(transformers, family + "ForCausalLM")._from_config(config, attn_implementation=name))
        models[1].load_state_dict(models[0].state_dict())
        for parameter in (p for model in models for p in model.parameters()):
            dist.broadcast(parameter.data, 0)  # models are made from each rank's own random numbers
        exact = models[0](ids).logits
        mine, _, positions = sp.shard_batch(ids, layout, comm)
        logits = models[1](mine, position_ids=positions[None]).logits
        same(logits, sp.shard(exact, layout, comm), 100)
        exact.square().sum().backward()
        logits.square().sum().backward()
        for one, other in zip(models[1].parameters(), models[0].parameters()):
            scale = max(1.0, other.grad.abs().max().item())
            same(summed(one.grad, comm) / scale, other.grad / scale, 200)
        padded = torch.ones_like(mine)
        padded[:, 0] = 0
        raises(ValueError, "padding", models[1], mine, attention_mask=padded, position_ids=positions[None])
        raises(TypeError, "alibi", registration, models[1], exact, exact, exact, None, alibi=exact)


@check
def context_parallel_as_torch_has_it(comm, seed):
    tokens = 8 * comm.size + 3
    random = torch.Generator("cpu").manual_seed(seed)
    ids, table = torch.randint(50, (2, tokens), generator=random, device="cpu").to(comm.device), whole(seed + 1, 50, 32)
    positions, weight = whole(seed + 2, tokens, 32), whole(seed + 3, 32, 32).requires_grad_()

    def model(ids, positions):
        x = table[ids] + positions
        q = (x @ weight).unflatten(2, (4, 8)).transpose(1, 2)
        k = x.unflatten(2, (4, 8))[:, :, :2].transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).transpose(1, 2)

    expected = model(ids, positions)
    d_exact, = torch.autograd.grad(expected.square().sum(), weight)
    before, original = (ids.clone(), positions.clone()), torch.nn.functional.scaled_dot_product_attention
    for algorithm in ("auto", "ring", "striped"):
        with sp.context_parallel(dist.group.WORLD, buffers=[ids, positions], buffer_seq_dims=[1, 0], algorithm=algorithm):
            assert ids.shape[1] == positions.shape[0] < tokens
            out = model(ids, positions)
            d_mine, = torch.autograd.grad(out.square().sum(), weight)
            raises(ValueError, "attn_mask", torch.nn.functional.scaled_dot_product_attention, out, out, out, attn_mask=out)
        assert ids.equal(before[0]) and positions.equal(before[1])
        assert torch.nn.functional.scaled_dot_product_attention is original
        together, = sp.context_parallel_unshard(dist.group.WORLD, [out], [1], tokens=tokens, algorithm=algorithm)
        same(together, expected, 100)
        scale = d_exact.abs().max()
        same(summed(d_mine, comm) / scale, d_exact / scale, 200)
    with sp.context_parallel(dist.group.WORLD, buffers=[ids], buffer_seq_dims=[1], no_restore_buffers={ids}):
        pass
    assert ids.shape[1] < tokens
    raises(ValueError, "one length", sp.context_parallel(dist.group.WORLD, buffers=[ids, positions],
                                                         buffer_seq_dims=[1, 0]).__enter__)


@check
def contexts_of_fla(comm, seed):
    tokens = 6 * comm.size
    for bounds in ((0, tokens), (0, 2, 6, 7, tokens), (0, 5, tokens - 1, tokens)):
        context = fla.build_cp_context(torch.tensor(bounds), dist.group.WORLD, conv1d_kernel_size=4)
        assert context.num_seqs == len(context.cu_seqlens_cpu) - 1 and context.cu_seqlens[-1] == 6
        x, weight = whole(seed, 1, tokens, 8), whole(seed + 1, 8, 4)
        y, none = fla.causal_conv1d(sp.shard(x, context.layout, comm), weight, activation="silu", cp_context=context)
        assert none is None
        q = whole(seed + 2, 1, tokens, 2, 4)
        gate = -whole(seed + 3, 1, tokens, 2, 4).abs()
        o, _ = fla.chunk_gla(*(sp.shard(t, context.layout, comm) for t in (q, q, q, gate)), cp_context=context)
        same(o, sp.shard(reference.linear("gla", q, q, q, gate, cu_seqlens=bounds)[0], context.layout, comm), 100)
        # What enters each rank, of states and transitions of its parts, against products of all of them.
        parts = [whole(seed + 10 + r, 2, 4, 3 + 4) for r in range(comm.size)]
        entering = _states_passed_on(parts, bounds, 6, comm)
        for reverse in (False, True):
            same(fla.exchange(parts[comm.rank], context, reverse), entering[reverse], 50)
        with fla.patch(_FlaModule):
            h = _FlaModule.chunk_gated_delta_rule_fwd_h_pre_process(parts[comm.rank], context=context)
            dh = _FlaModule.chunk_gated_delta_rule_bwd_dhu_pre_process(parts[comm.rank], context=context)
            raises(ValueError, "build_cp_context", _FlaModule.chunk_gated_delta_rule_fwd_h_pre_process, parts[0])
        same(h, entering[False], 50)
        same(dh.mT, entering[True], 50)
    raises(ValueError, "multiple", fla.build_cp_context, [0, tokens + 1], dist.group.WORLD)
    raises(ValueError, "initial_state", fla.chunk_gla, q, q, q, gate, output_final_state=True, cp_context=context)


class _FlaModule:
    """What fla.ops.cp.chunk_delta_h does around its kernels: gathers hm, and multiplies into h."""

    def chunk_gated_delta_rule_fwd_h_pre_process(hm, context=None):
        h = torch.zeros(2, 4, 3)
        gathered, _ = _FlaModule.all_gather_into_tensor(hm, group=None)
        if not context.is_first_rank:
            _FlaModule.merge_fwd_bwd_kernel[None](h=h, ag_hm=gathered, FORWARD=True)
        return h

    def chunk_gated_delta_rule_bwd_dhu_pre_process(hm, context=None):
        h = torch.zeros(2, 3, 4)
        gathered, _ = _FlaModule.all_gather_into_tensor(hm, group=None)
        if not context.is_last_rank:
            _FlaModule.merge_fwd_bwd_kernel[None](h=h, ag_hm=gathered, FORWARD=False, STATE_V_FIRST=True)
        return h

    all_gather_into_tensor = merge_fwd_bwd_kernel = None


def _states_passed_on(parts, bounds, local, comm):
    """{reverse: what enters this rank}: forward h <- M h + S over the ranks before that have this rank's first sequence,
    backward over those behind that have its last."""
    begins = [s for s, e in zip(bounds, bounds[1:]) if s < e]
    first = max(s for s in begins if s <= comm.rank * local)
    last = min([s for s in (*begins, bounds[-1]) if s >= (comm.rank + 1) * local] or [bounds[-1]])
    before = range(first // local, comm.rank)
    behind = range((last - 1) // local, comm.rank, -1)
    result = {}
    for reverse, ranks in ((False, before), (True, behind)):
        h = torch.zeros(2, 4, 3)
        for r in ranks:
            h = parts[r][..., 3:] @ h + parts[r][..., :3]
        result[reverse] = h
    return result
