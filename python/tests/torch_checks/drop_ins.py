"""The interfaces that other libraries have."""

import torch
import torch.distributed as dist

import seqpar.torch as sp
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
    ids = torch.randint(50, (2, 21), generator=torch.Generator().manual_seed(seed))
    for family, kind, algorithm, more in (("Llama", "zigzag", "zigzag", {}),
                                          ("Mistral", "contiguous", "ring", {"sliding_window": 5}),
                                          ("Gemma2", "contiguous", "allgather_kv", {"sliding_window": 5})):
        layout = sp.Layout(kind, 21, comm.size)
        registration = register(comm, layout=layout, algorithm=algorithm)
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
