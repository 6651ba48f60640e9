"""Model families of transformers on shards against the whole on one rank: logits and gradients, packed and not;
families that would compute on shards alone are refused."""

import torch
import torch.distributed as dist

import seqpar.torch as sp
from torch_checks import Skip, check, lost, raises, same, summed

_SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              head_dim=8, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, max_position_embeddings=128)
_SLIDING = dict(sliding_window=5, layer_types=["sliding_attention", "full_attention"])
_EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
_DELTA = dict(layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=4)
_QWEN_EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
_MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=8, time_step_limit=(1.2, 1.4))
FAMILIES = {
    "Llama": {}, "Qwen2": {}, "Qwen3": {}, "Olmo2": {},
    "Mistral": dict(sliding_window=5),
    "Gemma2": dict(**_SLIDING, attn_logit_softcapping=2.0, query_pre_attn_scalar=8),
    "GptOss": dict(**_SLIDING, **_EXPERTS),
    "Mixtral": dict(**_EXPERTS, sliding_window=5),
    "DeepseekV3": dict(num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
                       n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=16, head_dim=4,
                       first_k_dense_replace=1, n_shared_experts=1),
    "Qwen3Next": dict(**_DELTA, **_QWEN_EXPERTS),
    "Qwen3_5Text": _DELTA,
    "Qwen3_5MoeText": dict(**_DELTA, **_QWEN_EXPERTS),
    "OlmoHybrid": _DELTA,
    "KimiLinear": dict(num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
                       layer_types=["linear_attention", "full_attention"], linear_num_heads=4, linear_head_dim=8, num_experts=4,
                       num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=16, mlp_layer_types=["dense", "sparse"]),
    "Mamba2": dict(num_heads=8, head_dim=8, state_size=8, n_groups=2, expand=2, chunk_size=8, time_step_limit=(0.0, 0.02)),
    "Bamba": dict(**_MAMBA, attn_layer_indices=[1]),
    "NemotronH": dict(layers_block_type=["linear_attention", "mlp", "full_attention", "moe"], mamba_num_heads=8, mamba_head_dim=8,
                      ssm_state_size=8, n_groups=2, chunk_size=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                      moe_shared_expert_intermediate_size=16, n_group=1, topk_group=1, time_step_min=1.3),
    "GraniteMoeHybrid": dict(**_MAMBA, **_EXPERTS, layer_types=["linear_attention", "full_attention"], shared_intermediate_size=16,
                             position_embedding_type="rope"),
    "FalconH1": dict(**_MAMBA, mamba_d_ssm=64, mamba_rms_norm=True, ssm_in_multiplier=0.5, ssm_multipliers=[0.5, 1.5, 0.7, 1.2, 0.9]),
    "Zamba2": dict(layers_block_type=["linear_attention", "hybrid"], mamba_d_state=8, mamba_ngroups=2, n_mamba_heads=8, mamba_headdim=8,
                   num_mem_blocks=1, use_mem_rope=True, chunk_size=8, time_step_min=1.3)}
_VARIANTS = [("FalconH1", {**FAMILIES["FalconH1"], "mamba_rms_norm": False})]
# The class of the config, its further fields, and a part of the refusal.
REFUSED = {
    "Lfm2": (dict(layer_types=["conv", "full_attention"], block_multiple_of=8), "Lfm2ShortConv"),
    "MiniMax": (dict(layer_types=["linear_attention", "full_attention"], **_EXPERTS), "MiniMaxLightningAttention"),
    "Jamba": (dict(attn_layer_period=2, attn_layer_offset=1, num_experts=4, mamba_d_state=4), "Mamba"),
    "Roberta": ({}, "positions that start after padding_idx"),
    "RecurrentGemma": (dict(block_types=["recurrent", "attention"], lru_width=32), "Recurrent"),
    "Llama4Text": (dict(attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=32,
                        layer_types=["chunked_attention", "full_attention"]), "'chunked_attention'")}


