"""Models of Hugging Face transformers with sharded sequences: attn_implementation="seqpar".

    import seqpar.torch.transformers
    sharded = seqpar.torch.transformers.register(comm, layout=layout)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="seqpar")
    ids, labels, positions = sp.shard_batch(batch, layout, comm)
    logits = model(ids, position_ids=positions[None], use_cache=False).logits

"seqpar:ring", "seqpar:ulysses" and so on select another algorithm, for models that differ in it.

The model must receive the position_ids of the rank's tokens. Packed sequences (batch 1) are read from the positions,
which restart at each of them, from cu_seq_lens_q and cu_seq_lens_k as DataCollatorWithFlattening passes them (of the
whole sequence), or from Registration.cu_seqlens. Positions that differ from the layout's are an error on all ranks, and
so is a model with layers that compute along the sequence without the attention function. Compute the loss from labels
that were shifted before sharding, not with the model's loss.

Trainer and TRL's SFTTrainer do all of this with TrainerMixin: docs/transformers.md.
"""

import dataclasses
import weakref

import torch

from .. import _abi, _shapes
from . import _models, _plans, _positions
from ._attention import attention
from ._collator import PackingCollator
from ._comm import Comm
from ._define import autocasted
from ._kernels import kernel_of
from ._layout import Layout, bounds_of
from ._refusals import tell
from ._trainer import TrainerMixin

__all__ = ["PackingCollator", "Registration", "TrainerMixin", "register"]

_ALGORITHMS = {name: number for name, number in _abi.ATTN_ALGORITHMS.items() if name not in ("zeco", "lasp1", "lasp2")}

# Arguments that models pass to every attention function, without an effect on it.
_WITHOUT_EFFECT = frozenset({"use_cache", "output_hidden_states", "cache_position", "return_dict", "logits_to_keep",
                             "num_items_in_batch", "shift_labels", "max_length_q", "max_length_k"})


