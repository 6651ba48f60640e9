"""TransformerEngine's attention with context parallelism by seqpar: cp_comm_type="seqpar".

    import seqpar.torch.te
    seqpar.torch.te.patch()                                   # DotProductAttention and its subclasses, including
                                                              Megatron's
    attention.set_context_parallel_group(group, ranks, stream, cp_comm_type="seqpar")        # Megatron: --cp-comm-type seqpar

"seqpar:ulysses" and so on name attention()'s algorithm, optionally a different one per layer. Tokens are laid out as
TransformerEngine lays them out for every cp_comm_type: two chunks per rank ("zigzag"), with qkv_format="thd" of each
packed sequence. Modules with another cp_comm_type are unchanged.
"""

import functools
import inspect

import torch

from . import _positions
from ._attention import attention
from ._connect import comm as make_comm
from ._layout import Layout

PREFIX = "seqpar"
# Arguments of forward() that seqpar supports, and arguments without an effect on its results.
_TAKEN = {"query_layer", "key_layer", "value_layer", "qkv_layer", "kv_layer", "qkv_interleave_dim", "qkv_format", "cu_seqlens_q",
          "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded", "attn_mask_type", "window_size", "softcap"}
_WITHOUT_EFFECT = {"attention_mask", "max_seqlen_q", "max_seqlen_kv", "checkpoint_core_attention", "fast_zero_fill", "num_splits",
                   "pad_between_seqs", "bottom_right_diagonal"}


@functools.lru_cache(maxsize=64)
def _layout(tokens, ranks, cu_seqlens):
    return Layout("zigzag", tokens, ranks, cu_seqlens=cu_seqlens)


def _mask(module, named):
    """(causal, window) of a call."""
    kind = (named.get("attn_mask_type") or module.attn_mask_type).replace(",", "_")
    kinds = {"no_mask": False, "padding": False, "causal": True, "padding_causal": True, "causal_padding": True,
             "causal_bottom_right": True, "padding_causal_bottom_right": True}  # queries and keys are equally many
    if kind not in kinds:
        raise ValueError(f"DotProductAttention: attn_mask_type is {kind!r}, expected one of {', '.join(kinds)}")
    window = tuple(named.get("window_size") or module.window_size or (-1, -1))
    if not kinds[kind] and window == (-1, 0):  # the module's own, for causal masks: without one TransformerEngine has no window
        window = (-1, -1)
    return kind, kinds[kind], (window[0], -1) if kinds[kind] else window


def _softcap(module, named):
    given = named.get("softcap")
    return getattr(module, "softcap", 0.0) if given is None else given


def _packed(named, kind, causal):
    """The bounds of the packed sequences of "thd" in the whole: padding belongs to the sequence before it."""
    own, padded, keys, padded_keys = (_positions.bounds_once(named.get(f"cu_seqlens_{name}"))
                                      for name in ("q", "q_padded", "kv", "kv_padded"))
    if own is None:
        raise ValueError("DotProductAttention: cu_seqlens_q is None, expected the bounds of the packed sequences: qkv_format is "
                         "'thd'")
    bounds = padded or own
    if (padded_keys or keys or bounds) != bounds:
        raise ValueError("DotProductAttention: cu_seqlens_q and cu_seqlens_kv differ, expected self-attention")
    if bounds != own and not causal:
        raise ValueError(f"DotProductAttention: got padding between sequences with attn_mask_type {kind!r}, expected a causal "
                         "one, where no token sees the padding behind it")
    return bounds


def _tensors(named):
    """q, k and v of a call."""
    dim = named.get("qkv_interleave_dim", -3)
    if named.get("qkv_layer") is not None:
        tensors = named["qkv_layer"].unbind(dim)
    elif named.get("kv_layer") is not None:
        tensors = (named["query_layer"], *named["kv_layer"].unbind(dim))
    else:
        tensors = tuple(named[f"{name}_layer"] for name in ("query", "key", "value"))
    for x in tensors:
        if type(x) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError(f"DotProductAttention: got {type(x).__name__}, expected torch.Tensor: seqpar's attention takes no FP8")
    return tensors


