"""Trainer, SFTTrainer and accelerate with sharded sequences, on 2 and 4 ranks, against one process without seqpar:
clients.py [CASE...]; test_clients.py starts it. Imports the packages once, and forks the ranks."""

import contextlib
import os
import pathlib
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers
from transformers import LlamaForCausalLM, Trainer

import client_refusals
import client_stacks  # noqa: F401
import client_te  # noqa: F401
import client_torchtitan  # noqa: F401
import seqpar.torch as sp
import venvs
from client_support import (CASES, Metrics, SeqparSFTTrainer, SeqparTrainer, arguments, case, config_of, examples, lora, model,
                            padded, result_of, tokenizer)
from seqpar.torch.accelerate import ParallelismConfig
from seqpar.torch.transformers import PackingCollator


@case((2, 2), (4, 4), (4, 2))
def padded_batches(ranks, cp, folder):
    """Examples of 3 to 30 tokens, padded on the right, and one without labels."""
    kind = SeqparTrainer if ranks > 1 else Trainer
    trainer = kind(model(), arguments(folder, ranks, cp, max_steps=5, include_num_input_tokens_seen="all"), data_collator=padded,
                   train_dataset=examples(),
                   eval_dataset=examples(4, seed=5))
    trainer.train()
    more = {"odd": trainer.evaluate(examples(5, seed=6))["eval_loss"]} if ranks in (1, cp) else {}
    if ranks in (1, cp):
        more.update(flos=trainer.state.total_flos, seen=trainer.state.num_input_tokens_seen)
    return result_of(trainer, eval=trainer.evaluate()["eval_loss"], **more)


def _bamba():
    torch.manual_seed(1)
    return transformers.BambaForCausalLM(transformers.BambaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, use_cache=False,
        attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=2))


@case((2, 2))
def recurrent_layers(ranks, cp, folder):
    """A layer of Mamba-2 and one of attention."""
    trainer = (SeqparTrainer if ranks > 1 else Trainer)(_bamba(), arguments(folder, ranks, cp, max_steps=3, learning_rate=0.05),
                                                         data_collator=padded, train_dataset=examples(), eval_dataset=examples(4, seed=5))
    trainer.train()
    return result_of(trainer, eval=trainer.evaluate()["eval_loss"])


@case((2, 2), (4, 2))
def packed_with_accumulation_and_resume(ranks, cp, folder):
    """Three batches a step; a run that stops after two steps and is resumed equals a run of four."""
    def trainer(steps, mixed):
        kind = SeqparTrainer if mixed else Trainer
        return kind(model(), arguments(folder, ranks, cp, max_steps=4, gradient_accumulation_steps=3, save_steps=2,
                                       save_strategy="steps"), data_collator=PackingCollator(tokens=61), train_dataset=examples(30),
                    eval_dataset=examples(4, seed=5), callbacks=[_Stop(steps)])

    if ranks > 1:
        trainer(2, True).train()
    last = trainer(4, ranks > 1)
    last.train(resume_from_checkpoint=f"{folder}/checkpoint-2" if ranks > 1 else None)
    saved = LlamaForCausalLM.from_pretrained(f"{folder}/checkpoint-4")
    for one, other in zip(saved.parameters(), last.model.parameters()):
        assert one.equal(other)
    return result_of(last, eval=last.evaluate()["eval_loss"])