@dataclasses.dataclass
class Registration:
    """The options of the registered function; fields may be changed between batches, on all ranks.

    layout      Layout of the tokens; None: shards of equal length, as in attention()
    cu_seqlens  packed sequences in the whole, batch 1; None: from position_ids, or cu_seq_lens_q
    algorithm, kernel  attention()'s
    """

    comm: Comm
    layout: "Layout | None" = None
    cu_seqlens: "tuple[int, ...] | None" = None
    algorithm: str = "auto"
    kernel: object = None
    given: "weakref.ref | None" = dataclasses.field(default=None, repr=False, init=False)  # position_ids of the model's call
    called: weakref.WeakSet = dataclasses.field(default_factory=weakref.WeakSet, repr=False, init=False)  # attention modules
    complete: weakref.WeakSet = dataclasses.field(default_factory=weakref.WeakSet, repr=False, init=False)  # models with complete checks
    sliding_mask: bool = dataclasses.field(default=False, repr=False, init=False)  # in the model's call: a mask has a window,
    sliding_layers: bool = dataclasses.field(default=False, repr=False, init=False)  # a layer has
    kept: bool = dataclasses.field(default=False, repr=False, init=False)  # in a layer that runs again: the fields are its batch's
    inside: "weakref.ref | None" = dataclasses.field(default=None, repr=False, init=False)  # position_ids of the current layer's call
    unpacked: bool = dataclasses.field(default=False, repr=False, init=False)  # each row of the batch is one sequence, says BatchSharder
    pending: weakref.WeakSet = dataclasses.field(default_factory=weakref.WeakSet, repr=False, init=False)  # batches before their backward pass
    packings: set = dataclasses.field(default_factory=set, repr=False, init=False)  # of these batches; at most two of them

    def __setattr__(self, name, value):
        if name == "layout" and value is not None and not isinstance(value, Layout):
            raise TypeError(f"seqpar attention: layout: got {_shapes.shown(value)}, expected a seqpar.torch.Layout")
        if name == "algorithm":
            _abi.choose("seqpar attention: algorithm", value, _ALGORITHMS)
        super().__setattr__(name, value)

    def __call__(self, *arguments, **named):
        return self.run(self.algorithm, *arguments, **named)

    def run(self, algorithm, *arguments, **named):
        """(out, None), transformers' interface of attention functions."""
        if torch.compiler.is_compiling():
            return self._run(algorithm, *arguments, **named)
        try:
            self.called.add(arguments[0])
            self.sliding_layers |= named.get("sliding_window") is not None
            return self._run(algorithm, *arguments, **named)
        except Exception as error:
            tell(self.comm, error)
            raise

    def _bounds(self, cu_seq_lens_q, cu_seq_lens_k):
        """The packed sequences from the caller, None: not given."""
        given = [bounds_of(x) if torch.compiler.is_compiling() else _positions.bounds_once(x)
                 for x in (self.cu_seqlens, cu_seq_lens_q, cu_seq_lens_k) if x is not None]
        if any(x != given[0] for x in given):
            raise ValueError(f"seqpar attention: Registration.cu_seqlens, cu_seq_lens_q and cu_seq_lens_k are {given}, expected equal "
                             "bounds: those of the whole sequence")
        return given[0] if given else None

    def _remember(self, packing):
        if len(self.packings) < 2 and not _models.runs_again():
            self.packings.add((self.layout and self.layout.kind, packing))
        return packing

    def _packing_again(self, bounds, of_call):
        """The packing of a layer that runs again in the backward pass, without positions: of its call, or of all pending batches."""
        if not of_call and len(self.packings) != 1:
            raise ValueError("seqpar attention: a layer that gets no position_ids runs again in the backward pass, after several batches with "
                             "different packed sequences or layouts, expected gradient_checkpointing_enable() of the model, which keeps them")
        return bounds if of_call else next(iter(self.packings))[1]

    def packing(self, query, dim, algorithm, positions, cu_seq_lens_q=None, cu_seq_lens_k=None, recurrent=False):
        """(query, cu_seqlens for attention()); the rank's tokens are dimension `dim` of query. recurrent: of a layer whose
        only use of positions is the packing."""
        bounds, local, comm = self._bounds(cu_seq_lens_q, cu_seq_lens_k), query.shape[dim], self.comm
        if positions is None and not torch.compiler.is_compiling():
            again = _models.runs_again() and not self.kept
            latest = self.inside if again else self.given
            positions = latest and latest()
            if positions is None and again:
                return query, self._packing_again(bounds, cu_seq_lens_q is not None)
        if positions is None:
            if comm.size > 1 and not (recurrent and (bounds is not None or (self.unpacked and torch.compiler.is_compiling()))):
                raise ValueError("seqpar attention: the model does not pass position_ids to this layer, expected those of shard_batch()"
                                 + (", or under torch.compile Registration.cu_seqlens" if recurrent else
                                    "; under torch.compile the layers need them" if torch.compiler.is_compiling() else ""))
            return query, self._remember(bounds) if not torch.compiler.is_compiling() else bounds
        if torch.compiler.is_compiling():
            key = self.layout.key if self.layout is not None else (
                f"{_plans.kind_of(algorithm)}:{local * comm.size}:{comm.size}:1:1:")
            cut = "" if bounds is None else ",".join(map(str, bounds))
            return query + _positions.check(positions, query.detach(), key, cut, comm.name), bounds
        layout = self.layout or Layout(_plans.kind_of(algorithm), local * comm.size, comm.size)
        packing = _positions.packing_of(positions, layout, bounds, comm)
        if packing is not None and len(packing) > 2 and query.shape[0] != 1:
            raise ValueError(f"seqpar attention: got a batch of {query.shape[0]} with packed sequences, expected 1")
        return query, self._remember(packing)

    def _run(self, algorithm, module, query, key, value, attention_mask, scaling=None, dropout=0.0, is_causal=None,
             sliding_window=None, softcap=None, s_aux=None, position_ids=None, cu_seq_lens_q=None, cu_seq_lens_k=None, **rest):
        unknown = sorted(name for name, x in rest.items() if name not in _WITHOUT_EFFECT and x is not None and x is not False)
        if unknown:
            raise TypeError(f"seqpar attention: got {', '.join(unknown)}, which it does not support")
        if attention_mask is not None:
            raise ValueError("seqpar attention: got an attention mask with padding, expected none: pack sequences, with "
                             "position_ids that restart at each")
        if dropout:
            raise ValueError(f"seqpar attention: dropout is {dropout}, expected 0: there is no dropout")
        if key.shape[2] != query.shape[2]:
            raise ValueError(f"seqpar attention: got {query.shape[2]} queries and {key.shape[2]} keys, expected equally "
                             "many: there is no cache")
        query, cu_seqlens = self.packing(query, 2, algorithm, position_ids, cu_seq_lens_q, cu_seq_lens_k)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # A window of transformers counts the token itself.
        window = (-1, -1) if sliding_window is None else (sliding_window - 1, -1 if causal else sliding_window - 1)
        out = attention(*(x.transpose(1, 2) for x in autocasted(query, key, value)), self.comm, causal=causal, window=window,
                        scale=scaling, softcap=softcap or 0.0, sinks=None if s_aux is None else s_aux.float(),
                        cu_seqlens=cu_seqlens, layout=self.layout, algorithm=algorithm, kernel=self.kernel)
        return out, None


def register(comm, *, layout=None, cu_seqlens=None, algorithm="auto", kernel=None, name="seqpar", model=None):
    """Registers `name` as an attn_implementation of all models, for the sequences of `comm`; also `name`:ring,
    `name`:ulysses and so on, with that algorithm instead of `algorithm`. Returns the Registration.

    Models that get this attn_implementation afterwards are inspected when they are built. Layers of Mamba-2, Gated
    DeltaNet and Kimi Delta Attention compute on all ranks' tokens; other layers that carry a state or convolve along the
    sequence, and masks of chunks, raise ValueError with their names. Their calls' position_ids are compared with the layout.

    kernel  attention()'s: a function, or "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3": that
            kernel runs on whole sequences of some heads (algorithm "ulysses"), or on runs of queries ("allgather_kv")
    model   a model to inspect now
    """
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
    registration = Registration(comm, layout, cu_seqlens, algorithm, kernel_of(kernel))

    def function(chosen):
        def seqpar_attention(*arguments, **named):
            return registration.run(chosen or registration.algorithm, *arguments, **named)

        return seqpar_attention

    def mask(*arguments, mask_function=None, **named):
        """None, or the padding, which run() refuses."""
        if mask_function is not None and not torch.compiler.is_compiling():
            try:
                registration.sliding_mask |= _models.require_known_mask(mask_function)
            except ValueError as error:
                tell(comm, error)
                raise
        return flash_attention_mask(*arguments, **named)

    names = {name: None, **{f"{name}:{one}": one for one in _ALGORITHMS}}
    for full, chosen in names.items():
        AttentionInterface.register(full, function(chosen))
        AttentionMaskInterface.register(full, mask)
        _models.registrations[full] = registration
    _models.watch_all(PreTrainedModel)
    if model is not None:
        _models.require_set(model, None)
        _models.watch(model)
    return registration
