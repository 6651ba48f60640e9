"""Compiled graphs of models with recurrent layers, which get no positions: equal to the model, packed and not."""

import torch

import seqpar.torch as sp
from torch_checks import Skip, check, raises, same
from torch_checks.families import FAMILIES, config_of, models_of


@check
def compiled_models_with_recurrent_layers(comm, seed):
    if comm.size != 2:
        raise Skip("takes half a minute, runs on two ranks")
    try:
        import transformers
        from transformers.models import olmo_hybrid
    except ImportError:
        raise Skip("no olmo_hybrid in transformers")
    from seqpar.torch.transformers import register
    tokens = 4 * comm.size + 1
    layout = sp.Layout("zigzag", tokens, comm.size)
    ids = torch.randint(3, 64, (1, tokens), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(comm.device)
    for name, bounds in (("OlmoHybrid", (0, 3, 4, tokens)), ("Bamba", (0, tokens))):
        if config_of(transformers, name, FAMILIES[name]) is None:
            continue
        registration = register(comm, layout=layout)
        model = models_of(transformers, name, FAMILIES[name], seed)[1]
        mine, _, positions = sp.shard_batch(ids, layout, comm, cu_seqlens=bounds)
        expected = model(mine, position_ids=positions[None]).logits
        expected.square().sum().backward()
        exact = {key: x.grad.clone() for key, x in model.named_parameters() if x.grad is not None}
        model.zero_grad()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        raises(Exception, "or under torch.compile Registration.cu_seqlens", compiled, mine, position_ids=positions[None])
        torch.compiler.reset()
        registration.cu_seqlens = bounds
        logits = compiled(mine, position_ids=positions[None]).logits
        same(logits, expected, 50)
        logits.square().sum().backward()
        for key, x in model.named_parameters():
            if key in exact:
                largest = max(1.0, exact[key].abs().max().item())
                same(x.grad / largest, exact[key] / largest, 200)
        raises(ValueError, "position_ids[", compiled, mine, position_ids=positions.flip(0)[None])
        torch.compiler.reset()
        registration.cu_seqlens = registration.layout = None
