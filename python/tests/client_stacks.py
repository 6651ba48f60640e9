"""Megatron-Core's and diffusers' models with sharded sequences, as cases of clients.py. Their code for hosts is incomplete:
torch.cuda.current_device(), torch.accelerator and an uneven all-gather are replaced, in the reference too."""

import contextlib
import unittest.mock

import torch
import torch.distributed as dist

import seqpar.torch as sp
from client_support import case, raises


@contextlib.contextmanager
def _hosts(*more):
    host = torch.device("cpu")
    with contextlib.ExitStack() as stack:
        for owner, name, value in ((torch.cuda, "current_device", lambda: host), (torch.accelerator, "device_count", lambda: 1),
                                   (torch.accelerator, "current_accelerator", lambda: host), *more):
            stack.enter_context(unittest.mock.patch.object(owner, name, value))
        yield


def _start(ranks):
    if ranks > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")


def _results(model, out, ranks, **more):
    """The loss of all ranks, and gradients that are summed over them."""
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in model.parameters()]
    for x in gradients if ranks > 1 else ():
        dist.all_reduce(x)
    return {"out": out.detach(), "gradients": torch.cat([x.flatten() / x.abs().max().clamp_min(1.0) for x in gradients]), **more}


def _gpt(ranks, kind, core=None, **options):
    """A GPT of Megatron-Core's layers with `core` as its attention on several ranks; None: seqpar's."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    from seqpar.torch import megatron
    spec = get_gpt_layer_local_spec()
    if ranks > 1:
        spec = megatron.layer_spec(spec)  # a copy
    if core is not None:  # and Megatron-Core's own norm at the end
        from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
        spec.submodules.self_attention.submodules.core_attention = core
        spec = TransformerBlockSubmodules(layer_specs=[spec] * 2, layer_norm=spec.submodules.input_layernorm)
    torch.manual_seed(4)
    config = TransformerConfig(**{
        "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_query_groups": 2, "use_cpu_initialization": True,
        "attention_dropout": 0.0, "hidden_dropout": 0.0, "masked_softmax_fusion": False, "bias_dropout_fusion": False,
        "apply_rope_fusion": False, "context_parallel_size": ranks, "cp_comm_type": kind if ranks > 1 else None, **options})
    return GPTModel(config, spec, vocab_size=50, max_sequence_length=64,
                    position_embedding_type="learned_absolute")


@case((2, 2), needs="megatron-core")
def gpt_of_megatron(ranks, cp, folder):
    """A GPT of Megatron-Core's layers with cp_comm_type="seqpar" against its own attention on one process; packed sequences
    against each of them alone."""
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.tensor_parallel import random
    from megatron.core.utils import get_batch_on_this_cp_rank
    if ranks == 1:
        import venvs
        with venvs.reserved_port() as port:
            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    else:
        _start(ranks)
    found, ids = {}, torch.randint(50, (2, 16), generator=torch.Generator().manual_seed(8))
    with _hosts():
        parallel_state.initialize_model_parallel(context_parallel_size=ranks)
        random.initialize_rng_tracker(inference_rng_tracker=True)
        batch = get_batch_on_this_cp_rank({"ids": ids, "places": torch.arange(16).expand(2, 16), "labels": ids.roll(-1, 1)})
        future = torch.ones(16, 16, dtype=torch.bool).triu(1)[None, None]
        for kind, options in (("seqpar", {}), ("seqpar:ulysses", {"window_size": (5, 0)}),
                              ("seqpar:ring", {"apply_query_key_layer_scaling": True, "attention_softmax_in_fp32": True}),
                              ("seqpar:zigzag", {"softmax_type": "learnable"}), ("seqpar:mesh", {"softmax_type": "off-by-one"})):
            windowed = "window_size" in options
            model = _gpt(ranks, kind, **(options if ranks > 1 or not windowed else {}))  # its own windows need a GPU
            mask = future | torch.ones_like(future).tril(-6) if windowed else future
            loss = model(batch["ids"], batch["places"], mask if ranks == 1 else None, labels=batch["labels"]).sum() / ids.numel()
            loss.backward()
            if ranks > 1:
                dist.all_reduce(loss.detach())
            found.update({f"{kind} {name}": x for name, x in _results(model, loss, ranks).items()})
        model, bounds = _gpt(ranks, "seqpar" if ranks > 1 else None), (0, 4, 12, 16)
        parts = [ids[0, begin:end] for begin, end in zip(bounds, bounds[1:])]
        if ranks == 1:
            losses = [model(x[None], torch.arange(len(x))[None], future[..., :len(x), :len(x)], labels=x[None]).sum() for x in parts]
            loss = sum(losses) / 16
        else:
            layout = sp.Layout("zigzag", 16, ranks, cu_seqlens=bounds)
            comm, places = sp.comm(parallel_state.get_context_parallel_group()), torch.cat([torch.arange(len(x)) for x in parts])
            mine, places = sp.shard(ids[:1], layout, comm), sp.shard(places[None], layout, comm)
            cuts = torch.tensor(bounds, dtype=torch.int32)
            packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cuts, cu_seqlens_kv=cuts)
            loss = model(mine, places, None, labels=mine, packed_seq_params=packed).sum() / 16
        loss.backward()
        if ranks > 1:
            dist.all_reduce(loss.detach())
            _refusals_of_megatron(ranks)
        found.update({f"packed {name}": x for name, x in _results(model, loss, ranks).items()})
        parallel_state.destroy_model_parallel()
    if ranks == 1:
        dist.destroy_process_group()
    return found


def _refusals_of_megatron(ranks):
    from seqpar.torch import megatron
    with raises(ValueError, "cp_comm_type is 'p2p'"):
        _gpt(ranks, "p2p")
    with raises(ValueError, "expected the spec of a transformer layer"):
        megatron.layer_spec(object())
    model, ids = _gpt(ranks, "seqpar", attention_dropout=0.1), torch.zeros(1, 8, dtype=torch.int64)
    with raises(ValueError, "attention_dropout is 0.1"):
        model(ids, ids, None, labels=ids)
    model = _gpt(ranks, "seqpar:rings")
    with raises((ValueError, sp.Error), "rings"):
        model(ids, ids, None, labels=ids)


def _wan():
    from diffusers import WanTransformer3DModel
    torch.manual_seed(5)
    return WanTransformer3DModel(patch_size=(1, 2, 2), num_attention_heads=3, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
                                 freq_dim=32, ffn_dim=32, num_layers=2, cross_attn_norm=True, rope_max_seq_len=32)


def _flux():
    from diffusers import FluxTransformer2DModel
    torch.manual_seed(5)
    return FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=3,
                                  joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8])


def _inputs(family, tokens):
    random = torch.Generator().manual_seed(6)
    def values(*shape):
        return torch.randn(*shape, generator=random)

    if family == "wan":  # self-attention of tokens, cross-attention to 7 of the text
        return {"hidden_states": values(1, 4, 1, 6, 2 * tokens // 3), "timestep": torch.tensor([3.0]),
                "encoder_hidden_states": values(1, 7, 16)}
    return {"hidden_states": values(1, tokens, 4), "encoder_hidden_states": values(1, 7, 32), "pooled_projections": values(1, 32),
            "timestep": torch.tensor([0.3]), "img_ids": torch.arange(tokens)[:, None].expand(tokens, 3).float(),
            "txt_ids": torch.zeros(7, 3)}


def _gathered(tensor, dim, group):
    parts = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, tensor.detach(), group=group)
    return torch.cat(parts, dim)


@case((2, 2), needs="diffusers")
def models_of_diffusers(ranks, cp, folder):
    """Wan (tokens attend to the text of every rank) and Flux (both modalities are cut, each unevenly)."""
    from diffusers import ContextParallelConfig
    from diffusers.hooks import context_parallel
    from seqpar.torch import diffusers as ours
    _start(ranks)
    found = {}
    with _hosts((context_parallel, "_all_gather_anything", _gathered)):
        mesh = dist.device_mesh.init_device_mesh("cpu", (1, ranks), mesh_dim_names=("ring", "ulysses")) if ranks > 1 else None
        turned = dist.device_mesh.init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("ring", "ulysses")) if ranks > 1 else None
        for family, make, tokens, ring, algorithm in (("wan", _wan, 21, False, None), ("wan", _wan, 24, True, None), ("flux", _flux, 21, False, None),
                                                      ("flux", _flux, 21, True, "allgather_kv")):
            model = make()
            if ranks > 1:
                ours.register(algorithm)
                model.set_attention_backend("seqpar")
                model.enable_parallelism(config=ContextParallelConfig(ring_degree=ranks, ring_anything=tokens % 2 == 1, mesh=turned) if ring else
                                         ContextParallelConfig(ulysses_degree=ranks, ulysses_anything=True, mesh=mesh))
            out = model(**_inputs(family, tokens), return_dict=False)[0]
            out.square().mean().backward()
            found.update({f"{family} {ring} {name}": x for name, x in _results(model, out, ranks).items()})
        if ranks > 1:
            _refusals_of_diffusers(model)
    return found


def _refusals_of_diffusers(model):
    from diffusers.models.attention_dispatch import dispatch_attention_fn
    q = torch.randn(1, 4, 2, 8)
    for text, options in {"attn_mask is given": {"attn_mask": torch.ones(4, 4)}, "dropout_p is 0.5": {"dropout_p": 0.5},
                          "return_lse is True": {"attention_kwargs": {"return_lse": True}}}.items():
        with raises(ValueError, text):
            dispatch_attention_fn(q, q, q, backend="seqpar", parallel_config=model._parallel_config, **options)
    with raises(ValueError, "expected enable_gqa"):
        dispatch_attention_fn(q, q[:, :, :1], q[:, :, :1], backend="seqpar", parallel_config=model._parallel_config)
