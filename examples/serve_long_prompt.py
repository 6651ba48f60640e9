#!/usr/bin/env python3
"""Continues a long prompt with a model of Hugging Face transformers; the keys and values of the prompt are distributed over the
ranks, and each rank computes its tokens of the prompt.

    torchrun --nproc-per-node 2 examples/serve_long_prompt.py                     a tiny Llama with random weights, on two CPU ranks
    torchrun --nproc-per-node 2 examples/serve_long_prompt.py --check             compares the text with one process
    torchrun --nproc-per-node 8 examples/serve_long_prompt.py --device cuda --dtype bfloat16 --model ./my-llama --prompt book.txt

--model names a folder with a model and its tokenizer; without it the tokens are the bytes of the prompt.
"""

import argparse
import inspect
import os
import pathlib
import time

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import seqpar.torch as sp
from seqpar.torch import generation


def model_of(o):
    if o.model:
        return AutoModelForCausalLM.from_pretrained(o.model, dtype=getattr(torch, o.dtype)).to(o.device).eval()
    torch.manual_seed(0)  # equal parameters on all ranks
    config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8,
                         num_key_value_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, o.dtype)).to(o.device).eval()


def ids_of(o):
    text = pathlib.Path(o.prompt).read_text() if o.prompt else "The quick brown fox jumps over the lazy dog. " * (o.tokens // 45 + 1)
    if o.model:
        return AutoTokenizer.from_pretrained(o.model)(text, return_tensors="pt").input_ids[:, :o.tokens].to(o.device)
    return torch.tensor([list(text.encode()[:o.tokens])], device=o.device)


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokens", type=int, default=2000, help="length of the prompt at most")
    p.add_argument("--new", type=int, default=16, help="tokens to generate")
    p.add_argument("--chunk", type=int, default=1024, help="tokens of all ranks in a forward pass of the prompt")
    p.add_argument("--page", type=int, default=128, help="consecutive tokens that a rank keeps")
    p.add_argument("--prompt", help="a file with the prompt; None: a sentence, repeated")
    p.add_argument("--model", help="a folder with a model and its tokenizer")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--dtype", default="float32")
    p.add_argument("--check", action="store_true", help="compare with the same model without seqpar")
    o = p.parse_args(arguments)
    if o.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if o.device == "cuda" else "gloo")
    comm = sp.comm()
    model, ids = model_of(o), ids_of(o)
    model.set_attn_implementation(generation.IMPLEMENTATION)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        cache = generation.ShardedCache(model.config, comm, page=o.page)
        began = time.monotonic()
        generation.prefill(model, ids, cache, chunk=o.chunk)
        prompt = time.monotonic() - began
        out = model.generate(ids, max_new_tokens=o.new, do_sample=False, **{name: cache})
        decode = time.monotonic() - began - prompt
        kept = cache.layers[0].keys.shape[2]
        if comm.rank == 0:
            print(f"{ids.shape[1]} tokens on {comm.size} ranks: prompt {prompt:.2f} s, {o.new} new tokens {decode:.2f} s, "
                  f"{kept} of {cache.get_seq_length()} tokens in the cache of rank 0", flush=True)
        if o.check:
            model.set_attn_implementation("sdpa")
            expected = model.generate(ids, max_new_tokens=o.new, do_sample=False)
            assert out.equal(expected), f"{out[0, ids.shape[1]:].tolist()}, expected {expected[0, ids.shape[1]:].tolist()}"
            print(f"rank {comm.rank}: equals one process", flush=True)
    return out


if __name__ == "__main__":
    main()
    sp.close()
    if dist.is_initialized():
        dist.destroy_process_group()