def _fsdp2(folder, ranks, cp, layer, **more):
    """Arguments with FSDP2 over data and sequence ranks. accelerate takes it on GPUs only: these ranks pretend to have some."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType
    options = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": [layer], "reshard_after_forward": True, "activation_checkpointing": True}
    made = arguments(folder, ranks, cp, parallelism=ParallelismConfig(cp_size=cp, dp_shard_size=ranks // cp), fsdp=True,
                     fsdp_config=options, **more)
    assert made.device.type == "cpu"  # creates the state
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return made


@case((2, 2), (4, 2), alone=True)
def fsdp2(ranks, cp, folder):
    """Sharded parameters and layers that run again in the backward pass; a run that stops after two steps and is resumed equals
    a run of four."""
    found = {}
    for name in ("Llama", "Bamba"):
        def trainer(steps):
            own, out = model() if name == "Llama" else _bamba(), f"{folder}-{name}"
            more = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps", "optim": "adamw_torch", "learning_rate": 1e-2}
            options = _fsdp2(out, ranks, cp, f"{name}DecoderLayer", **more) if ranks > 1 else arguments(out, ranks, cp, **more)
            return (SeqparTrainer if ranks > 1 else Trainer)(own, options, data_collator=padded, train_dataset=examples(),
                                                             eval_dataset=examples(4, seed=5), callbacks=[_Stop(steps)])

        if ranks > 1:
            trainer(2).train()
        last = trainer(4)
        last.train(resume_from_checkpoint=f"{folder}-{name}/checkpoint-2" if ranks > 1 else None)
        own = result_of(last, eval=last.evaluate()["eval_loss"])
        assert ranks == 1 or type(last.model).__name__.startswith("FSDP"), type(last.model)
        found.update({f"{key} of {name}": x for key, x in own.items()})
    return found


@case((2, 2), alone=True)
def compiled(ranks, cp, folder):
    """torch_compile, with layers of attention and with one of Mamba-2, of batches without padding: no step compiles again."""
    found = {}
    for name, own in (("Llama", model(layers=1)), ("Bamba", _bamba())):
        more = {"torch_compile": True, "torch_compile_backend": "aot_eager"} if ranks > 1 else {}
        trainer = (SeqparTrainer if ranks > 1 else Trainer)(own, arguments(folder, ranks, cp, max_steps=3, learning_rate=0.05, **more),
                                                             data_collator=padded, train_dataset=examples(12, lengths=(17,)))
        with torch._dynamo.config.patch(error_on_recompile=True):
            trainer.train()
        found.update({f"{key} of {name}": x for key, x in result_of(trainer).items()})
        torch.compiler.reset()
    return found


class _Stop(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **more):
        control.should_training_stop = state.global_step >= self.step


@case((2, 2), (4, 2))
def logits_in_evaluation(ranks, cp, folder):
    """Metrics get whole logits of padded sequences, once each, and predict() returns them."""
    metrics = Metrics()
    kind = SeqparTrainer if ranks > 1 else Trainer
    trainer = kind(model(), arguments(folder, ranks, cp), data_collator=padded, compute_metrics=metrics, eval_dataset=examples(5, seed=6))
    found = trainer.evaluate()
    assert found["eval_samples"] == 5, found
    predicted = trainer.predict(examples(4, seed=7))
    logits = torch.from_numpy(predicted.predictions)
    return {"accuracy": found["eval_accuracy"], "logits": logits[torch.from_numpy(predicted.label_ids) != -100],
            **({"loss": found["eval_loss"]} if ranks in (1, cp) else {})}


@case((2, 2))
def lora_with_checkpointing(ranks, cp, folder):
    kind = SeqparTrainer if ranks > 1 else Trainer
    trainer = kind(lora(model()), arguments(folder, ranks, cp, max_steps=3, gradient_checkpointing=True), data_collator=padded,
                   train_dataset=examples())
    trainer.train()
    return result_of(trainer)


@case((2, 2))
def average_of_a_rank(ranks, cp, folder):
    """average_tokens_across_devices=False: the mean of each sequence's batch; a mixed batch of equal lengths without padding."""
    kind = SeqparTrainer if ranks > 1 else Trainer
    trainer = kind(model(layers=1), arguments(folder, ranks, cp, max_steps=2, average_tokens_across_devices=False),
                   data_collator=padded, train_dataset=examples(8, lengths=(17,)), eval_dataset=examples(3, lengths=(19,)))
    trainer.train()
    return result_of(trainer, eval=trainer.evaluate()["eval_loss"])


