"""Models, examples and arguments of clients.py."""

import contextlib
import importlib.metadata

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import trl
from seqpar.torch.accelerate import ParallelismConfig
from seqpar.torch.transformers import TrainerMixin

CASES = {}
VOCABULARY = 50


def case(*sizes, needs=None, when=None, alone=False):
    """Registers a function of (ranks, ranks of a sequence, folder) that returns values to compare with one process.

    needs  a package        when  a function that is true if the case can run        alone  True: in processes of its own"""
    def decorate(function):
        try:
            if needs is not None:
                importlib.metadata.version(needs)
            if when is None or when():
                CASES[function.__name__] = function, sizes, alone
            else:
                print(f"skipped {function.__name__}", flush=True)
        except importlib.metadata.PackageNotFoundError as error:
            print(f"skipped {function.__name__}: {error}", flush=True)
        return function

    return decorate


@contextlib.contextmanager
def raises(kind, text):
    try:
        yield
    except kind as error:
        assert text in str(error), f"{text!r} is not in {error}"
        return
    raise AssertionError(f"no {kind.__name__} with {text!r}" if isinstance(kind, type) else f"no error with {text!r}")


class SeqparTrainer(TrainerMixin, Trainer):
    pass


class SeqparSFTTrainer(TrainerMixin, trl.SFTTrainer):
    pass


def model(layers=2, **more):
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=layers,
                                        num_attention_heads=4, num_key_value_heads=2, use_cache=False, **more))


def lora(own):
    import peft
    torch.manual_seed(2)
    return peft.get_peft_model(own, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))


def examples(count=16, seed=3, lengths=(21, 3, 30, 8, 1, 14)):
    """Every fifth has no labels, every third has some."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        ids = torch.randint(VOCABULARY, (lengths[i % len(lengths)],), generator=random).tolist()
        labels = [-100] * len(ids) if i % 5 == 4 else ids if i % 3 else [-100] * (len(ids) // 2) + ids[len(ids) // 2:]
        found.append({"input_ids": ids, "labels": labels})
    return found


def padded(batch):
    """A batch with padding on the right."""
    longest = max(len(x["input_ids"]) for x in batch)
    def fill(name, value):
        return torch.tensor([list(x[name]) + [value] * (longest - len(x[name])) for x in batch])

    mask = torch.tensor([[1] * len(x["input_ids"]) + [0] * (longest - len(x["input_ids"])) for x in batch])
    return {"input_ids": fill("input_ids", 7), "labels": fill("labels", -100), "attention_mask": mask}


def config_of(ranks, cp, **more):
    return ParallelismConfig(cp_size=cp, **more) if ranks > 1 else None


def arguments(folder, ranks, cp, kind=TrainingArguments, parallelism=None, **more):
    """The same sequences a step on any number of ranks."""
    batch = 2 * cp // ranks if ranks > 1 else 2
    options = {"bf16": False} if kind is not TrainingArguments else {}
    return kind(folder, **{
        "use_cpu": True, "per_device_train_batch_size": batch, "per_device_eval_batch_size": batch, "report_to": [], "logging_steps": 1,
        "disable_tqdm": True, "save_strategy": "no", "learning_rate": 0.3, "optim": "sgd", "lr_scheduler_type": "constant",
        "parallelism_config": parallelism or config_of(ranks, cp), **options, **more})


def result_of(trainer, **more):
    """Losses, and the parameters, whole ones if FSDP2 shards them."""
    logs = [x for x in trainer.state.log_history if "grad_norm" in x]
    return {"losses": [x["loss"] for x in logs], "norms": [x["grad_norm"] for x in logs],
            "parameters": torch.cat([getattr(x, "full_tensor", x.detach)().detach().flatten() for x in trainer.model.parameters()]), **more}


class Metrics:
    """The rate of correct next tokens, and the number of samples."""

    def __call__(self, predictions):
        logits, labels = torch.from_numpy(predictions.predictions), torch.from_numpy(predictions.label_ids)
        right, counted = logits[:, :-1].argmax(-1) == labels[:, 1:], labels[:, 1:] != -100
        return {"accuracy": (right & counted).sum().item() / counted.sum().item(), "samples": len(labels)}


def tokenizer():
    import tokenizers
    from transformers import PreTrainedTokenizerFast
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w7", unk_token="w0")
