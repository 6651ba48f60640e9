"""Megatron-Core's attention with context parallelism by seqpar: --cp-comm-type seqpar.

    import seqpar.torch.megatron
    spec = seqpar.torch.megatron.layer_spec(get_gpt_layer_local_spec())           # or a spec with TransformerEngine
    config = TransformerConfig(..., context_parallel_size=4, cp_comm_type="seqpar")
    model = GPTModel(config, spec, ...)

"seqpar:ulysses" and so on name attention()'s algorithm. Batches are cut as for every cp_comm_type, with
get_batch_on_this_cp_rank(): two chunks per rank. Megatron-Core's own layers support no context parallelism without
TransformerEngine; with this attention they do. Models of TransformerEngine's attention may use seqpar.torch.te.patch()
instead.
"""

import copy
import types

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import is_layer_window_attention

from . import te

__all__ = ["CoreAttention", "layer_spec"]


class CoreAttention(DotProductAttention):
    """The attention module of a layer: Megatron-Core's constructor, forward() and checkpoints, over all ranks of the
    context parallel group. Packed sequences (qkv_format "thd"), windows, grouped queries and softmax offsets are supported;
    dropout, biases, masks of padding and other arguments with other results are errors."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, attention_dropout=None, softmax_scale=None,
                 cp_comm_type=None, pg_collection=None, k_channels=None, v_channels=None):
        MegatronModule.__init__(self, config=config)  # DotProductAttention's refuses context parallelism
        kind = cp_comm_type or te.PREFIX
        if not isinstance(kind, str) or kind.partition(":")[0] != te.PREFIX:
            raise ValueError(f"CoreAttention: cp_comm_type is {kind!r}, expected 'seqpar' or 'seqpar:<algorithm>'")
        if config.qk_clip or getattr(config, "log_max_attention_logit", False):
            raise ValueError("CoreAttention: qk_clip or log_max_attention_logit is True, expected False")
        if attention_type != "self":
            raise ValueError(f"CoreAttention: attention_type is {attention_type!r}, expected 'self'")
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
        self.layer_number, self.attention_type, self.pg_collection, self.tp_group = max(1, layer_number), attention_type, groups, groups.tp
        self.cp_comm_type, self.cp_group, self.qkv_format = kind, groups.cp, "sbhd"
        self.attn_mask_type, self.deterministic = attn_mask_type.name, config.deterministic_mode
        self.attention_dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window_size = tuple(config.window_size) if windowed else (-1, -1)
        # apply_query_key_layer_scaling divides products by the layer's number, and multiplies them by it in the softmax.
        scale = (k_channels or config.kv_channels) ** -0.5 if softmax_scale is None else softmax_scale
        self.flash_attention = types.SimpleNamespace(softmax_scale=scale)  # where TransformerEngine's module has it
        self._create_offset(config.num_attention_heads // groups.tp.size())

    def _create_offset(self, heads):
        config, self.softmax_type = self.config, self.config.softmax_type
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        offset = None if self.softmax_type == "vanilla" else torch.zeros(heads, device=device, dtype=config.params_dtype)
        if self.softmax_type == "learnable":
            offset = torch.nn.Parameter(offset)
            if config.perform_initialization:
                config.init_method(offset)
        self.softmax_offset = offset

    def forward(self, query, key, value, attention_mask, attn_mask_type=None, attention_bias=None, packed_seq_params=None):
        named = {"query_layer": query, "key_layer": key, "value_layer": value, "attention_bias": attention_bias,
                 "attn_mask_type": None if attn_mask_type is None else attn_mask_type.name}
        if packed_seq_params is not None:
            if packed_seq_params.qkv_format != "thd":
                raise ValueError(f"CoreAttention: packed_seq_params has qkv_format {packed_seq_params.qkv_format!r}, expected 'thd'")
            if getattr(packed_seq_params, "local_cp_size", None) is not None:
                raise ValueError("CoreAttention: packed_seq_params has a local_cp_size, expected none: the group is that of the model")
            named.update({name: getattr(packed_seq_params, name, None) for name in (
                "qkv_format", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")})
        return te._attend(self, named)


def layer_spec(spec):
    """A copy of a spec of layers (ModuleSpec, TransformerBlockSubmodules or a list of them) with CoreAttention as the core
    attention of every self-attention."""
    spec = copy.copy(spec)
    if isinstance(spec, (list, tuple)):
        return type(spec)(layer_spec(one) for one in spec)
    if hasattr(spec, "layer_specs"):
        spec.layer_specs = [layer_spec(one) for one in spec.layer_specs]
        return spec
    self_attention = getattr(getattr(spec, "submodules", None), "self_attention", None)
    if not hasattr(getattr(self_attention, "submodules", None), "core_attention"):
        raise ValueError(f"layer_spec: {getattr(getattr(spec, 'module', spec), '__name__', spec)} has no self_attention with a core_attention, "
                         "expected the spec of a transformer layer or block")
    spec.submodules, self_attention = copy.copy(spec.submodules), copy.copy(self_attention)
    spec.submodules.self_attention, self_attention.submodules = self_attention, copy.copy(self_attention.submodules)
    self_attention.submodules.core_attention = CoreAttention
    return spec
