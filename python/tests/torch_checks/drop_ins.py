"""The interfaces of other libraries; ring_flash_attention.py has those of ring-flash-attention."""

import contextlib
import inspect
import sys
import types

import torch
import torch.distributed as dist

import seqpar.torch as sp
from seqpar.testing import reference
from seqpar.torch import fla, te
from torch_checks import Skip, check, raises, same, summed, whole
from torch_checks.building_blocks import _convolved


@check
def models_of_transformers(comm, seed):
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch.transformers import register
    shape = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=8, use_cache=False)
    ids = torch.randint(50, (2, 21), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(comm.device)
    for family, kind, algorithm, more in (("Llama", "zigzag", "zigzag", {}),
                                          ("Llama", "zigzag", "kernel", {}),
                                          ("Llama", "contiguous", "sdpa", {}),
                                          ("Llama", "contiguous", ":ring", {}),
                                          ("Mistral", "zigzag", "sdpa", {"sliding_window": 5}),
                                          ("Mistral", "contiguous", "ring", {"sliding_window": 5}),
                                          ("Gemma2", "contiguous", "allgather_kv", {"sliding_window": 5})):
        layout = sp.Layout(kind, 21, comm.size)
        kernels = {"kernel": sp.sdpa, "sdpa": "sdpa"}
        own = {"kernel": kernels[algorithm]} if algorithm in kernels else {"algorithm": algorithm.partition(":")[0] or "auto"}
        registration = register(comm, layout=layout, **own)
        models = []
        for name in ("eager", "seqpar" + (algorithm if algorithm[0] == ":" else "")):
            config = getattr(transformers, family + "Config")(**shape, **more)
            models.append(getattr(transformers, family + "ForCausalLM")._from_config(config, attn_implementation=name))
        models[1].load_state_dict(models[0].state_dict())
        for parameter in (p for model in models for p in model.parameters()):
            dist.broadcast(parameter.data, 0)  # each rank initializes models from different random values
        exact = models[0](ids).logits
        mine, _, positions = sp.shard_batch(ids, layout, comm)
        logits = models[1](mine, position_ids=positions[None]).logits
        same(logits, sp.shard(exact, layout, comm), 100)
        exact.square().sum().backward()
        logits.square().sum().backward()
        for one, other in zip(models[1].parameters(), models[0].parameters()):
            scale = max(1.0, other.grad.abs().max().item())
            same(summed(one.grad, comm) / scale, other.grad / scale, 200)
        with torch.no_grad(), torch.autocast(comm.device.type, torch.bfloat16):  # rotation: queries to float32
            rounded = models[1](mine, position_ids=positions[None]).logits - sp.shard(models[0](ids).logits, layout, comm)
        assert rounded.abs().max() <= 16 * 2.0 ** -8 * exact.abs().max()
        padded = torch.ones_like(mine)
        padded[:, 0] = 0
        raises(ValueError, "padding", models[1], mine, attention_mask=padded, position_ids=positions[None])
        raises(TypeError, "alibi", registration, models[1], exact, exact, exact, None, alibi=exact)
    raises(ValueError, "flash_attention_2", register, comm, kernel="flash_attention")
    raises(TypeError, "seqpar attention: layout: got 'zigzag', expected a seqpar.torch.Layout", register, comm, layout="zigzag")
    for algorithm in ("nope", "zeco"):
        raises(ValueError, f"seqpar attention: algorithm: got {algorithm!r}, expected one of auto", setattr, registration, "algorithm", algorithm)


class _FlashAttn:
    """The used part of flash_attn, by its definition."""

    def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
        return reference.softmax(q, k, v, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap)

    def flash_attn_varlen_func(q, k, v, bounds_q, bounds_k, longest_q, longest_k, **options):
        parts = [_FlashAttn.flash_attn_func(*(x[None, bounds[i]:bounds[i + 1]] for x, bounds in
                                              ((q, bounds_q), (k, bounds_k), (v, bounds_k))), **options)[0]
                 for i in range(len(bounds_q) - 1)]
        assert max(len(p) for p in parts) == longest_q and bounds_q.dtype == torch.int32
        assert not bounds_q.is_inference() and not bounds_k.is_inference()  # could not be saved for a backward pass
        return torch.cat(parts)


@contextlib.contextmanager
def _modules(**modules):
    """Adds modules with the functions of classes for a while. unittest.mock.patch.dict would also remove those that
    torch.compile imports meanwhile, which PyTorch cannot import twice."""
    assert not sys.modules.keys() & modules, modules
    for name, functions in modules.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update({key: x for key, x in vars(functions).items() if inspect.isfunction(x)})
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


@check
def kernels_by_name(comm, seed):
    bounds, tokens = (0, 1, 7, 15), 15
    layout = sp.Layout("zigzag", tokens, comm.size)
    q, k, v = whole(seed, 1, tokens, 4, 8), whole(seed + 1, 1, tokens, 2, 8), whole(seed + 2, 1, tokens, 2, 8)
    parts = [sp.shard(x, layout, comm) for x in (q, k, v)]
    with _modules(flash_attn=_FlashAttn, flash_attn_interface=_FlashAttn):
        for options in ({"cu_seqlens": bounds}, {"window": (3, -1)}, {"softcap": 2.0}):
            expected = sp.shard(reference.softmax(q, k, v, causal=True, **options), layout, comm)
            for kernel in ("flash_attention_2", "flash_attention_3", "flex_attention", "sdpa"):
                if kernel == "sdpa" and "softcap" in options:
                    continue
                with torch.inference_mode():  # as an evaluation before training
                    sp.attention(*parts, comm, causal=True, layout=layout, kernel=kernel, **options)
                same(sp.attention(*parts, comm, causal=True, layout=layout, kernel=kernel, **options), expected, 50)
        for kernel in ("flash_attention_2", "flash_attention_3"):
            call = lambda q, k, v: sp.attention(q, k, v, comm, causal=True, layout=layout, kernel=kernel, algorithm="allgather_kv")
            same(torch.compile(call, fullgraph=True, backend="eager")(*parts), call(*parts), 50)
            torch.compiler.reset()
    raises(ValueError, "flex_attention", sp.attention, *parts, comm, layout=layout, kernel="flex")


class _DotProductAttention(torch.nn.Module):
    """The attributes of TransformerEngine's module that seqpar.torch.te uses."""

    def __init__(self, qkv_format, softmax_type="vanilla", softcap=0.0, heads=4):
        super().__init__()
        self.softcap = softcap
        self.qkv_format, self.attn_mask_type, self.window_size = qkv_format, "causal", (-1, 0)
        self.cp_group, self.cp_comm_type, self.deterministic, self.attention_dropout = None, "p2p", False, 0.1
        self.softmax_type = softmax_type
        self.softmax_offset = torch.nn.Parameter(torch.linspace(-1, 1, heads)) if softmax_type == "learnable" else None
        self.flash_attention = types.SimpleNamespace(softmax_scale=0.3)

    def set_context_parallel_group(self, cp_group, cp_global_ranks, cp_stream, cp_comm_type="p2p"):
        self.cp_group, self.cp_comm_type = cp_group, cp_comm_type

    def forward(self, query_layer=None, key_layer=None, value_layer=None, attention_mask=None, qkv_format=None,
                cu_seqlens_q=None, cu_seqlens_kv=None, cu_seqlens_q_padded=None, cu_seqlens_kv_padded=None, max_seqlen_q=None,
                max_seqlen_kv=None, attn_mask_type=None, window_size=None, core_attention_bias_type="no_bias", alibi_slopes=None,
                fp8_output=False, qkv_layer=None, kv_layer=None, qkv_interleave_dim=-3, softcap=None):
        return "its own"


class _Subclass(_DotProductAttention):
    """A subclass as in Megatron."""

    def forward(self, q, k, v, attention_mask, attn_mask_type, **packed):
        return super().forward(q, k, v, attention_mask, attn_mask_type=attn_mask_type, **packed)


def _of_te(qkv_format, comm_type, **options):
    module = _Subclass(qkv_format, **options).eval()
    module.set_context_parallel_group(dist.group.WORLD, None, None, comm_type)
    return module


@check
def attention_of_transformer_engine(comm, seed):
    own = _of_te("bshd", "p2p")
    te.patch(_DotProductAttention)
    te.patch(_DotProductAttention)
    tokens = 4 * comm.size
    layout = sp.Layout("zigzag", tokens, comm.size)
    q, kv = whole(seed, 2, tokens, 4, 8), whole(seed + 1, 2, tokens, 2, 2, 8)
    q.requires_grad_()
    k, v = kv.unbind(2)
    mine = [sp.shard(x, layout, comm) for x in (q, k, v)]
    assert own(*mine, None, "causal") == "its own"
    for window, algorithm in ((None, "seqpar"), ((5, 0), "seqpar:ring"), (None, "seqpar:ulysses")):
        expected = reference.softmax(q, k, v, causal=True, scale=0.3, window=(window or (-1,))[0:1] + (-1,))
        for layout_of_tensors in ("bshd", "sbhd"):
            turned = [x.transpose(0, 1).contiguous() if layout_of_tensors == "sbhd" else x for x in mine]
            out = _of_te(layout_of_tensors, algorithm)(*turned, None, "causal", window_size=window)
            out = out.transpose(0, 1) if layout_of_tensors == "sbhd" else out
            same(out, sp.shard(expected, layout, comm).flatten(2), 50)
        gradient, = torch.autograd.grad(out.square().sum(), q, retain_graph=True)
        exact, = torch.autograd.grad(expected.square().sum(), q)
        same(*(sp.shard(x, layout, comm) for x in (gradient, exact)), 100)
    for window in ((-1, -1), (2, 1), None):  # None: the module's, which is that of causal masks
        full = _of_te("bshd", "seqpar")(mine[0], None, None, None, "no_mask", kv_layer=sp.shard(kv, layout, comm), window_size=window)
        same(full, sp.shard(reference.softmax(q, k, v, scale=0.3, window=window or (-1, -1)), layout, comm).flatten(2), 50)
    for module, call in ((0.0, 0.7), (0.7, None), (0.3, 0.7)):
        capped = _of_te("bshd", "seqpar", softcap=module)(*mine, None, "causal", softcap=call)
        same(capped, sp.shard(reference.softmax(q, k, v, causal=True, scale=0.3, softcap=0.7), layout, comm).flatten(2), 50)
    sinks = _of_te("bshd", "seqpar", softmax_type="learnable")
    expected = reference.softmax(q, k, v, causal=True, scale=0.3, sinks=sinks.softmax_offset)
    same(sinks(*mine, None, "causal"), sp.shard(expected, layout, comm).flatten(2), 50)

    unit = 2 * comm.size  # packed: each document divides, including its padding
    padded, filled = (0, unit, 4 * unit, 6 * unit), (0, unit - 1, 4 * unit - 2, 6 * unit - 2)
    layout = sp.Layout("zigzag", padded[-1], comm.size, cu_seqlens=padded)
    q, k, v = whole(seed + 2, 1, padded[-1], 4, 8), whole(seed + 3, 1, padded[-1], 2, 8), whole(seed + 4, 1, padded[-1], 2, 8)
    expected = sp.shard(reference.softmax(q, k, v, causal=True, scale=0.3, cu_seqlens=padded), layout, comm)[0].flatten(1)
    mine, packed = [sp.shard(x, layout, comm)[0] for x in (q, k, v)], _of_te("thd", "seqpar:zigzag")
    whole_bounds, own_bounds = (torch.tensor(x, dtype=torch.int32) for x in (padded, filled))
    for _ in range(2):
        same(packed(*mine, None, "padding_causal", cu_seqlens_q=whole_bounds, cu_seqlens_kv=whole_bounds), expected, 50)
    with torch.inference_mode():
        bounds = whole_bounds.clone()  # without a version
        same(packed(*mine, None, "padding_causal", cu_seqlens_q=bounds, cu_seqlens_kv=bounds), expected, 50)
    lengths = dict(cu_seqlens_q=own_bounds, cu_seqlens_kv=own_bounds, cu_seqlens_q_padded=whole_bounds,
                   cu_seqlens_kv_padded=whole_bounds)
    same(packed(*mine, None, "padding_causal", **lengths), expected, 50)
    raises(ValueError, "padding between", packed, *mine, None, "padding", **lengths)
    raises(ValueError, "cu_seqlens_q is None", packed, *mine, None, "padding_causal")
    raises(TypeError, "alibi_slopes", packed, *mine, None, "padding_causal", cu_seqlens_q=whole_bounds, alibi_slopes=q)
    raises(TypeError, "core_attention_bias_type", packed, *mine, None, "causal", core_attention_bias_type="alibi")
    raises(ValueError, "arbitrary", packed, *mine, None, "arbitrary", cu_seqlens_q=whole_bounds)
    raises(ValueError, "attention_dropout", packed.train(), *mine, None, "padding_causal", cu_seqlens_q=whole_bounds)
    raises(ValueError, "expected one of", _of_te("thd", "seqpar:rings"), *mine, None, "padding_causal",
           cu_seqlens_q=whole_bounds)
    te.unpatch(_DotProductAttention)
    assert packed(*mine, None, "causal") == "its own"


@check
def context_parallel_agrees_with_torch(comm, seed):
    tokens = 8 * comm.size + 3
    random = torch.Generator("cpu").manual_seed(seed)
    ids, table = torch.randint(50, (2, tokens), generator=random, device="cpu").to(comm.device), whole(seed + 1, 50, 32)
    positions, weight = whole(seed + 2, tokens, 32), whole(seed + 3, 32, 32).requires_grad_()

    def model(ids, positions):
        x = table[ids] + positions
        q = (x @ weight).unflatten(2, (4, 8)).transpose(1, 2)
        k, v = x.unflatten(2, (4, 8)).transpose(1, 2).chunk(2, 1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.6, enable_gqa=True).transpose(1, 2)

    expected = model(ids, positions)
    d_exact, = torch.autograd.grad(expected.square().sum(), weight)
    from torch.distributed.tensor.experimental import context_parallel
    theirs, ours = (inspect.signature(f).parameters for f in (context_parallel, sp.context_parallel))
    assert [(p.name, p.kind, p.default) for p in theirs.values()] == [(p.name, p.kind, p.default) for p in ours.values()][:len(theirs)]
    before, original = (ids.clone(), positions.clone()), torch.nn.functional.scaled_dot_product_attention
    for algorithm in ("auto", "ring", "striped"):
        with sp.context_parallel(dist.group.WORLD, buffers=[ids, positions], buffer_seq_dims=[1, 0], algorithm=algorithm):
            assert ids.shape[1] == positions.shape[0] < tokens or comm.size == 1
            out = model(ids, positions)
            d_mine, = torch.autograd.grad(out.square().sum(), weight)
            raises(ValueError, "attn_mask", torch.nn.functional.scaled_dot_product_attention, out, out, out, attn_mask=out)
        assert ids.equal(before[0]) and positions.equal(before[1])
        assert torch.nn.functional.scaled_dot_product_attention is original
        together, = sp.context_parallel_unshard(dist.group.WORLD, [out], [1], tokens=tokens, algorithm=algorithm)
        same(together, expected, 100)
        scale = d_exact.abs().max()
        same(summed(d_mine, comm) / scale, d_exact / scale, 200)
    saved = torch.nn.functional.embedding(ids, table.clone().requires_grad_()).sum()  # saves ids
    with sp.context_parallel(dist.group.WORLD, buffers=[ids, positions], buffer_seq_dims=[1, 0]):
        late = torch.nn.functional.embedding(ids, table.clone().requires_grad_()).sum()
        if comm.size > 1:
            raises(RuntimeError, "modified by an inplace operation", saved.backward, retain_graph=True)
    saved.backward()
    if comm.size > 1:
        raises(RuntimeError, "modified by an inplace operation", late.backward)
    with torch.no_grad(), torch.autocast(comm.device.type, torch.bfloat16):  # queries are products and keys are not
        rounded = model(ids, positions)
        with sp.context_parallel(dist.group.WORLD, buffers=[ids, positions], buffer_seq_dims=[1, 0]):
            out = model(ids, positions)
        together, = sp.context_parallel_unshard(dist.group.WORLD, [out], [1], tokens=tokens)
        assert out.dtype == torch.bfloat16 and (together - rounded).abs().max() <= 4 * 2.0 ** -8 * rounded.abs().max()
    with sp.context_parallel(dist.group.WORLD, buffers=[ids], buffer_seq_dims=[1], no_restore_buffers={ids}):
        pass
    if comm.size > 1:  # a single shard is the whole
        assert ids.shape[1] < tokens
        raises(ValueError, "one length", sp.context_parallel(dist.group.WORLD, buffers=[ids, positions],
                                                             buffer_seq_dims=[1, 0]).__enter__)


@check
def contexts_of_fla(comm, seed):
    tokens = 6 * comm.size
    for bounds in ((0, tokens), (0, 2, 5, 6, tokens) if comm.size == 1 else (0, 2, 6, 7, tokens), (0, 5, tokens - 1, tokens)):
        context = fla.build_cp_context(torch.tensor(bounds), dist.group.WORLD, conv1d_kernel_size=4)
        assert context.num_seqs == len(context.cu_seqlens_cpu) - 1 and context.cu_seqlens[-1] == 6
        x, weight = whole(seed, 1, tokens, 8), whole(seed + 1, 8, 4)
        y, none = fla.causal_conv1d(sp.shard(x, context.shards, comm), weight, activation="silu", cp_context=context)
        assert none is None
        same(y, sp.shard(_convolved(x, weight, None, True, bounds), context.shards, comm), 20)
        q = whole(seed + 2, 1, tokens, 2, 16)
        gate = -whole(seed + 3, 1, tokens, 2, 16).abs()
        o, _ = fla.chunk_gla(*(sp.shard(t, context.shards, comm) for t in (q, q, q, gate)), scale=0.4, cp_context=context)
        same(o, sp.shard(reference.linear("gla", q, q, q, gate, scale=0.4, cu_seqlens=bounds)[0], context.shards, comm), 100)
        # The incoming state of each rank, from states and transitions of its parts, against products of all of them.
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
    by_place = fla.build_cp_context(torch.tensor(bounds), dist.group.WORLD, 4, None, True)  # older releases
    assert by_place.cu_seqlens.equal(context.cu_seqlens) and by_place.copy_for_backward().cu_seqlens is not by_place.cu_seqlens
    raises(ValueError, "use_tf32x3", fla.build_cp_context, [0, tokens], dist.group.WORLD, use_tf32x3_affine_chain=False)
    if comm.size > 1:
        raises(ValueError, "multiple", fla.build_cp_context, [0, tokens + 1], dist.group.WORLD)
    raises(ValueError, "chunk_gla: got output_final_state with 3 sequences", fla.chunk_gla, q, q, q, gate, output_final_state=True,
           cp_context=context)
    raises(TypeError, "build_cp_context: cu_seqlens is None", fla.build_cp_context, None, dist.group.WORLD)
    for wrong in ([1, tokens], [0, tokens - 1, 1, tokens]):
        raises(ValueError, f"build_cp_context: cu_seqlens is {tuple(wrong)}", fla.build_cp_context, wrong, dist.group.WORLD)
    raises(ValueError, "causal_conv1d: cp_context is None", fla.causal_conv1d, x, weight)
    mine = sp.shard(x, context.shards, comm)
    positional = fla.causal_conv1d(mine, weight, None, None, None, False, "silu", "cuda", context.cu_seqlens, cp_context=context)[0]
    same(positional, fla.causal_conv1d(mine, weight, activation="silu", cu_seqlens_cpu=None, cp_context=context)[0])
    raises(TypeError, "causal_conv1d: got residual, which it does not support", fla.causal_conv1d, mine, weight, None, mine, cp_context=context)
    mine, gates = sp.shard(q, context.shards, comm), sp.shard(gate, context.shards, comm)
    off = dict(use_gate_in_kernel=False, A_log=None, cu_seqlens=context.cu_seqlens, cu_seqlens_cpu=context.cu_seqlens_cpu, chunk_indices=None)
    beta = gates[..., 0].sigmoid()
    on = dict(use_qk_l2norm_in_kernel=True, cp_context=context)
    same(*(fla.chunk_kda(mine, mine, mine, gates, beta, **more, **on)[0] for more in (off, {})), 50)
    raises(TypeError, "chunk_gla: got head_first, which", fla.chunk_gla, mine, mine, mine, gates, head_first=True, cp_context=context)


class _FlaModule:
    """The behavior of fla.ops.cp.chunk_delta_h around its kernels: gathers hm, and multiplies into h."""

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
    """{reverse: this rank's incoming state}: forward h <- M h + S over earlier ranks that hold this rank's first
    sequence, backward over later ranks that hold its last."""
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
