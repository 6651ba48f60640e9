#!/usr/bin/env python3
"""Trains a model of Hugging Face transformers, its parameters sharded by FSDP2 over all ranks and its sequences over --sp.

    python examples/finetune_hf.py                                                a tiny Llama, one process
    torchrun --nproc-per-node 2 examples/finetune_hf.py --sp 2                    the same losses
    torchrun --nproc-per-node 2 examples/finetune_hf.py --sp 2 --device cuda --dtype bfloat16 --model ./my-llama --tokens 65536

--model names a folder with a model; without it a byte-level model is created from a configuration. The model's attention is
attn_implementation="seqpar"; everything else is unchanged.
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, LlamaConfig

import seqpar.torch as sp
import seqpar.torch.transformers
import training


def model_of(o):
    if o.model:
        return AutoModelForCausalLM.from_pretrained(o.model, attn_implementation="seqpar", dtype=torch.float32)
    config = LlamaConfig(vocab_size=256, hidden_size=o.width, intermediate_size=4 * o.width, num_hidden_layers=o.layers,
                         num_attention_heads=o.heads, num_key_value_heads=1, use_cache=False)
    return AutoModelForCausalLM.from_config(config, attn_implementation="seqpar")


def main():
    p = training.parser(__doc__, algorithm="zigzag")
    p.add_argument("--model", help="a folder with a model; None: a Llama of --layers, --width and --heads")
    o = p.parse_args()
    ranks = training.start(o)
    layout = sp.Layout("zigzag", o.tokens, ranks.comm.size)
    seqpar.torch.transformers.register(ranks.comm, layout=layout, algorithm=o.algorithm)
    torch.manual_seed(o.seed)  # equal parameters on all ranks
    model = model_of(o).to(ranks.device)
    if o.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    sharded = dist.is_initialized()
    if sharded:
        joint = ranks.mesh["dp", "sp"]._flatten("dp_shard_cp")
        for layer in model.model.layers:
            fully_shard(layer, mesh=joint)
        fully_shard(model, mesh=joint)
    training.train(o, ranks, model, layout, averaged=sharded, logits_of=lambda ids, positions: model(
        ids, position_ids=positions[None], use_cache=False).logits)


if __name__ == "__main__":
    main()