def config_of(transformers, name, more):
    kind = getattr(transformers, f"{name}Config", None)
    if kind is None:
        return None  # a release without the family
    return kind(**{**_SMALL, **more})


def model_of(transformers, name, config, implementation):
    return getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")._from_config(config, attn_implementation=implementation)


def models_of(transformers, name, more, seed):
    """The model by transformers itself and by seqpar, with parameters that are equal in both and on all ranks."""
    torch.manual_seed(seed)
    models = [model_of(transformers, name, config_of(transformers, name, more), how) for how in ("eager", "seqpar")]
    models[1].load_state_dict(models[0].state_dict())
    for parameter in (p for model in models for p in model.parameters()):
        dist.broadcast(parameter.data, 0)
    return models


def _compare(models, ids, layout, comm, bounds):
    edges = bounds or (0, ids.shape[1])
    mine, _, positions = sp.shard_batch(ids, layout, comm, cu_seqlens=bounds)
    exact = torch.cat([models[0](ids[:, start:end]).logits for start, end in zip(edges, edges[1:])], 1)  # each document alone
    logits = models[1](mine, position_ids=positions[None]).logits
    same(logits, sp.shard(exact, layout, comm), 200)
    for model, out in zip(models, (exact, logits)):
        model.zero_grad()
        out.square().sum().backward()
    for (name, one), other in zip(models[1].named_parameters(), models[0].parameters()):
        if other.grad is None or one.grad is None:  # an expert without tokens, here or everywhere
            one.grad, other.grad = (torch.zeros_like(x) if x.grad is None else x.grad for x in (one, other))
        scale = max(1.0, other.grad.abs().max().item())
        same(summed(one.grad, comm) / scale, other.grad / scale, 400)


@check
def families_of_transformers(comm, seed):
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch.transformers import register
    random = torch.Generator("cpu").manual_seed(seed)
    tokens, found = 29, 0
    cut = sorted(torch.randperm(tokens - 1, generator=random)[:3].add(1).tolist())
    for i, (name, more) in enumerate([*FAMILIES.items(), *_VARIANTS]):
        config = config_of(transformers, name, more)
        if config is None:
            continue
        found += 1
        layout = sp.Layout(("zigzag", "contiguous")[(seed + i) % 2], tokens, comm.size)
        registration = register(comm, layout=layout)
        models = models_of(transformers, name, more, seed)
        try:
            for batch, bounds in ((2, None), (1, (0, *cut, tokens))):
                ids = torch.randint(3, 64, (batch, tokens), generator=random, device="cpu").to(comm.device)
                _compare(models, ids, layout, comm, bounds)
        except Exception as error:
            raise AssertionError(f"{name}, {layout.kind}, bounds {bounds}") from error
        registration.layout = None
    assert found >= 7, found
    if comm.rank == 0:
        print(f"{found} families, packed at {cut}")


