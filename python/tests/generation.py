"""generate() of transformers with seqpar.torch.generation on 2 and 4 ranks, against one process without it: generation.py [CASE...];
test_generation.py starts it. Imports the packages once, and forks the ranks."""

import inspect
import os
import pathlib
import random
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import (GPTBigCodeConfig, GPTBigCodeForCausalLM, GPTNeoConfig, GPTNeoForCausalLM, GptOssConfig, GptOssForCausalLM,
                          LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen3NextConfig, T5Config)

import seqpar.torch as sp
import stub_file
import venvs
from seqpar.torch import generation

sys.path.insert(0, str(venvs.ROOT / "examples"))
import serve_long_prompt  # noqa: E402

_SIZES = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
_NEW = 20


def _models():
    torch.manual_seed(7)
    yield "Llama", LlamaForCausalLM(LlamaConfig(**_SIZES))
    yield "Mistral", MistralForCausalLM(MistralConfig(**_SIZES, sliding_window=9))
    yield "gpt-oss", GptOssForCausalLM(GptOssConfig(**_SIZES, sliding_window=7, num_local_experts=4, num_experts_per_tok=2,
                                                    layer_types=["sliding_attention", "full_attention"]))


def _prompts(seed):
    """(ids, mask): a batch of unequal prompts, padded on the left, and one prompt without a mask."""
    random_ids = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 60, (3, 37), generator=random_ids)
    mask = torch.ones_like(ids)
    for row, length in enumerate((37, 11, 1)):
        mask[row, :37 - length] = 0
        ids[row, :37 - length] = 0
    return [(ids, mask), (torch.randint(2, 60, (1, 23), generator=random_ids), None)]


def _generate(model, ids, mask, **more):
    with torch.no_grad():
        return model.generate(ids, attention_mask=mask, max_new_tokens=_NEW, do_sample=False, **more)


def _name(model):
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _checks(comm, seed):
    for name, model in _models():
        model.eval()
        with torch.no_grad():  # so that the sinks and the choice of tokens matter
            for parameter, x in model.named_parameters():
                x.normal_(0.0, 1.0 if "sinks" in parameter or "lm_head" in parameter else 0.2)
        for ids, mask in _prompts(seed):
            model.set_attn_implementation("eager")
            expected = _generate(model, ids, mask)
            beams = _generate(model, ids, mask, num_beams=2)
            model.set_attn_implementation(generation.IMPLEMENTATION)
            for page, chunk in ((1, None), (4, 12), (4, 1000), (16, 25)):
                cache = generation.ShardedCache(model.config, comm, page=page)
                if chunk is not None:
                    generation.prefill(model, ids, cache, attention_mask=mask, chunk=chunk)
                    assert cache.get_seq_length() == ids.shape[1] - 1, cache.get_seq_length()
                found = _generate(model, ids, mask, **{_name(model): cache})
                assert found.equal(expected), f"{name}, page {page}, chunk {chunk}: {found.tolist()}, expected {expected.tolist()}"
                _check_shares(comm, cache, page, ids.shape[1] + _NEW - 1)
            found = _generate(model, ids, mask, num_beams=2, **{_name(model): generation.ShardedCache(model.config, comm, page=4)})
            assert found.equal(beams), f"{name}: beams"
            cache = generation.ShardedCache(model.config, comm, page=4)
            generation.prefill(model, ids, cache, attention_mask=mask, chunk=12)
            cache.batch_repeat_interleave(2)
            found = _generate(model, ids, mask, num_beams=2, **{_name(model): cache})
            assert found.equal(beams), f"{name}: beams after prefill()"


