"""Gradient checkpointing of transformers' models on shards against the whole on one rank."""

import concurrent.futures

import torch

import seqpar.torch as sp
from torch_checks import Skip, check, raises, same, summed
from torch_checks.families import FAMILIES, config_of, models_of


def whole_ids(seed, tokens):
    return torch.randint(3, 64, (1, tokens), generator=torch.Generator("cpu").manual_seed(seed), device="cpu")


def same_gradients(models, comm, what):
    """Compares the gradients of models[1], summed over all ranks, with those of models[0]."""
    for (of, one), other in zip(models[1].named_parameters(), models[0].parameters()):
        if other.grad is None or one.grad is None:  # an expert without tokens, here or everywhere
            one.grad, other.grad = (torch.zeros_like(x) if x.grad is None else x.grad for x in (one, other))
        scale = max(1.0, other.grad.abs().max().item())
        try:
            same(summed(one.grad, comm) / scale, other.grad / scale, 400)
        except AssertionError as error:
            raise AssertionError(f"{what}: {of}") from error


@check
def layers_that_run_again_have_the_positions_of_their_batch(comm, seed):
    """Models with layers that get no positions: two batches with different documents, then both backward passes."""
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
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
            same_gradients(models, comm, f"{name}, reentrant {reentrant}")


@check
def layers_wrapped_by_other_checkpoints(comm, seed):
    """torch's checkpoint_wrapper() keeps a layer's arguments alone: with the positions among them, any number of batches may be
    pending; without, batches with equal packed sequences."""
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper
    from seqpar.torch.transformers import register
    tokens, cuts = 23, ((0, 5, 9, 23), (0, 1, 14, 23))
    batches = [(whole_ids(seed + i, tokens).to(comm.device), cuts[i]) for i in range(2)]
    for i, name in enumerate(("Bamba", "Qwen3Next", "Mamba2", "GraniteMoeHybrid")):
        if config_of(transformers, name, FAMILIES[name]) is None:
            continue
        registration = register(comm, layout=sp.Layout(("zigzag", "contiguous")[(seed + i) % 2], tokens, comm.size))
        models = models_of(transformers, name, FAMILIES[name], seed)
        kinds = {type(layer) for layer in models[1].base_model.layers}
        how = (wrapper.CheckpointImpl.NO_REENTRANT, wrapper.CheckpointImpl.REENTRANT)[seed // 2 % 2]
        wrapper.apply_activation_checkpointing(models[1], checkpoint_wrapper_fn=lambda layer: wrapper.checkpoint_wrapper(layer, how),
                                               check_fn=lambda layer: type(layer) in kinds)
        models[1].enable_input_require_grads()
        positions = {}

        def loss_of(ids, edges):
            mine, _, positions[edges] = sp.shard_batch(ids, registration.layout, comm, cu_seqlens=edges)
            positions[edges] = positions[edges][None]  # alive: not those of a later batch
            return models[1](mine, position_ids=positions[edges], use_cache=False).logits.square().sum()

        together = name in ("Bamba", "Qwen3Next")
        if together:
            (loss_of(*batches[0]) + loss_of(*batches[1])).backward()
        else:
            for batch in batches:
                loss_of(*batch).backward()
        for ids, edges in batches:
            torch.cat([models[0](ids[:, start:end]).logits for start, end in zip(edges, edges[1:])], 1).square().sum().backward()
        same_gradients(models, comm, f"{name}, {how}")
        if not together:
            loss = loss_of(*batches[0]) + loss_of(*batches[1])
            # In a thread: PyTorch keeps the failed graph until the thread ends, and at exit then uses Python's locks, which are gone.
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                thread.submit(raises, ValueError, "after several batches with different packed sequences", loss.backward).result()
