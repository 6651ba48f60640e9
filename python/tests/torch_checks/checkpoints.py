"""Gradient checkpointing of transformers' models on shards against the whole on one rank."""

import torch

import seqpar.torch as sp
from torch_checks import check, same, summed
from torch_checks.families import FAMILIES, config_of, models_of


@check
def layers_that_run_again_have_the_positions_of_their_batch(comm, seed):
    """Models with layers that get no positions: two batches with different documents, then both backward passes."""
    try:
        import transformers
    except ImportError:
        print("skipped: no transformers")
        return
    from seqpar.torch.transformers import register
    random = torch.Generator("cpu").manual_seed(seed)
    batches = []
    for tokens in (23, 29):
        ids = torch.randint(3, 64, (1, tokens), generator=random, device="cpu").to(comm.device)
        batches.append((ids, sorted({0, tokens, *torch.randint(tokens, (3,), generator=random, device="cpu").tolist()})))
    for i, name in enumerate(("Mamba2", "Bamba", "Qwen3_5Text", "GraniteMoeHybrid", "Llama")):
        if config_of(transformers, name, FAMILIES[name]) is None:
            continue
        registration = register(comm)
        models = models_of(transformers, name, FAMILIES[name], seed)
        exact = [torch.cat([models[0](ids[:, start:end]).logits for start, end in zip(edges, edges[1:])], 1) for ids, edges in batches]
        sum(x.square().sum() for x in exact).backward()
        for reentrant in (False, True):
            models[1].train().zero_grad()
            enable = getattr(models[1], "activation_checkpointing_enable", None) or models[1].gradient_checkpointing_enable
            enable({"use_reentrant": reentrant})
            models[1].enable_input_require_grads()
            loss = 0.0
            for ids, edges in batches:
                registration.layout = sp.Layout(("zigzag", "contiguous")[(seed + i) % 2], ids.shape[1], comm.size)
                mine, _, positions = sp.shard_batch(ids, registration.layout, comm, cu_seqlens=edges)
                loss = loss + models[1](mine, position_ids=positions[None], use_cache=False).logits.square().sum()
            del positions
            registration.layout = None
            loss.backward()
            for (of, one), other in zip(models[1].named_parameters(), models[0].parameters()):
                if other.grad is None or one.grad is None:  # an expert without tokens, here or everywhere
                    one.grad, other.grad = (torch.zeros_like(x) if x.grad is None else x.grad for x in (one, other))
                scale = max(1.0, other.grad.abs().max().item())
                try:
                    same(summed(one.grad, comm) / scale, other.grad / scale, 400)
                except AssertionError as error:
                    raise AssertionError(f"{name}, reentrant {reentrant}: {of}") from error
