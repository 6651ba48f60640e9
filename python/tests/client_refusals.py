"""Options, models and batches that would give other results raise errors with their names."""

import torch
import torch.distributed as dist
import transformers
from transformers import Trainer

import seqpar.torch as sp
import trl
from client_support import SeqparSFTTrainer, SeqparTrainer, arguments, examples, model, padded, raises, tokenizer
from seqpar.torch.accelerate import ParallelismConfig
from seqpar.torch._trainer import _require_classes
from seqpar.torch.transformers import PackingCollator, TrainerMixin


def _options(folder, ranks, cp):
    def trainer(own=None, kind=SeqparTrainer, collator=padded, more=None, **options):
        return kind(own or model(), arguments(folder, ranks, cp, **options), data_collator=collator, train_dataset=examples(), **more or {})

    for text, options in {"label_smoothing_factor is 0.1": {"label_smoothing_factor": 0.1}, "neftune": {"neftune_noise_alpha": 1.0},
                          "dispatch_batches": {"accelerator_config": {"dispatch_batches": True}},
                          "split_batches": {"accelerator_config": {"split_batches": True}},
                          "compute_loss_func": {"more": {"compute_loss_func": lambda *_, **__: 0}},
                          "output_router_logits": {"own": model(output_router_logits=True)}}.items():
        with raises(ValueError, text):
            trainer(**options)

    class OwnLoss(SeqparTrainer):
        def compute_loss(self, *given, **named):
            return super().compute_loss(*given, **named)

    class Generating(TrainerMixin, transformers.Seq2SeqTrainer):
        pass

    class NoTrainer(TrainerMixin):
        accelerator = None

    with raises(TypeError, "has the base Trainer before TrainerMixin"):
        type("Reversed", (Trainer, TrainerMixin), {})
    with raises(TypeError, "Trainer has cp_size=2 without TrainerMixin"):
        trainer(kind=Trainer, max_steps=1).train()
    sp.close()
    with raises(TypeError, "OwnLoss has its own compute_loss()"):
        trainer(kind=OwnLoss)
    with raises(TypeError, "Seq2SeqTrainer"):
        Generating(model(), transformers.Seq2SeqTrainingArguments(**vars_of(arguments(folder, ranks, cp))), data_collator=padded)
    class Preferences(TrainerMixin, trl.DPOTrainer):
        pass

    with raises(TypeError, "DPOTrainer needs whole sequences"):
        _require_classes(Preferences.__new__(Preferences))
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
    with raises(ValueError, "LlamaForSequenceClassification is not ForCausalLMLoss"):
        trainer(own=transformers.LlamaForSequenceClassification(config))

    class IgnoringForCausalLM(transformers.LlamaForCausalLM):
        def forward(self, *given, labels=None, shift_labels=None, num_items_in_batch=None, **named):
            found = super().forward(*given, **named)
            found.loss = self.loss_function(found.logits, labels, self.vocab_size)
            return found

    with raises(ValueError, "IgnoringForCausalLM does not pass shift_labels and num_items_in_batch"):
        trainer(own=IgnoringForCausalLM(config), remove_unused_columns=False).train()
    sp.close()

    class SilentForCausalLM(IgnoringForCausalLM):
        def forward(self, *given, labels=None, shift_labels=None, num_items_in_batch=None, **named):
            found = transformers.LlamaForCausalLM.forward(self, *given, **named)
            found.loss = found.logits.mean()
            return found

    with raises(ValueError, "SilentForCausalLM did not call its loss function"):
        trainer(own=SilentForCausalLM(config), remove_unused_columns=False).train()
    sp.close()


def vars_of(args):
    return {"output_dir": args.output_dir, "use_cpu": True, "parallelism_config": args.parallelism_config, "report_to": []}


def _batches(folder, ranks, cp):
    config = ParallelismConfig(cp_size=cp)
    config.get_device_mesh("cpu")
    sharder = config.sharder(model())
    ids = torch.arange(10).reshape(2, 5)
    ones = torch.ones_like(ids)
    left, holes, short = ones.clone(), ones.clone(), ones.clone()
    left[1, 0] = holes[0, 2] = short[0, 4] = 0
    for text, more in {"row 1 of attention_mask": {"attention_mask": left}, "row 0 of attention_mask": {"attention_mask": holes},
                       "labels of padding": {"attention_mask": short, "labels": ids},
                       "token_type_ids": {"token_type_ids": ones}, "begins at 3": {"position_ids": torch.arange(3, 8)[None]},
                       "position_ids[0][3] is 9": {"position_ids": torch.tensor([[0, 1, 2, 9, 4]])},
                       "expected equal bounds": {"cu_seq_lens_q": torch.tensor([0, 5])},
                       "labels has the shape": {"labels": ids[:, 1:]}}.items():
        with raises(ValueError, text):
            sharder({"input_ids": ids, **more})
    with raises(ValueError, "restart at (0, 2)"):
        sharder({"input_ids": ids[:1], "position_ids": torch.tensor([[0, 1, 0, 1, 2]]), "cu_seq_lens_q": torch.tensor([0, 3, 5])})
    with raises(ValueError, "rank 1 has input_ids"):
        sharder({"input_ids": ids + dist.get_rank()})
    with raises(ValueError, "at most tokens=4"):
        PackingCollator(tokens=4)(examples(1))
    mine = sharder({"input_ids": ids, "labels": ids, "attention_mask": ones})
    assert mine.label_count == 8 and mine.unshard(mine["input_ids"]).equal(ids) and mine.given is ids
    mine = sharder({"input_ids": ids[:, :3], "attention_mask": short[:, 2:]})  # fewer tokens than chunks, and padding
    assert mine.unshard(mine["input_ids"]).equal(ids[:, :3] * short[:, 2:]) and "labels" not in mine
    for text, more in {"cp_size is 0": {"cp_size": 0}, "tp_size is 2": {"tp_size": 2}, "cp_backend": {"cp_handler": object()},
                       "layout": {"layout": "diagonal"}}.items():
        with raises((ValueError, sp.Error), text):
            ParallelismConfig(**{"cp_size": 2, **more})
    with raises(ValueError, "expected 2, the ranks that were started"):
        ParallelismConfig(cp_size=4).get_device_mesh("cpu")
    sp.close()


def check(folder, ranks, cp):
    _options(folder, ranks, cp)
    _batches(folder, ranks, cp)
    with raises(ValueError, "average_tokens_across_devices"):
        _sft(folder, ranks, cp, average_tokens_across_devices=False)

    class Plain(TrainerMixin, Trainer):
        pass

    import accelerate
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state()
    theirs = accelerate.ParallelismConfig(dp_replicate_size=ranks)
    theirs.cp_size = 2
    theirs._validate_accelerator = lambda accelerator: None
    with raises(TypeError, "parallelism_config is accelerate's"):
        Plain(model(), arguments(folder, ranks, cp, parallelism=theirs), data_collator=padded)


def _sft(folder, ranks, cp, **more):
    import datasets
    return SeqparSFTTrainer(model(), arguments(folder, ranks, cp, trl.SFTConfig, **more), processing_class=tokenizer(),
                            train_dataset=datasets.Dataset.from_list(examples(4)))