@case((2, 2), (4, 2))
def sft(ranks, cp, folder):
    """SFTTrainer: packed and padded; its evaluation passes no number of tokens."""
    import datasets
    from trl import SFTConfig, SFTTrainer
    found = {}
    mixed = (21, 3, 30, 8, 14)
    for packing, lengths in ((True, mixed), (False, mixed), (False, (17,))):
        more = {"packing": packing, "max_length": 40 if packing else 64}
        trainer = (SeqparSFTTrainer if ranks > 1 else SFTTrainer)(
            model(), arguments(folder, ranks, cp, SFTConfig, max_steps=3, **more), processing_class=tokenizer(),
            train_dataset=datasets.Dataset.from_list(examples(24, lengths=lengths)),
            eval_dataset=datasets.Dataset.from_list(examples(3, seed=6)) if ranks in (1, cp) else None)
        trainer.train()
        found[packing, len(lengths)] = result_of(trainer)
        found[packing, len(lengths)]["tokens"] = [x["num_tokens"] for x in trainer.state.log_history if "num_tokens" in x][:3]
        if ranks in (1, cp):
            metrics = trainer.evaluate()
            found[packing, len(lengths)].update(eval=metrics["eval_loss"], entropy=metrics["eval_entropy"], top=metrics["eval_mean_token_accuracy"])
    return {f"{name} {packing}": x for packing, one in found.items() for name, x in one.items()}


@case((2, 2))
def sft_resume(ranks, cp, folder):
    """SFTTrainer, packed, with two batches a step: a run that stops after two steps and is resumed equals a run of four."""
    import datasets
    from trl import SFTConfig, SFTTrainer

    def trainer(steps):
        return (SeqparSFTTrainer if ranks > 1 else SFTTrainer)(
            model(), arguments(folder, ranks, cp, SFTConfig, max_steps=4, packing=True, max_length=40, gradient_accumulation_steps=2,
                               save_steps=2, save_strategy="steps"), processing_class=tokenizer(), callbacks=[_Stop(steps)],
            train_dataset=datasets.Dataset.from_list(examples(40, lengths=(21, 3, 30, 8, 14))),
            eval_dataset=datasets.Dataset.from_list(examples(3, seed=6)))

    if ranks > 1:
        trainer(2).train()
    last = trainer(4)
    last.train(resume_from_checkpoint=f"{folder}/checkpoint-2" if ranks > 1 else None)
    return result_of(last, eval=last.evaluate()["eval_loss"])


@case((2, 2))
def bounds_without_positions(ranks, cp, folder):
    """DataCollatorWithFlattening, on several ranks with cu_seq_lens_q alone."""
    flat = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=ranks > 1)

    def collate(batch):
        return {name: x for name, x in flat(batch).items() if ranks == 1 or name != "position_ids"}

    kind = SeqparTrainer if ranks > 1 else Trainer
    trainer = kind(model(), arguments(folder, ranks, cp, max_steps=4), data_collator=collate, train_dataset=examples(12))
    trainer.train()
    return result_of(trainer)


@case((2, 2), (4, 2))
def accelerate_alone(ranks, cp, folder):
    """A loop of one's own: the loss of a sequence is averaged over all ranks by DDP."""
    import accelerate
    torch.manual_seed(0)
    config = config_of(ranks, cp)
    accelerator = accelerate.Accelerator(cpu=True, parallelism_config=config)
    own = model()
    sharder = config.sharder(own) if ranks > 1 else None
    loader = torch.utils.data.DataLoader(examples(12), batch_size=2 * cp // ranks if ranks > 1 else 2, collate_fn=PackingCollator())
    prepared, optimizer, loader = accelerator.prepare(own, torch.optim.SGD(own.parameters(), lr=0.3), loader)
    losses = []
    for batch in loader:
        items = accelerator.gather(batch["shift_labels"].ne(-100).sum()[None]).sum() / cp
        shard = sharder(batch) if ranks > 1 else batch
        loss = prepared(**shard, num_items_in_batch=items).loss * ranks
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()[None]).mean().item())
    return {"losses": losses, "parameters": torch.cat([x.detach().flatten() for x in own.parameters()])}


