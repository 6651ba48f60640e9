#!/usr/bin/env python3
"""generate() of transformers with a cache that is distributed over the ranks: the time of the prompt and of a step, and that of
one process with PyTorch's attention. The model is a Llama with random weights.

    torchrun --nproc-per-node 2 perf/generate.py --tokens 32768 --chunk 32768
    torchrun --nproc-per-node 2 perf/generate.py --tokens 8192 --batch 8 --padding 37
    torchrun --nproc-per-node 2 perf/generate.py --device cpu --tokens 200 --layers 2 --width 64 --heads 4 --kv-heads 2
"""

import argparse
import inspect
import os
import time

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig

import seqpar.torch as sp
from seqpar.torch import generation


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokens", type=int, default=8192, help="of a prompt")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--padding", type=int, default=0, help="of prompt i: i times as many tokens, on the left")
    p.add_argument("--new", type=int, default=16)
    p.add_argument("--chunk", type=int, default=8192, help="tokens of prefill() in a forward pass, on all ranks")
    p.add_argument("--page", type=int, default=128)
    p.add_argument("--layers", type=int, default=22)
    p.add_argument("--width", type=int, default=2048)
    p.add_argument("--heads", type=int, default=32)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--device", default="cuda")
    return p.parse_args()


def timed(o, function):
    """(result, seconds)."""
    dist.barrier()
    begin = time.perf_counter()
    result = function()
    if o.device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - begin


def main():
    o = parse()
    if o.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if o.device == "cuda" else "gloo")
    comm = sp.comm()
    torch.manual_seed(0)  # equal parameters on all ranks
    config = LlamaConfig(vocab_size=32000, hidden_size=o.width, intermediate_size=o.width * 11 // 4, num_hidden_layers=o.layers,
                         num_attention_heads=o.heads, num_key_value_heads=o.kv_heads, pad_token_id=0, bos_token_id=None,
                         eos_token_id=None, max_position_embeddings=131072)
    with torch.device(o.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if o.device == "cuda" else torch.float32).eval()
        ids = torch.randint(3, config.vocab_size, (o.batch, o.tokens))
        mask = torch.ones_like(ids)
    for i in range(o.batch):
        mask[i, :i * o.padding] = 0
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def generate(new, **more):
        return model.generate(ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False, **more)

    def sharded(new):
        """(tokens, seconds of the prompt except its last token, of the rest)."""
        cache = generation.ShardedCache(model.config, comm, page=o.page)
        _, prompt = timed(o, lambda: generation.prefill(model, ids, cache, attention_mask=mask, chunk=o.chunk))
        return (*timed(o, lambda: generate(new, **{name: cache})), prompt)

    model.set_attn_implementation(generation.IMPLEMENTATION)
    sharded(2)
    _, one, _ = sharded(1)
    found, all_new, prompt = sharded(o.new)
    model.set_attn_implementation("sdpa")
    generate(2)
    _, alone_one = timed(o, lambda: generate(1))
    expected, alone_all = timed(o, lambda: generate(o.new))
    same = int((found == expected)[:, o.tokens:].sum())
    if comm.rank == 0:
        print(f"{o.batch} x {o.tokens} tokens, pages of {o.page}, chunks of {o.chunk}: {comm.size} ranks: prompt {prompt * 1e3:.0f} ms, step "
              f"{(all_new - one) / (o.new - 1) * 1e3:.1f} ms; one process: prompt {alone_one * 1e3:.0f} ms, step "
              f"{(alone_all - alone_one) / (o.new - 1) * 1e3:.1f} ms; {same} of {o.batch * o.new} tokens are equal", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
    sp.close()
    dist.destroy_process_group()
