#!/usr/bin/env python3
"""Pretrains torchtitan's Llama 3 with its Trainer, each sequence sharded over --sp ranks.

    python examples/pretrain_torchtitan.py                                         the debug model, one process
    torchrun --nproc-per-node 2 examples/pretrain_torchtitan.py --sp 2             the same losses
    torchrun --nproc-per-node 8 examples/pretrain_torchtitan.py --sp 4 --model llama3_8b --data ./text.txt --tokens 65536

A line of --data is a document, its bytes are its tokens; lines are packed into sequences of --tokens tokens. For sequence
parallelism only convert() and context_parallel_degree were added. torchtitan itself needs GPUs: on_hosts() replaces the few
functions that host memory lacks.
"""

import argparse
import os
import pathlib
import sys
from dataclasses import dataclass

import torch


def options(arguments):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sp", type=int, default=1, help="ranks that share a sequence; the others are data parallel")
    p.add_argument("--model", default="llama3_debugmodel", help="a configuration of torchtitan.models.llama3.config_registry")
    p.add_argument("--data", default="/usr/share/common-licenses/Apache-2.0", help="a text file: a line is a document")
    p.add_argument("--tokens", type=int, default=256, help="tokens of a sequence, over all its ranks; a multiple of twice --sp")
    p.add_argument("--batch", type=int, default=2, help="sequences of a data parallel rank in a step")
    p.add_argument("--steps", type=int, default=10, help="training steps")
    p.add_argument("--out", default="pretrained", help="folder of the result")
    return p.parse_args(arguments)


def on_hosts():
    """Before torchtitan is imported: its device is the CPU, of which PyTorch knows neither memory nor peak."""
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.get_device_name = lambda device=None: "CPU"
    torch.cpu.get_device_properties = lambda device=None: argparse.Namespace(total_memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    torch.cpu.memory_stats = lambda device=None: {}
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
    import torchtitan.distributed.utils as utils
    import torchtitan.tools.utils as tools
    tools.get_local_device = utils.get_local_device = lambda: torch.device("cpu")
    utils.set_pg_timeouts = lambda **_: None  # its barrier names a GPU


def prepare_on_hosts(model):
    """Gloo cannot divide sums; and parameters are drawn whole, so that they do not depend on the number of ranks."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, distribute_tensor
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    random = torch.Generator().manual_seed(0)
    for x in model.parameters():
        if x.ndim > 1:
            values = torch.randn(x.shape, generator=random) * 0.02
            x.data.copy_(distribute_tensor(values, x.device_mesh, x.placements) if isinstance(x, DTensor) else values)


def config_of(o, hosts):
    import datasets
    from seqpar.torch.torchtitan import convert
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
    from torchtitan.models.llama3 import config_registry

    class Bytes(BaseTokenizer):
        """Tokens are bytes; 256 begins a document, and 257 ends it."""

        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config, **_):
            super().__init__()
            self.eos_id = 257

        def encode(self, text, **_):
            return [256, *text.encode(), 257]

        def decode(self, tokens, **_):
            return bytes(x for x in tokens if x < 256).decode(errors="replace")

        def get_vocab_size(self):
            return 258

    def lines(path):
        return datasets.Dataset.from_dict({"text": [x for x in pathlib.Path(path).read_text(errors="replace").splitlines() if x.strip()]})

    DATASETS["lines"] = DatasetConfig(path=o.data, loader=lines, sample_processor=lambda sample: sample["text"])
    config = convert(getattr(config_registry, o.model)())
    config.parallelism.context_parallel_degree = o.sp
    config.training.local_batch_size, config.training.seq_len, config.training.steps = o.batch, o.tokens, o.steps
    config.training.disable_cuda_graphs = True
    if hosts:
        config.training.mixed_precision_param = "float32"
    config.tokenizer, config.dataloader = Bytes.Config(), HuggingFaceTextDataLoader.Config(dataset="lines")
    config.dump_folder, config.metrics.log_freq = o.out, 1
    return config


class Losses:
    """The last of torchtitan's loggers: keeps losses, and prints them on rank 0."""

    def __init__(self):
        self.values = []

    def log(self, metrics, step):
        self.values.append(metrics["loss_metrics/global_avg_loss"])
        if os.environ["RANK"] == "0":
            print(f"step {step:4}   loss {self.values[-1]:.6f}   gradient norm {metrics['grad_norm']:.4f}", flush=True)

    def close(self):
        pass


def main(arguments=None):
    o = options(arguments)
    hosts = not torch.cuda.is_available()
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)  # torchrun's
    if hosts:
        on_hosts()
    trainer = config_of(o, hosts).build()
    if hosts:
        prepare_on_hosts(trainer.model_parts[0])
    trainer.metrics_processor.logger = losses = Losses()
    trainer.train()
    trainer.close()
    return losses.values


if __name__ == "__main__":
    main(sys.argv[1:])
    torch.distributed.destroy_process_group()
