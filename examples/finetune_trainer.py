#!/usr/bin/env python3
"""Trains a causal language model with transformers' Trainer, each sequence sharded over --sp ranks.

    python examples/finetune_trainer.py                                            a tiny Llama, one process
    torchrun --nproc-per-node 2 examples/finetune_trainer.py --sp 2                the same losses
    torchrun --nproc-per-node 8 examples/finetune_trainer.py --sp 4 --model ./my-llama --data ./text.txt --tokens 65536

Lines of --data are packed into sequences of --tokens tokens. --model names a folder with a model and its tokenizer; without it
a byte-level model is created. For sequence parallelism only TrainerMixin and parallelism_config were added.
"""

import argparse
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Trainer, TrainingArguments

from seqpar.torch.accelerate import ParallelismConfig
from seqpar.torch.transformers import PackingCollator, TrainerMixin


class SeqparTrainer(TrainerMixin, Trainer):
    pass


def options(text, arguments):
    p = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sp", type=int, default=1, help="ranks that share a sequence; the others are data parallel")
    p.add_argument("--model", help="a folder with a model and its tokenizer; None: a tiny Llama of bytes")
    p.add_argument("--data", default="/usr/share/common-licenses/Apache-2.0", help="a text file: a line is a document")
    p.add_argument("--tokens", type=int, default=256, help="tokens of a sequence, over all its ranks")
    p.add_argument("--steps", type=int, default=10, help="training steps")
    p.add_argument("--out", default="finetuned", help="folder of the result")
    return p.parse_args(arguments)


def model_of(o):
    """(model, function that turns a text into token ids)"""
    if o.model:
        tokenizer = AutoTokenizer.from_pretrained(o.model)
        return AutoModelForCausalLM.from_pretrained(o.model), lambda text: tokenizer(text)["input_ids"]
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2)
    return AutoModelForCausalLM.from_config(config), lambda text: list(text.encode())


def documents_of(o, encode):
    """Token ids of the lines, at most --tokens each."""
    lines = pathlib.Path(o.data).read_text(errors="replace").splitlines()
    return [{"input_ids": encode(line)[:o.tokens]} for line in lines if line.strip()]


def packed(documents, tokens):
    """Documents in the order of the file, grouped into sequences of at most `tokens` tokens."""
    groups, length = [], tokens + 1
    for document in documents:
        if length + len(document["input_ids"]) > tokens:
            groups.append({"input_ids": [], "seq_lengths": []})
            length = 0
        groups[-1]["input_ids"] += document["input_ids"]
        groups[-1]["seq_lengths"].append(len(document["input_ids"]))
        length += len(document["input_ids"])
    return groups


def main(arguments=None):
    o = options(__doc__, arguments)
    model, encode = model_of(o)
    args = TrainingArguments(
        o.out, max_steps=o.steps, per_device_train_batch_size=1, logging_steps=1, learning_rate=1e-3, report_to=[], save_strategy="no",
        remove_unused_columns=False, use_cpu=not torch.cuda.is_available(), parallelism_config=ParallelismConfig(cp_size=o.sp))
    trainer = SeqparTrainer(model, args, data_collator=PackingCollator(tokens=o.tokens),
                            train_dataset=packed(documents_of(o, encode), o.tokens))
    trainer.train()
    trainer.save_model()
    return trainer


if __name__ == "__main__":
    main(sys.argv[1:])