@check
def windows_on_both_sides(comm, seed):
    """ModernBERT's layers see as many tokens behind their own as before it."""
    try:
        from transformers import ModernBertConfig, ModernBertForMaskedLM
    except ImportError:
        raise Skip("no ModernBERT in transformers")
    from seqpar.torch.transformers import register
    tokens = 29
    register(comm, layout=sp.Layout(("zigzag", "contiguous")[seed % 2], tokens, comm.size))
    torch.manual_seed(seed)
    models = [ModernBertForMaskedLM._from_config(ModernBertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, local_attention=8, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2), attn_implementation=how) for how in ("eager", "seqpar")]
    models[1].load_state_dict(models[0].state_dict())
    for parameter in (p for model in models for p in model.parameters()):
        dist.broadcast(parameter.data, 0)
    for bounds in (None, (0, 4, 5, 21, tokens)):
        ids = torch.randint(3, 64, (1, tokens), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(comm.device)
        _compare(models, ids, sp.Layout(("zigzag", "contiguous")[seed % 2], tokens, comm.size), comm, bounds)


@check
def families_that_are_refused(comm, seed):
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch.transformers import register
    register(comm)
    found = 0
    for name, (more, text) in REFUSED.items():
        config = config_of(transformers, name, more)
        if config is None:
            continue
        found += 1
        name = name.removesuffix("Text") if name == "Llama4Text" else name
        raises(ValueError, text, model_of, transformers, name, config, "seqpar")
        model = model_of(transformers, name, config_of(transformers, name if name != "Llama4" else "Llama4Text", more), "eager")
        raises(ValueError, text, model.set_attn_implementation, "seqpar")
    assert found >= 5, found
    alone = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4))
    raises(ValueError, "without the interface of transformers", alone.set_attn_implementation, "seqpar")
    raises(ValueError, "has attn_implementation 'eager', expected 'seqpar'", register, comm, model=alone)
    alone.set_attn_implementation("sdpa")  # which it does not accept either: transformers warns
    sizes = dict(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, pad_token_id=0, mask_token_id=1)
    for name, more, text in (("Esm", {}, "positions that start after padding_idx"), ("MobileBert", {}, "a convolution of width 3"),
                             ("Esm", dict(position_embedding_type="rotary", token_dropout=True), "the number of masked tokens")):
        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes, **more))
        raises(ValueError, text, model.set_attn_implementation, "seqpar")
    raises(ValueError, "the model (LlamaForSequenceClassification) has a result of one token", transformers.LlamaForSequenceClassification._from_config,
           config_of(transformers, "Llama", {}), attn_implementation="seqpar")
    layout = sp.Layout("zigzag", 29, comm.size)
    register(comm, layout=layout)
    model = model_of(transformers, "Phimoe", config_of(transformers, "Phimoe", dict(**_EXPERTS, sliding_window=5)), "seqpar")
    ids, _, positions = sp.shard_batch(torch.arange(3, 32)[None], layout, comm)
    raises(ValueError, "has a sliding mask", model, ids, position_ids=positions[None])


