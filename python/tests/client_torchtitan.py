"""torchtitan's Llama with sharded sequences, as a case of clients.py. torchtitan needs a GPU: its device, and the division of
gradients by Gloo, are replaced, in the reference too."""

import contextlib
import dataclasses
import unittest.mock

import torch
import torch.distributed as dist

import seqpar.torch as sp
from client_support import case, raises

_TOKENS, _DOCUMENTS = 32, ((0, 5, 25, 32), (0, 12, 32))


@contextlib.contextmanager
def _hosts():
    with unittest.mock.patch("torch._utils._get_available_device_type", lambda: "cpu"):
        import torchtitan.tools.utils as tools
        with unittest.mock.patch.object(tools, "get_local_device", lambda: torch.device("cpu")):
            yield


def _config(ranks):
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    from seqpar.torch.torchtitan import convert
    config = llama3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:2]
    config.training.seq_len, config.training.mixed_precision_param = _TOKENS, "float32"
    config.parallelism.context_parallel_degree = ranks
    if ranks > 1:
        return convert(config)
    for layer in config.model_spec.model.layers:  # FlexAttention needs a GPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def _model(config, ranks, folder):
    """A model with the same parameters on any number of ranks, and its meshes."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, distribute_tensor
    from torchtitan.config import CompileConfig
    from torchtitan.distributed import ParallelDims
    config.model_spec.model.update_from_config(config=config)
    model, dims = config.model_spec.model.build(), None
    if ranks > 1:
        dims = ParallelDims.from_config(config.parallelism, ranks)
        dims.build_mesh()
        config.model_spec.parallelize_fn(model, parallel_dims=dims, training=config.training, parallelism=config.parallelism,
                                         compile_config=CompileConfig(), ac_config=None, dump_folder=str(folder))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    model.init_states(buffer_device=torch.device("cpu"))
    random = torch.Generator().manual_seed(7)
    for x in model.parameters():
        values = torch.randn(x.shape, generator=random) * (0.02 if x.ndim > 1 else 0.1)
        x.data.copy_(distribute_tensor(values, x.device_mesh, x.placements) if isinstance(x, DTensor) else values)
    return model, dims


def _loss(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum") / 64


def _of_shards(model, dims, ids, labels, positions):
    from torchtitan.distributed import utils
    from torchtitan.distributed.context_parallel import prepare_context_parallel_input
    from torchtitan.distributed.spmd_types import annotate_input_spmd_types
    batch = prepare_context_parallel_input(ids, labels, {"positions": positions}, dims.get_mesh("cp"), torch.device("cpu"))
    context = utils.get_spmd_context(parallel_dims=dims)
    mine, own, named = annotate_input_spmd_types(dims, *batch)
    with context():
        loss = _loss(model(mine, **named), own)
        loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total


def _of_whole(model, ids, labels, positions, documents):
    loss = 0
    for row, bounds in enumerate(documents):
        for part in (slice(*cut) for cut in zip(bounds, bounds[1:])):
            loss = loss + _loss(model(ids[row:row + 1, part], positions=positions[row:row + 1, part]), labels[row, part])
    loss.backward()
    return loss.detach()


@case((2, 2), needs="torchtitan")
def llama_of_torchtitan(ranks, cp, folder):
    """A converted Llama 3 in torchtitan's meshes (FSDP2 over the ranks of a sequence), with one document in a row and with
    several, against its own attention on one process, each document alone."""
    found = {}
    if ranks > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
    with _hosts():
        model, dims = _model(_config(ranks), ranks, folder)
        ids = torch.randint(2048, (2, _TOKENS + 1), generator=torch.Generator().manual_seed(1))
        ids, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        for name, documents in (("whole", ((0, _TOKENS),) * 2), ("documents", _DOCUMENTS)):
            positions = torch.stack([torch.cat([torch.arange(b - a) for a, b in zip(row, row[1:])]) for row in documents])
            out = (_of_shards(model, dims, ids, labels, positions) if ranks > 1 else
                   _of_whole(model, ids, labels, positions, documents))
            gradients = [x.grad.full_tensor() if hasattr(x.grad, "full_tensor") else x.grad for x in model.parameters()]
            found.update({f"{name} loss": out, f"{name} gradients": torch.cat([x.flatten() for x in gradients])})
            model.zero_grad()
        if ranks > 1:
            _refusals()
    return found


def _refusals():
    from seqpar.torch.torchtitan import convert
    config = _config(2)
    with raises(ValueError, "layer 0 has the attention"):
        convert(config)  # the second time
    with raises(ValueError, "expected one of"):
        convert(dataclasses.replace(config, model_spec=None))
    with raises((ValueError, sp.Error), "rings"):
        convert(config, algorithm="rings")
