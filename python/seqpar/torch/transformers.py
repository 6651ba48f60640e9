"""Models of Hugging Face transformers with sharded sequences: attn_implementation="seqpar".

    import seqpar.torch.transformers
    sharded = seqpar.torch.transformers.register(comm, layout=layout)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="seqpar")
    ids, labels, positions = sp.shard_batch(batch, layout, comm)
    logits = model(ids, position_ids=positions[None], use_cache=False).logits

"seqpar:ring", "seqpar:ulysses" and so on are the same with another algorithm, for models that differ in it. The model must get position_ids, and the loss is of labels that were shifted before sharding: not the model's own.
"""

import dataclasses

from .. import _abi
from ._attention import attention
from ._comm import Comm
from ._define import autocasted
from ._kernels import kernel_of
from ._layout import Layout

_LINEAR = ("zeco", "lasp1", "lasp2")

# What models hand through to every attention function and what changes nothing in it.
_WITHOUT_EFFECT = frozenset({"position_ids", "use_cache", "output_hidden_states", "cache_position", "return_dict",
                             "logits_to_keep", "num_items_in_batch"})


@dataclasses.dataclass
class Registration:
    """What the registered function does; its fields may be changed between batches, on all ranks alike.

    layout      Layout of the tokens; None: shards of equal length, as attention() takes them
    cu_seqlens  packed sequences in the whole, batch 1; None: none. position_ids alone pack nothing
    algorithm, kernel  attention()'s
    """

    comm: Comm
    layout: Layout = None
    cu_seqlens: tuple = None
    algorithm: str = "auto"
    kernel: object = None

    def __call__(self, *arguments, **named):
        return self.run(self.algorithm, *arguments, **named)

    def run(self, algorithm, module, query, key, value, attention_mask, scaling=None, dropout=0.0, is_causal=None,
            sliding_window=None, softcap=None, s_aux=None, **rest):
        """(out, None), as transformers calls its attention functions."""
        unknown = sorted(name for name, x in rest.items() if name not in _WITHOUT_EFFECT and x is not None and x is not False)
        if unknown:
            raise TypeError(f"seqpar attention: got {', '.join(unknown)}, which it does not know")
        if attention_mask is not None:
            raise ValueError("seqpar attention: got an attention mask with padding, expected none: pack sequences, and "
                             "give cu_seqlens")
        if dropout:
            raise ValueError(f"seqpar attention: dropout is {dropout}, expected 0: there is no dropout")
        if key.shape[2] != query.shape[2]:
            raise ValueError(f"seqpar attention: got {query.shape[2]} queries and {key.shape[2]} keys, expected equally "
                             "many: there is no cache")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # A window of transformers has so many tokens, the token itself among them.
        window = (-1, -1) if sliding_window is None else (sliding_window - 1, -1 if causal else sliding_window - 1)
        out = attention(*(x.transpose(1, 2) for x in autocasted(query, key, value)), self.comm, causal=causal, window=window,
                        scale=scaling, softcap=softcap or 0.0, sinks=None if s_aux is None else s_aux.float(),
                        cu_seqlens=self.cu_seqlens, layout=self.layout, algorithm=algorithm, kernel=self.kernel)
        return out, None


def register(comm, *, layout=None, cu_seqlens=None, algorithm="auto", kernel=None, name="seqpar"):
    """Makes `name` an attn_implementation of all models, for the sequences of `comm`; and `name`:ring, `name`:ulysses and so
    on, which have that algorithm in the place of `algorithm`. Returns the Registration.

    kernel  attention()'s: a function, or "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3": that kernel on
            whole sequences of some heads (algorithm "ulysses"), or on runs of queries ("allgather_kv")
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
    registration = Registration(comm, layout, cu_seqlens, algorithm, kernel_of(kernel))

    def function(chosen):
        def seqpar_attention(*arguments, **named):
            return registration.run(chosen or registration.algorithm, *arguments, **named)

        return seqpar_attention

    names = {name: None, **{f"{name}:{one}": one for one in _abi.ATTN_ALGORITHMS if one not in _LINEAR}}
    for full, chosen in names.items():
        AttentionInterface.register(full, function(chosen))
        AttentionMaskInterface.register(full, flash_attention_mask)  # None, or the padding, which is refused
    return registration