@check
def frequencies_by_the_longest_sequence(comm, seed):
    """Rotary embeddings that choose their frequencies by the largest position: no rank's shard alone has it."""
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch.transformers import register
    register(comm)
    long = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 4, long_factor=[1.5, 2.0, 3.0, 4.0],
                original_max_position_embeddings=16)
    dynamic = dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0), max_position_embeddings=16)
    latent = dict(**dynamic, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
                  v_head_dim=8, first_k_dense_replace=2)
    for name, more in (("Phi3", dict(rope_parameters=long, original_max_position_embeddings=16)),
                       ("Llama", dynamic), ("DeepseekV2", latent)):
        models = models_of(transformers, name, more, seed)
        for tokens in (12, 20, 29, 12):
            ids = torch.randint(3, 64, (2, tokens), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(comm.device)
            layout = sp.Layout("contiguous", tokens, comm.size)
            register(comm, layout=layout)
            _compare(models, ids, layout, comm, None)


def _llama(transformers, comm, **more):
    """A tiny model, equal on all ranks."""
    model = model_of(transformers, "Llama", config_of(transformers, "Llama", more), "seqpar")
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    return model


@check
def positions_that_models_get(comm, seed):
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch.transformers import register
    random = torch.Generator("cpu").manual_seed(seed)
    tokens, bounds = 8 * comm.size, (0, 3, 4, 8 * comm.size)
    layout = sp.Layout("zigzag", tokens, comm.size)
    registration = register(comm, layout=layout)
    model = _llama(transformers, comm)
    ids = torch.randint(3, 64, (1, tokens), generator=random, device="cpu").to(comm.device)
    mine, _, flat = sp.shard_batch(ids, layout, comm)
    _, _, packed = sp.shard_batch(ids, layout, comm, cu_seqlens=bounds)
    run = lambda positions=None, ids=mine, **named: model(ids, position_ids=positions, **named).logits
    plain, expected = run(flat[None]), run(packed[None])
    assert comm.size == 1 or (plain - expected).abs().max() > 1e-3
    cut = torch.tensor(bounds, dtype=torch.int32, device=comm.device)
    whole = dict(cu_seq_lens_q=cut, cu_seq_lens_k=cut, max_length_q=tokens, max_length_k=tokens)  # DataCollatorWithFlattening's
    same(run(packed[None], **whole), expected, 20)
    with torch.inference_mode():  # tensors have no version there
        same(run(packed[None].clone(), **{**whole, "cu_seq_lens_q": cut.clone()}), expected, 20)
    registration.cu_seqlens = bounds
    same(run(packed[None]), expected, 20)
    raises(ValueError, "expected equal bounds", run, packed[None], **{**whole, "cu_seq_lens_k": cut[[0, 1, 3]]})
    raises(ValueError, "position_ids[", run, flat[None])  # not within the documents
    registration.cu_seqlens = None
    raises(ValueError, "position_ids[", run, flat[None], **whole)
    raises(ValueError, "packed sequences have batch 1", run, torch.stack((flat, packed)), mine.expand(2, -1))
    raises(ValueError, "got a batch of 2 with packed sequences", run, packed.expand(2, -1), mine.expand(2, -1))
    changed = packed[None].clone()
    same(run(changed), expected, 20)
    changed.copy_(flat)
    same(run(changed), plain, 20)
    if comm.size > 1:
        local = torch.arange(mine.shape[1])[None]
        raises(ValueError, "was called without position_ids", run)
        raises(ValueError, "was called without position_ids", model.model, mine)
        raises(ValueError, "LlamaForCausalLM got labels, which it would shift", run, flat[None], labels=mine)
        raises(ValueError, "of the whole sequence, not of a shard", run, packed[None], cu_seq_lens_q=cut // comm.size, cu_seq_lens_k=cut // comm.size)
        raises(ValueError, "the positions that shard_batch() returns", run, local)
        registration.layout = sp.Layout("contiguous", tokens, comm.size)
        raises(ValueError, "if there is one packed sequence a rank", run, local)
        edges = range(0, tokens + 1, tokens // comm.size)
        run(local, cu_seq_lens_q=edges, cu_seq_lens_k=edges)
        registration.layout = layout
        one_less = flat[None] - int(comm.rank == comm.size - 1)  # wrong on one rank: an error on all
        raises(ValueError, f"of rank {comm.size - 1} is", run, one_less)
    same(run(flat[None]), plain, 20)


@check
def compiled_models_get_positions(comm, seed):
    if comm.size != 2:
        raise Skip("compiles for five seconds, runs on two ranks")
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch.transformers import register
    tokens, bounds = 8 * comm.size, (0, 3, 4, 8 * comm.size)
    layout = sp.Layout("zigzag", tokens, comm.size)
    registration = register(comm, layout=layout)
    model = _llama(transformers, comm)
    ids = torch.randint(3, 64, (1, tokens), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(comm.device)
    mine, _, flat = sp.shard_batch(ids, layout, comm)
    _, _, packed = sp.shard_batch(ids, layout, comm, cu_seqlens=bounds)
    expected = [model(mine, position_ids=x[None]).logits for x in (flat, packed)]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    same(compiled(mine, position_ids=flat[None]).logits, expected[0], 50)
    raises(ValueError, "Registration.cu_seqlens", compiled, mine, position_ids=packed[None])
    torch.compiler.reset()
    registration.cu_seqlens = bounds
    same(compiled(mine, position_ids=packed[None]).logits, expected[1], 50)
    raises(ValueError, "position_ids[", compiled, mine, position_ids=flat[None])
    torch.compiler.reset()


@check
def models_without_attention_in_some_layers(comm, seed):
    try:
        from transformers import masking_utils as masks
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch import _models
    from seqpar.torch.transformers import register
    tokens = 4 * comm.size
    register(comm, layout=sp.Layout("zigzag", tokens, comm.size))
    model = _llama(transformers, comm)
    positions = sp.positions(sp.Layout("zigzag", tokens, comm.size), comm)[None]
    model.model.layers[1].self_attn.forward = lambda hidden_states, **named: (hidden_states, None)
    if comm.size > 1:
        raises(ValueError, "layers.1 (LlamaDecoderLayer) did not call", model, positions, position_ids=positions)
        decoder = transformers.BlenderbotSmallForCausalLM._from_config(transformers.BlenderbotSmallConfig(
            d_model=32, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=48, vocab_size=64, max_position_embeddings=64,
            is_decoder=True, use_cache=False), attn_implementation="seqpar")  # embeds the positions 0, 1, ... of its tokens
        raises(ValueError, "has no position_ids", decoder, positions, position_ids=positions)
    model = _llama(transformers, comm)
    model.model.layers[0].mlp.smooth = torch.nn.Conv1d(32, 32, 3)
    raises(ValueError, "layers.0.mlp.smooth (Conv1d) has a convolution of width 3", register, comm, model=model)
    known = masks.and_masks(masks.sliding_window_causal_mask_function(4),
                            masks.packed_sequence_mask_function(torch.zeros(1, 4)))
    _models.require_known_mask(known)
    for unknown in (masks.chunked_causal_mask_function(4, torch.zeros(1)), masks.or_masks(known, masks.causal_mask_function),
                    lambda b, h, q, k: q > k):
        raises(ValueError, "the model has the mask", _models.require_known_mask, unknown)


@check
def padding_on_one_rank(comm, seed):
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch.transformers import register
    if comm.size == 1:
        raise Skip("one rank")
    one = sp.comm(dist.new_group(list(range(comm.size))))
    layout = sp.Layout("zigzag", 4 * comm.size, comm.size)
    register(one, layout=layout)
    model, positions = _llama(transformers, one), sp.positions(layout, one)[None]
    model(positions, position_ids=positions)
    dist.barrier()  # a refusal ends calls that other ranks have not finished
    mask = torch.ones_like(positions)
    mask[:, :1] = int(comm.rank != 1)
    raises(ValueError if comm.rank == 1 else sp.Error, "attention mask with padding", model, positions, attention_mask=mask,
           position_ids=positions)
    lost(one)
    register(comm)


@check
def delta_net_layers(comm, seed):
    """Their layers follow the model's attn_implementation, and refuse caches and padding on all ranks."""
    try:
        import transformers
        config = config_of(transformers, "Qwen3Next", FAMILIES["Qwen3Next"])
    except ImportError:
        config = None
    if config is None or comm.size == 1:
        raise Skip("no transformers, no qwen3_next, or one rank")
    from seqpar.torch.transformers import register
    tokens = 6 * comm.size
    layout = sp.Layout("zigzag", tokens, comm.size)
    registration = register(comm, layout=layout, name="seqpar_delta_net")
    model = model_of(transformers, "Qwen3Next", config, "eager")
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    ids = torch.randint(3, 64, (1, tokens), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(comm.device)
    mine, _, positions = sp.shard_batch(ids, layout, comm)
    before = model(ids).logits
    model.set_attn_implementation("seqpar_delta_net:ring_pass_q")
    registration.layout = sp.Layout("contiguous", tokens, comm.size)
    there, _, straight = sp.shard_batch(ids, registration.layout, comm)
    same(model(there, position_ids=straight[None]).logits, sp.shard(before, registration.layout, comm), 200)
    registration.layout = layout
    model.set_attn_implementation("seqpar_delta_net")
    same(model(mine, position_ids=positions[None]).logits, sp.shard(before, layout, comm), 200)
    raises(ValueError, "got a cache", model, mine, position_ids=positions[None], use_cache=True)
    mask = torch.ones_like(mine)
    mask[:, 0] = 0
    raises(ValueError, "padding", model, mine, position_ids=positions[None], attention_mask=mask)
    model.set_attn_implementation("eager")
    same(model(ids).logits, before, 20)
    registration.layout = None