@case((2, 2))
def examples_of_the_repository(ranks, cp, folder):
    """examples/finetune_trainer.py and finetune_trl.py."""
    sys.path.insert(0, str(venvs.ROOT / "examples"))
    import finetune_trainer
    import finetune_trl
    text = folder + ".txt"
    pathlib.Path(text).write_text("\n".join(f"{'a line of text ' * (i % 4 + 1)}{i}" for i in range(60)))
    found = {}
    for example in (finetune_trainer, finetune_trl):
        trainer = example.main(["--sp", str(cp), "--steps", "3", "--tokens", "125", "--data", text, "--out", folder])
        found[example.__name__] = [x["loss"] for x in trainer.state.log_history if "loss" in x]
        assert found[example.__name__][-1] < found[example.__name__][0]
        sp.close()
    return found


@case((2, 2), needs="torchtitan", alone=True)
def example_of_torchtitan(ranks, cp, folder):
    """examples/pretrain_torchtitan.py: torchtitan's Trainer, data loader, FSDP2 and checkpoints of activations."""
    sys.path.insert(0, str(venvs.ROOT / "examples"))
    import pretrain_torchtitan
    losses = pretrain_torchtitan.main(["--sp", str(cp), "--steps", "4", "--tokens", "128", "--out", folder])
    assert len(losses) == 4 and losses[-1] < losses[0] - 1, losses
    return {"losses": losses}


@case((2, 2))
def refusals(ranks, cp, folder):
    if ranks > 1:
        client_refusals.check(folder, ranks, cp)
    return {}


def _rank(rank, ranks, cp, names, port, folder):
    torch.set_num_threads(1)
    if ranks > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    from accelerate.state import AcceleratorState, GradientState
    for name in names:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        found = CASES[name][0](ranks, cp, f"{folder}/{name}-{ranks}-{cp}")
        torch.save(found, f"{folder}/{name}-{ranks}-{cp}-{rank}.pt")
        sp.close()
        if dist.is_initialized():
            dist.barrier()
    if dist.is_initialized():
        dist.destroy_process_group()


def _groups(names):
    """Lists of cases that share processes."""
    together = [name for name in names if not CASES[name][2]]
    return [group for group in (together, *([name] for name in names if CASES[name][2])) if group]


def _different(one, other):
    one, other = (torch.as_tensor(x, dtype=torch.float64) for x in (one, other))
    return float("inf") if one.shape != other.shape else (one - other).abs().nan_to_num(nan=float("inf")).max().item() if one.numel() else 0.0


def main():
    names = sys.argv[1:] or list(CASES)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HF_HOME=folder, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        for ranks, cp in ((1, 1), (2, 2), (4, 4), (4, 2)):
            mine = [name for name in names if ranks == 1 or (ranks, cp) in CASES[name][1]]
            began = time.monotonic()
            for group in _groups(mine):
                with venvs.reserved_port() as port, open(f"{folder}/log", "w+") as log, _output(log):
                    try:
                        mp.start_processes(_rank, args=(ranks, cp, group, port, folder), nprocs=ranks, start_method="fork")
                    except Exception as error:
                        failed += [f"{ranks} ranks: {error}"]
                        break
            if failed:
                print(pathlib.Path(folder, "log").read_text()[-8000:], "\n".join(failed), flush=True)
                sys.exit(1)
            for name in mine:
                expected = torch.load(f"{folder}/{name}-1-1-0.pt", weights_only=False)
                for rank in range(ranks):
                    found = torch.load(f"{folder}/{name}-{ranks}-{cp}-{rank}.pt", weights_only=False)
                    worst = max([(_different(x, expected[key]), key) for key, x in found.items()], default=(0.0, ""))
                    if not worst[0] <= 2e-5:
                        failed.append(f"{name}, rank {rank} of {ranks}: {worst[1]} differs by {worst[0]:.1e}: {found[worst[1]]}, expected "
                                      f"{expected[worst[1]]}")
                print(f"{name} ({ranks} ranks, {cp} a sequence) ... difference {worst[0]:.1e} ({worst[1]})", flush=True)
            print(f"{ranks} ranks: {time.monotonic() - began:.1f} s", flush=True)
    print("\n".join(failed))
    sys.exit(1 if failed else 0)


@contextlib.contextmanager
def _output(file):
    """The output of the packages, of this process and of the ranks, in a file."""
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for target, one in enumerate(kept, 1):
            os.dup2(one, target)
            os.close(one)


if __name__ == "__main__":
    main()
