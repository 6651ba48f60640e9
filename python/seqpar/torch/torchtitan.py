"""torchtitan with context parallelism by seqpar: a change of a Trainer.Config.

    # my_configs.py
    from seqpar.torch.torchtitan import convert
    from torchtitan.models.llama3 import config_registry

    def llama3_8b():
        return convert(config_registry.llama3_8b())

    torchrun ... -m torchtitan.train --module my_configs --config llama3_8b --parallelism.context_parallel_degree 4

torchtitan cuts the batches and builds the meshes; the attention between the ranks of "cp" is seqpar's, in place of a gather
of all keys. Documents are separated as torchtitan separates them: one begins where positions are 0.
"""

import dataclasses
import functools

import torch
from torchtitan.models.common.attention import FlexAttention, GQAttention, VarlenAttention
from torchtitan.protocols.module import Module

from .. import _abi
from . import _positions
from ._attention import attention
from ._connect import comm as make_comm
from ._layout import Layout
from ._refusals import tell

__all__ = ["Attention", "convert"]

_MODELS = ("llama3", "qwen3")
_LAYOUTS = {"headtail": "zigzag", None: "contiguous"}  # by parallelism.context_parallel_load_balancer


@dataclasses.dataclass(frozen=True)
class _Documents:
    """The bounds of each row's documents in the whole sequence, in the place of torchtitan's masks: activation checkpointing
    gives them to the second forward pass too."""

    layout: Layout
    rows: "tuple[tuple[int, ...], ...] | None"  # None: one document in each row


class Attention(Module):
    """The inner attention of a layer: q, k and v are this rank's tokens, [batch][tokens][heads][dim]."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        algorithm: str = "auto"

    def __init__(self, config):
        super().__init__()
        self.algorithm, self.comm, self.kind = config.algorithm, None, "zigzag"

    def parallelize(self, parallel_dims):
        """torchtitan's, without its gather of keys and values."""
        config = self._sharding_config
        if config is not None and config.local_map is not None:
            given = config.in_src_shardings
            own = dataclasses.replace(config.local_map, in_grad_placements=tuple(given.values()))
            self._sharding_config = dataclasses.replace(config, in_dst_shardings=dict(given), local_map=own)
        super().parallelize(parallel_dims)

    def forward(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks=None, scale=None, enable_gqa=False):
        if self.comm is None:
            raise RuntimeError("seqpar attention: the model was not parallelized, expected the parallelize_fn of a config of convert()")
        if attention_masks is None:
            attention_masks = _Documents(Layout(self.kind, q_BLNH.shape[1] * self.comm.size, self.comm.size), None)
        if not isinstance(attention_masks, _Documents):
            error = TypeError(f"seqpar attention: attention_masks is {type(attention_masks).__name__}, expected none: documents are read from "
                              "positions")
            tell(self.comm, error)
            raise error
        run = functools.partial(attention, comm=self.comm, causal=True, scale=scale, layout=attention_masks.layout, algorithm=self.algorithm)
        if attention_masks.rows is None:
            return run(q_BLNH, k_BLNH, v_BLNH)
        parts = zip(*(x.split(1) for x in (q_BLNH, k_BLNH, v_BLNH)), attention_masks.rows)
        return torch.cat([run(q, k, v, cu_seqlens=bounds) for q, k, v, bounds in parts])


def _documents(positions, layout, comm):
    """The _Documents of this rank's positions, [batch][tokens]. Collective."""
    whole = _positions._whole(positions, layout, comm)
    rows = tuple(tuple(sorted({0, layout.tokens, *(row == 0).nonzero()[:, 0].tolist()})) for row in whole)
    return _Documents(layout, None if all(len(row) == 2 for row in rows) else rows)


def _watch(model, comm, kind):
    """Gives the documents of each batch to the attention."""
    def before(module, arguments, named):
        positions = named.get("positions", arguments[1] if len(arguments) > 1 else None)
        if positions is not None:
            layout = Layout(kind, positions.shape[1] * comm.size, comm.size)
            named = {**named, "attention_masks": _documents(positions.expand(len(arguments[0] if arguments else named["tokens"]), -1), layout, comm)}
        return arguments, named

    model.register_forward_pre_hook(before, with_kwargs=True)


def _parallelize(original, model, *, parallel_dims, parallelism, **more):
    if parallelism.spmd_backend == "partial_dtensor":
        raise ValueError("torchtitan: parallelism.spmd_backend is 'partial_dtensor', expected 'spmd_types' with seqpar")
    if parallelism.context_parallel_load_balancer not in _LAYOUTS:
        raise ValueError(f"torchtitan: parallelism.context_parallel_load_balancer is {parallelism.context_parallel_load_balancer!r}, expected "
                         "'headtail' or None with seqpar")
    comm = make_comm(parallel_dims.get_mesh("cp")) if parallel_dims.cp_enabled else make_comm(single=True)
    kind = _LAYOUTS[parallelism.context_parallel_load_balancer]
    for module in model.modules():
        if isinstance(module, Attention):
            module.comm, module.kind = comm, kind
    _watch(model, comm, kind)
    return original(model, parallel_dims=parallel_dims, parallelism=parallelism, **more)


def convert(config, algorithm="auto"):
    """Changes a Trainer.Config of a Llama 3 or Qwen 3 model so that seqpar computes attention, and returns it. Other models
    are errors: their layers have windows, sinks or states.

        algorithm  attention()'s; parallelism.context_parallel_load_balancer gives the layout: "headtail" is "zigzag", None
                   "contiguous"
    """
    _abi.choose("convert: algorithm", algorithm, _abi.ATTN_ALGORITHMS)
    spec = config.model_spec
    if spec is None or spec.name not in _MODELS:
        raise ValueError(f"convert: config.model_spec is {getattr(spec, 'name', None)!r}, expected one of {', '.join(_MODELS)}")
    for index, layer in enumerate(spec.model.layers):
        own = layer.attention
        if type(own) is not GQAttention.Config or not isinstance(own.inner_attention, (FlexAttention.Config, VarlenAttention.Config)):
            raise ValueError(f"convert: layer {index} has the attention {type(own).__qualname__}, expected GQAttention with FlexAttention or "
                             "VarlenAttention")
        own.inner_attention = Attention.Config(algorithm=algorithm)
    config.model_spec = dataclasses.replace(spec, parallelize_fn=functools.partial(_parallelize, spec.parallelize_fn))
    return config