def _check_shares(comm, cache, page, length):
    """Every token that a later query can see is on one rank: its owner."""
    for layer in cache.layers:
        first = length - layer.window if layer.window else 0
        expected = [i for i in range(max(0, first), length) if i // page % comm.size == comm.rank]
        assert layer.get_seq_length() == length, (layer.get_seq_length(), length)
        found = layer.positions.tolist()
        assert found[len(found) - len(expected):] == expected and layer.keys.shape[2] == len(found), (found, expected)


def _raises(error, text, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except error as caught:
        assert text in str(caught), f"{text!r} is not in {caught}"
        return
    raise AssertionError(f"no {error.__name__} with {text!r}")


def _refusals(comm):
    name, model = next(_models())
    model.eval()
    ids = torch.randint(2, 60, (1, 9), generator=torch.Generator().manual_seed(1))
    cache = generation.ShardedCache(model.config, comm)
    _raises(ValueError, "expected 'seqpar_cache'", generation.prefill, model, ids, cache)
    model.set_attn_implementation(generation.IMPLEMENTATION)
    _raises(TypeError, "expected a ShardedCache", generation.prefill, model, ids, None)
    _raises(ValueError, "without a ShardedCache", model, ids)
    _raises(ValueError, "page is 0", generation.ShardedCache, model.config, comm, page=0)
    _raises(TypeError, "expected a seqpar.torch.Comm", generation.ShardedCache, model.config, None)
    _raises(ValueError, "has an encoder", generation.ShardedCache, T5Config(), comm)
    _raises(ValueError, "linear_attention", generation.ShardedCache, Qwen3NextConfig(num_hidden_layers=4), comm)
    _raises(ValueError, "chunk is 0", generation.prefill, model, ids, cache, chunk=0)
    _raises(ValueError, "padding on the left only", generation.prefill, model, ids, cache,
            attention_mask=torch.tensor([[1, 0, 1, 1, 1, 1, 1, 1, 1]]))
    long = LlamaForCausalLM(LlamaConfig(**_SIZES, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0))).eval()
    long.set_attn_implementation(generation.IMPLEMENTATION)
    _raises(ValueError, "expected generate() without prefill()", generation.prefill, long, ids, generation.ShardedCache(long.config, comm))
    several, pads = ids.expand(2, -1), torch.ones(2, 9, dtype=torch.int64)
    pads[0, :3] = 0
    for prompt, mask in ((ids, None), (several, pads)):  # the second step would append all tokens to those of the first
        _raises(ValueError, "the model computed 10 tokens again, of which the cache has 9", model.generate, prompt, attention_mask=mask,
                use_cache=False, max_new_tokens=2, **{_name(model): generation.ShardedCache(model.config, comm)})
    code = GPTBigCodeForCausalLM(GPTBigCodeConfig(n_embd=32, n_layer=2, n_head=4, vocab_size=60)).eval()  # no positions, no mask
    code.set_attn_implementation(generation.IMPLEMENTATION)
    again = generation.ShardedCache(code.config, comm)
    _raises(ValueError, "the model computed 10 tokens again, of which the cache has 9", code.generate, ids, use_cache=False, max_new_tokens=2,
            eos_token_id=None, **{_name(code): again})
    again.reset()
    code.generate(ids, max_new_tokens=2, eos_token_id=None, **{_name(code): again})
    _raises(ValueError, "has attn_implementation 'eager', expected 'seqpar_cache'",
            GPTNeoForCausalLM(GPTNeoConfig(num_layers=1, attention_types=[[["global"], 1]], hidden_size=16, vocab_size=8, num_heads=2))
            .set_attn_implementation, generation.IMPLEMENTATION)
    generation.prefill(model, ids, cache)
    _raises(ValueError, "got 2 sequences, expected 1", model.generate, ids, num_beams=2, max_new_tokens=1, **{_name(model): cache})
    model.set_attn_implementation("sdpa")  # would attend the rank's keys only
    _raises(ValueError, "did not attend the keys of its previous layer", model.generate, ids, max_new_tokens=1,
            **{_name(model): generation.ShardedCache(model.config, comm)})
    model.set_attn_implementation(generation.IMPLEMENTATION)
    cache.reset()
    if comm.size > 1:
        _raises(ValueError, "different prompts", generation.prefill, model, ids + comm.rank, cache)
        _raises(NotImplementedError, "crop", cache.layers[0].crop, -1)


def _rank(rank, ranks, port, seed, log):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo")
    try:
        comm = sp.comm(timeout=300)
        _refusals(comm)
        _checks(comm, seed)
        if ranks == 2:
            serve_long_prompt.main(["--check", "--tokens", "211", "--chunk", "64", "--new", "5"])
        sp.close()
    except Exception:
        pathlib.Path(f"{log}-{rank}").write_text(traceback.format_exc())
        raise
    dist.destroy_process_group()


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    stub_file.compare(stub_file.read(pathlib.Path(generation.__file__).with_suffix(".pyi")), stub_file.public(generation), {})
    for ranks in (2, 4):
        with tempfile.TemporaryDirectory() as folder, venvs.reserved_port() as port:
            try:
                mp.start_processes(_rank, args=(ranks, port, seed, f"{folder}/log"), nprocs=ranks, start_method="fork")
            except Exception:
                for text in sorted(pathlib.Path(folder).iterdir()):
                    print(text.name, text.read_text()[-3000:], sep="\n")
                sys.exit(f"{ranks} ranks: failed with the seed {seed}")
        print(f"{ranks} ranks: passed", flush=True)


if __name__ == "__main__":
    main()
