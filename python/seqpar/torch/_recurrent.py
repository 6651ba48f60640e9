"""Recurrent layers of transformers' models with a sharded sequence: their convolution and recurrence cross ranks on
contiguous shards, to which the hidden states move from the layout of the attention layers."""

import functools

import torch

from .. import _abi
from . import _delta_net, _mamba_layers, _plans
from ._collectives import redistribute
from ._layout import Layout, in_order
from ._refusals import tell

_COMPUTE = {**_delta_net.LAYERS, **_mamba_layers.LAYERS}  # class -> function (layer, hidden states, comm, cu_seqlens=, layout=)


def supported(module):
    return type(module).__name__ in _COMPUTE


def follow(module, config, registrations):
    """From now on the layer computes on all ranks' tokens while `config` has a registered attn_implementation."""
    kind = type(module)
    if not getattr(kind.forward, "seqpar_follows", False):
        kind.forward = _following(kind.forward, registrations)
    module.seqpar_config = config


def _following(original, registrations):
    @functools.wraps(original)
    def forward(self, hidden_states, *arguments, **named):
        name = getattr(getattr(self, "seqpar_config", None), "_attn_implementation", None)
        registration = registrations.get(name)
        if registration is None or (registration.comm.size == 1 and not _packed(registration, hidden_states, *arguments, **named)):
            return original(self, hidden_states, *arguments, **named)
        chosen = name.rpartition(":")[2]
        try:
            if not torch.compiler.is_compiling():  # a set of layers would be a constant of the graph
                registration.called.add(self)
            return _forward(self, registration, chosen if chosen in _abi.ATTN_ALGORITHMS else registration.algorithm,
                            hidden_states, *arguments, **named)
        except Exception as error:
            if not torch.compiler.is_compiling():
                tell(registration.comm, error)
            raise

    forward.seqpar_follows = True
    return forward


def _packed(registration, hidden_states, cache=None, attention_mask=None, position_ids=None, cu_seq_lens_q=None,
            cu_seq_lens_k=None, cache_params=None, **_):
    """Whether a call on one rank has packed sequences, which the layer's own forward does not keep apart."""
    if any(x is not None for x in (cache, attention_mask, cache_params)):
        return False
    _, bounds = registration.packing(hidden_states, 1, registration.algorithm, position_ids, cu_seq_lens_q, cu_seq_lens_k)
    return bounds is not None and len(bounds) > 2


def _forward(layer, registration, algorithm, hidden_states, cache=None, attention_mask=None, position_ids=None,
             cu_seq_lens_q=None, cu_seq_lens_k=None, cache_params=None, **_):
    kind = type(layer).__name__
    if cache is not None or cache_params is not None:
        raise ValueError(f"seqpar attention: {kind} got a cache, expected none: call the model with use_cache=False")
    if attention_mask is not None:
        raise ValueError(f"seqpar attention: {kind} got an attention mask with padding, expected none: pack sequences, with "
                         "position_ids that restart at each")
    comm = registration.comm
    hidden_states, bounds = registration.packing(hidden_states, 1, algorithm, position_ids, cu_seq_lens_q, cu_seq_lens_k, recurrent=True)
    if registration.layout is None and torch.compiler.is_compiling():  # a graph cannot create one
        raise ValueError(f"seqpar attention: {kind} is compiled without a layout, expected one in Registration.layout")
    layout = registration.layout or Layout(_plans.kind_of(algorithm), hidden_states.shape[1] * comm.size, comm.size)
    straight = layout.straight or layout
    moves = not in_order(layout)
    if moves:
        hidden_states = redistribute(hidden_states, layout, straight, comm)
    out = _COMPUTE[kind](layer, hidden_states, comm, cu_seqlens=bounds, layout=straight)
    return redistribute(out, straight, layout, comm) if moves else out
