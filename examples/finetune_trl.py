#!/usr/bin/env python3
"""Trains a causal language model with TRL's SFTTrainer on packed documents, each sequence sharded over --sp ranks.

    python examples/finetune_trl.py                                                a tiny Llama, one process
    torchrun --nproc-per-node 2 examples/finetune_trl.py --sp 2                    the same losses
    torchrun --nproc-per-node 8 examples/finetune_trl.py --sp 4 --model ./my-llama --data ./text.txt --tokens 65536

For sequence parallelism only TrainerMixin and parallelism_config were added.
"""

import sys

import tokenizers
import torch
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from finetune_trainer import documents_of, model_of, options
from seqpar.torch.accelerate import ParallelismConfig
from seqpar.torch.transformers import TrainerMixin


class SeqparSFTTrainer(TrainerMixin, SFTTrainer):
    pass


def tokenizer_of(o):
    if o.model:
        return AutoTokenizer.from_pretrained(o.model)
    names = tokenizers.models.WordLevel({f"<{byte}>": byte for byte in range(256)}, unk_token="<0>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(names), eos_token="<0>", pad_token="<0>", unk_token="<0>")


def main(arguments=None):
    o = options(__doc__, arguments)
    model, encode = model_of(o)
    args = SFTConfig(
        o.out, max_steps=o.steps, per_device_train_batch_size=1, logging_steps=1, learning_rate=1e-3, report_to=[], save_strategy="no",
        packing=True, max_length=o.tokens, use_cpu=not torch.cuda.is_available(), bf16=torch.cuda.is_available(),
        parallelism_config=ParallelismConfig(cp_size=o.sp))
    trainer = SeqparSFTTrainer(model, args, train_dataset=Dataset.from_list(documents_of(o, encode)), processing_class=tokenizer_of(o))
    trainer.train()
    trainer.save_model()
    return trainer


if __name__ == "__main__":
    main(sys.argv[1:])