def _refuse(module, named, defaults):
    """Raises for arguments that would be ignored silently."""
    for name, value in named.items():
        plain = value is None or isinstance(value, (bool, int, float, str))
        if name not in _TAKEN | _WITHOUT_EFFECT and not (plain and (not value or value == defaults.get(name))):
            raise TypeError(f"DotProductAttention: {name} is given, which cp_comm_type {module.cp_comm_type!r} does not support")
    if module.attention_dropout and module.training:
        raise ValueError(f"DotProductAttention: attention_dropout is {module.attention_dropout}, expected 0: there is no dropout")
    if getattr(module, "return_max_logit", False):
        raise ValueError("DotProductAttention: return_max_logit is True, expected False")
    if isinstance(module.cp_group, (list, tuple)):
        raise ValueError(f"DotProductAttention: cp_group has {len(module.cp_group)} groups, expected one, of all ranks")


def _sinks(module):
    kind, offset = getattr(module, "softmax_type", "vanilla"), getattr(module, "softmax_offset", None)
    return None if kind == "vanilla" else offset.flatten().float()


def _attend(module, named, defaults={}):
    """The attention of a module with the attributes of TransformerEngine's, for arguments of its forward()."""
    _refuse(module, named, defaults)
    comm = make_comm(module.cp_group)
    q, k, v = _tensors(named)
    layout_of_tensors = named.get("qkv_format") or module.qkv_format
    kind, causal, window = _mask(module, named)
    bounds = None
    if layout_of_tensors == "thd":
        bounds = _packed(named, kind, causal)
        q, k, v = (x[None] for x in (q, k, v))
    elif "padding" in kind:
        raise ValueError(f"DotProductAttention: attn_mask_type is {kind!r} with qkv_format {layout_of_tensors!r}, expected one "
                         "without padding: pack sequences, with qkv_format 'thd'")
    elif layout_of_tensors == "sbhd":
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    _, _, algorithm = module.cp_comm_type.partition(":")
    out = attention(q, k, v, comm, causal=causal, window=window, scale=module.flash_attention.softmax_scale,
                    softcap=_softcap(module, named), sinks=_sinks(module), cu_seqlens=bounds,
                    layout=_layout(q.shape[1] * comm.size, comm.size, bounds), algorithm=algorithm or "auto", deterministic=module.deterministic).flatten(2)
    return out[0] if layout_of_tensors == "thd" else out.transpose(0, 1) if layout_of_tensors == "sbhd" else out


def _ours(module):
    kind = getattr(module, "cp_comm_type", None)
    return module.cp_group is not None and isinstance(kind, str) and kind.partition(":")[0] == PREFIX


def patch(attention_class=None):
    """Adds the cp_comm_types "seqpar" and "seqpar:<algorithm>" to DotProductAttention. `attention_class`: None:
    transformer_engine.pytorch.DotProductAttention. unpatch() undoes it.

    Arguments of forward() that seqpar does not support (biases, ALiBi, FP8, caches, dropout, padding of unpacked
    batches) are errors. Documents of "thd" may have any length that the layout supports; their padding is attended to
    like tokens, and no other token sees it.
    """
    if attention_class is None:
        from transformer_engine.pytorch import DotProductAttention as attention_class
    original = attention_class.forward
    if hasattr(original, "seqpar_original"):
        return
    signature = inspect.signature(original)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}

    @functools.wraps(original)
    def forward(self, *arguments, **named):
        if not _ours(self):
            return original(self, *arguments, **named)
        bound = dict(signature.bind(self, *arguments, **named).arguments)
        bound.pop(next(iter(signature.parameters)))
        return _attend(self, bound, defaults)

    forward.seqpar_original = original
    attention_class.forward = forward


def unpatch(attention_class=None):
    """Undoes patch()."""
    if attention_class is None:
        from transformer_engine.pytorch import DotProductAttention as attention_class
    attention_class.forward = getattr(attention_class.forward, "seqpar_original", attention_class.forward)
